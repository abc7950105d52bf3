"""Chunks of bytes into lines, cut at 0x0A and nowhere else.

Text with U+2028, U+0085, form feeds or lone carriage returns inside a record stays whole, wherever the chunks were cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

BOM = b"\xef\xbb\xbf"
BLANK = b" \t\r"  # a line of nothing else is no row


def split_lines(chunks: Iterable[bytes]) -> Iterator[list[bytes]]:
    """The lines that each chunk completes, without their 0x0A; a last line may lack it; a leading BOM is dropped.

    Memory: one chunk and one line, however long; each byte is copied at most twice.
    """
    tail: list[bytes] = []
    is_start = True
    for chunk in chunks:
        lines = chunk.split(b"\n")
        tail.append(lines[0])
        if len(lines) == 1:
            continue
        lines[0] = b"".join(tail)
        tail = [lines.pop()]
        if is_start:
            lines[0] = lines[0].removeprefix(BOM)
            is_start = False
        yield lines
    last = b"".join(tail)
    if is_start:
        last = last.removeprefix(BOM)
    if last:
        yield [last]


def count_lines(chunks: Iterable[bytes]) -> int:
    """How many lines are not blank."""
    return sum(1 for lines in split_lines(chunks) for line in lines if line.strip(BLANK))
