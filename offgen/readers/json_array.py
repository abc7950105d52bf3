"""A JSON file that is one array of objects, taken apart as it streams. Knows nothing of columns."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Iterator

from offgen.readers.lines import BOM

_SPACE = " \t\r\n"
_MAX_ELEMENT_CHARS = 256 << 20  # a longer element is taken for broken JSON, which no later text can mend

_scan = json.JSONDecoder().raw_decode


def starts_array(head: bytes) -> bool:
    """Whether the first bytes of a `.json` file open an array rather than a line of JSONL."""
    return head.removeprefix(BOM).lstrip(_SPACE.encode())[:1] == b"["


def array_to_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Rewrites `[{…}, {…}]` as JSON lines, one element a line (line breaks inside an element become spaces).

    Raises ValueError where the text is not such an array; it then has no place to go on from.
    """
    text = _Text(chunks)
    text.expect("[")
    if text.peek() == "]":
        text.expect("]")
    else:
        is_more = True
        while is_more:
            yield text.element().translate(_NO_BREAKS).encode() + b"\n"
            is_more = text.peek() == ","
            text.expect("," if is_more else "]")
    if text.peek():
        raise ValueError("there is text after the end of the JSON array")


_NO_BREAKS = str.maketrans("\r\n", "  ")


class _Text:
    """The rest of the text: what is not consumed yet, and more on demand."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._text = ""
        self._start = 0

    def peek(self) -> str:
        """The next character that is not white space; empty at the end."""
        while True:
            rest = len(self._text) - self._start
            stripped = self._text[self._start : self._start + 64].lstrip(_SPACE)
            if stripped:
                self._start += min(64, rest) - len(stripped)
                return stripped[0]
            self._start += min(64, rest)
            if self._start >= len(self._text) and not self._more(1):
                return ""

    def expect(self, character: str) -> None:
        if self.peek() != character:
            found = self.peek()
            raise ValueError(f"not a JSON array: `{character}` expected, found {f'`{found}`' if found else 'the end'}")
        self._start += 1

    def element(self) -> str:
        self.peek()
        while True:
            problem = "the array is cut off"
            try:
                end = _scan(self._text, self._start)[1]
                if end < len(self._text):  # a number could go on otherwise
                    element = self._text[self._start : end]
                    self._start = end
                    return element
            except json.JSONDecodeError as error:
                problem = error.msg
            except (StopIteration, RecursionError):
                problem = "a value is missing"
            size = len(self._text) - self._start
            if size > _MAX_ELEMENT_CHARS or not self._more(size):  # doubles, so that retries stay linear
                raise ValueError(f"not a JSON array: {problem}")

    def _more(self, num_chars: int) -> bool:
        """Take in at least so many more characters, if there are; False at the end of the file."""
        parts = [self._text[self._start :]]
        size = 0
        for chunk in self._chunks:
            parts.append(self._decoder.decode(chunk))
            size += len(parts[-1])
            if size >= max(1, num_chars):
                break
        else:
            parts.append(self._decoder.decode(b"", final=True))
        self._text, self._start = "".join(parts), 0
        return size > 0
