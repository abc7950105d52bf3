"""JSON Lines: one object a line, cut at 0x0A only; a line that is not one is a row with an error, and reading goes on.

Knows neither where the bytes come from nor how values become columns.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

import pyarrow as pa

from offgen.readers.json_columns import ColumnBuilder, Record, without_surrogates
from offgen.readers.lines import BLANK, count_lines, split_lines
from offgen.readers.source import MAX_BATCH_BYTES, MAX_BATCH_ROWS, Piece, opening, reading
from offgen.readers.splits import Selection, Wanted

SAMPLE_ROWS = 1000  # the schema is known from this many rows
_SAMPLE_BYTES = 64 << 20  # or from this many bytes of them
_MAX_DEPTH = 100  # deeper JSON breaks the recursion of those who read it later

Parse = Callable[[bytes], Record]

_scan: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
_NOTHING: Record = {}


class BadLine(Exception):
    """Why a line is no row."""


class JsonlSource:
    """Rows of a JSONL file or stream.

    open_chunks   gives the bytes, decompressed, each time it is called
    parse         one line -> one record; raises BadLine
    open_head     gives bytes to learn the schema from, if the stream can be read only once
    is_head_all   whether that is the whole stream
    is_live       a stream that should be answered as it comes: rows are not held back to fill a batch
    """

    def __init__(
        self,
        name: str,
        open_chunks: Callable[[], Iterator[bytes]],
        fingerprint: Callable[[], dict[str, Any]],
        *,
        parse: Parse | None = None,
        open_head: Callable[[], Iterator[bytes]] | None = None,
        is_head_all: bool = True,
        is_live: bool = False,
    ) -> None:
        self.name = name
        self.schema = pa.schema([])
        self.num_rows: int | None = None
        self._open_chunks = open_chunks
        self._fingerprint = fingerprint
        self._parse = parse or parse_object
        self._open_head = open_head or open_chunks
        self._is_head_all = is_head_all
        self._is_live = is_live

    def fingerprint(self) -> dict[str, Any]:
        with opening(self.name, "JSONL"):
            return self._fingerprint()

    def count_rows(self) -> int:
        if self.num_rows is None:
            with reading(self.name):
                self.num_rows = count_lines(self._open_chunks())
        return self.num_rows

    def sample(self, known: pa.Schema, num_rows: int = SAMPLE_ROWS) -> int:
        """Learn `schema`, on top of `known`, from up to `num_rows` first rows; returns how many there were."""
        builder = ColumnBuilder(known)
        num_seen = num_bytes = 0
        with opening(self.name, "JSONL"):
            wanted = Wanted(Selection(limit=num_rows), lambda row_id: False)
            counts = _Counts()
            for lines in self._batches(self._open_head(), 0, wanted, counts):
                builder.build([record for record, _ in self._records(lines)])
                num_seen += len(lines)
                num_bytes += sum(len(line) for _, _, line in lines)
                if num_seen >= num_rows or num_bytes >= _SAMPLE_BYTES:
                    break
            else:
                if counts.is_whole and self._is_head_all:
                    self.num_rows = counts.rows
        self.schema = builder.schema
        return num_seen

    def first_record(self) -> Record | None:
        """The first line that is a record, for telling what kind of file this is."""
        with opening(self.name, "JSONL"):
            for lines in self._batches(
                self._open_head(), 0, Wanted(Selection(limit=10), lambda row_id: False), _Counts()
            ):
                for record, error in self._records(lines):
                    if error is None:
                        return record
        return None

    def with_parse(self, parse: Parse) -> JsonlSource:
        """The same lines, read by another `parse`."""
        return JsonlSource(
            self.name,
            self._open_chunks,
            self._fingerprint,
            parse=parse,
            open_head=self._open_head,
            is_head_all=self._is_head_all,
            is_live=self._is_live,
        )

    def pieces(self, first_row_id: int, wanted: Wanted, known: pa.Schema) -> Generator[Piece, None, int]:
        builder = ColumnBuilder(known)
        counts = _Counts()
        with reading(self.name):
            for lines in self._batches(self._open_chunks(), first_row_id, wanted, counts):
                yield self._piece(lines, builder)
        if counts.is_whole:
            self.num_rows = counts.rows
        return counts.rows

    def _batches(
        self, chunks: Iterator[bytes], first_row_id: int, wanted: Wanted, counts: _Counts
    ) -> Iterator[list[tuple[int, int, bytes]]]:
        """Batches of (row id, line number, line) for the wanted rows; keeps `counts`."""
        lines: list[tuple[int, int, bytes]] = []
        row_id, number, num_bytes = first_row_id, 0, 0
        for block in split_lines(chunks):
            for line in block:
                number += 1
                if not line.strip(BLANK):
                    continue
                if wanted(row_id):
                    lines.append((row_id, number, line))
                    num_bytes += len(line)
                    if len(lines) >= MAX_BATCH_ROWS or num_bytes >= MAX_BATCH_BYTES:
                        counts.rows = row_id + 1 - first_row_id
                        yield lines
                        lines, num_bytes = [], 0
                row_id += 1
            counts.rows = row_id - first_row_id
            if lines and self._is_live:
                yield lines
                lines, num_bytes = [], 0
            if wanted.is_past(row_id):
                break
        else:
            counts.is_whole = True
        if lines:
            yield lines

    def _piece(self, lines: list[tuple[int, int, bytes]], builder: ColumnBuilder) -> Piece:
        records: list[Record] = []
        errors: dict[int, str] = {}
        for i, (record, error) in enumerate(self._records(lines)):
            records.append(record)
            if error is not None:
                errors[i] = error
        batch = builder.build(records)
        return Piece([line[0] for line in lines], batch, [line[1] for line in lines], records, errors)

    def _records(self, lines: Iterable[tuple[int, int, bytes]]) -> Iterator[tuple[Record, str | None]]:
        for _, _, line in lines:
            try:
                yield self._parse(line), None
            except BadLine as problem:
                yield _NOTHING, str(problem)


class _Counts:
    """How far a pass over the lines has come. Written by `_batches` alone."""

    def __init__(self) -> None:
        self.rows = 0
        self.is_whole = False


def parse_object(line: bytes) -> Record:
    """One line as a JSON object. Duplicate keys: the last wins. NaN and Infinity are taken, as Python writes them."""
    try:
        text = line.decode("utf-8")
        value, end = _scan(text, len(text) - len(text.lstrip(" \t\r")) if text[0] in " \t\r" else 0)
        if end != len(text) and text[end:].strip(" \t\r"):
            raise BadLine(f"not valid JSON: text after the end of the value (column {end + 1})")
    except UnicodeDecodeError as problem:
        raise BadLine(f"not valid UTF-8 (byte {problem.start + 1})") from None
    except StopIteration as problem:
        raise BadLine(f"not valid JSON: a value is missing (column {problem.value + 1})") from None
    except json.JSONDecodeError as problem:
        raise BadLine(f"not valid JSON: {problem.msg} (column {problem.pos + 1})") from None
    except RecursionError:
        raise BadLine(f"JSON nested more than {_MAX_DEPTH} levels deep") from None
    except ValueError as problem:  # an integer of thousands of digits
        raise BadLine(f"not valid JSON: {problem}") from None
    if not isinstance(value, dict):
        raise BadLine(f"not a JSON object but {_kind(value)}")
    if b"\\ud" in line or b"\\uD" in line:
        value = without_surrogates(value)
    if line.count(b"[") + line.count(b"{") > _MAX_DEPTH and _is_too_deep(value):
        raise BadLine(f"JSON nested more than {_MAX_DEPTH} levels deep")
    record: Record = value
    return record


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    names = {list: "a list", str: "a string", bool: "a boolean"}
    return names.get(type(value), "a number")


def _is_too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(_MAX_DEPTH):
        level = [
            inner
            for item in level
            if isinstance(item, dict | list)
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return False
    return True
