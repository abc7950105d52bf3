from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from offgen.readers.lines import BOM, count_lines, split_lines

PIECES = st.sampled_from(
    [
        b"\n",
        b"\r\n",
        b"\r",
        b"\n\n",
        b" ",
        b"\xef\xbb\xbf",
        b"\xef",
        b"\xbb",
        b"\xe2\x80\xa8",
        b"\xc2\x85",
        b"\x0c",
        b"\0",
    ]
) | st.binary(max_size=6)


def oracle(data: bytes) -> list[bytes]:
    """The slow and obvious way."""
    data = data.removeprefix(BOM)
    lines = data.split(b"\n")
    return lines if lines[-1] else lines[:-1]


@st.composite
def chunked(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    data = b"".join(draw(st.lists(PIECES, max_size=40)))
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=12)))
    edges = [0, *cuts, len(data)]
    return data, [data[a:b] for a, b in itertools.pairwise(edges)]  # empty chunks too


@given(chunked())
@settings(max_examples=500, deadline=None)
def test_any_bytes_in_any_chunks_split_as_the_oracle_says(case: tuple[bytes, list[bytes]]) -> None:
    data, chunks = case
    assert [line for block in split_lines(chunks) for line in block] == oracle(data)
    assert count_lines(chunks) == sum(1 for line in oracle(data) if line.strip(b" \t\r"))


def test_a_line_of_many_chunks_is_joined_once() -> None:
    chunks = [b"x" * 1000] * 20_000
    (lines,) = split_lines(chunks)
    assert lines == [b"x" * 20_000_000]
