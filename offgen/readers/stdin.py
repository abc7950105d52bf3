"""JSON lines from a pipe, which can be read once. Kept in a spool folder, if there is one, so that a resume can go on.

Knows bytes and files; knows no record.
"""

from __future__ import annotations

import hashlib
import io
import os
import select
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from offgen.errors import JobError, UsageError

_HEAD_BYTES = 1 << 20  # what identifies a stream: its first MiB
_CHUNK_BYTES = 1 << 16
_PATIENCE_S = 0.2  # a pipe that says nothing for as long is slow: what it has said is answered


class StreamSpool:
    """The bytes of one pipe, readable as often as needed if they are spooled, else once.

    The head is read at once and held: a MiB, or without a spool folder what a slow pipe has said. The rest is read
    when `chunks` is first asked for; with a spool folder it is then drained into `stdin-<hash of head>.jsonl` there
    as fast as it comes (under a temporary name until the pipe has ended), so that a job that is killed later has its
    whole input on disk. If that file is there already, it is read instead and the pipe is left alone. An empty pipe
    stands for the one stream spooled there: a resume need not feed it again.
    """

    def __init__(self, stream: BinaryIO, spool_dir: Path | None, *, is_kept_anyway: bool = False) -> None:
        self._stream = stream
        if spool_dir is None and is_kept_anyway:  # until the process ends
            self._folder = tempfile.TemporaryDirectory(prefix="offgen-")
            spool_dir = Path(self._folder.name)
        self._is_used_up = False
        self._drain: _Drain | None = None
        spooled = sorted(spool_dir.glob("stdin-*.jsonl")) if spool_dir is not None else []
        if stream.isatty() and len(spooled) != 1:
            raise UsageError("the standard input is a terminal", hint="cat prompts.jsonl | offgen run - …")
        is_patient = spool_dir is not None  # the head then names the stream, and must not depend on its speed
        self._head, self._is_all_head = (b"", True) if stream.isatty() else self._read_head(is_patient=is_patient)
        if not self._head and len(spooled) == 1:
            with spooled[0].open("rb") as file:
                self._head = file.read(_HEAD_BYTES)
        self._hash = hashlib.blake2b(self._head[:_HEAD_BYTES], digest_size=16).hexdigest()
        self._spool = None if spool_dir is None else spool_dir / f"stdin-{self._hash[:16]}.jsonl"

    def fingerprint(self) -> dict[str, Any]:
        return {"file": "-", "head_hash": self._hash}

    @property
    def is_head_all(self) -> bool:
        """Whether `head` gives the whole stream."""
        return self._is_all_head or self._is_spooled

    def head(self) -> Iterator[bytes]:
        """The first lines, about a MiB of them (or all that is known); can be asked for again and again."""
        if self._is_spooled:
            yield from self.chunks()
        elif self._is_all_head:
            yield self._head
        else:
            yield self._head[: self._head.rindex(b"\n") + 1]

    def chunks(self) -> Iterator[bytes]:
        """The whole stream from its start."""
        if self._spool is not None:
            if not self._is_spooled:
                yield from self._draining(self._spool)
                return
            with self._spool.open("rb") as file:
                while chunk := file.read(_CHUNK_BYTES):
                    yield chunk
            return
        if self._is_used_up and not self._is_all_head:
            raise JobError("the standard input can be read only once", hint="give a file instead of `-`")
        self._is_used_up = True
        yield self._head
        while chunk := self._read():
            yield chunk

    @property
    def _is_spooled(self) -> bool:
        return self._spool is not None and self._spool.exists()

    def _draining(self, spool: Path) -> Iterator[bytes]:
        if self._drain is None:
            spool.parent.mkdir(parents=True, exist_ok=True)
            part = spool.with_suffix(".part")
            part.write_bytes(self._head)
            self._drain = _Drain(self._read, part, spool, len(self._head))
            threading.Thread(target=self._drain.run, name="stdin", daemon=True).start()
        with self._drain.open() as file:
            num_read = 0
            while num_bytes := self._drain.wait_beyond(num_read):
                chunk = file.read(min(_CHUNK_BYTES, num_bytes - num_read))
                num_read += len(chunk)
                yield chunk

    def _read_head(self, *, is_patient: bool) -> tuple[bytes, bool]:
        """At least one whole line, and whether the stream ended with it."""
        head = bytearray()
        while chunk := self._read():
            head += chunk
            is_enough = len(head) >= _HEAD_BYTES or not (is_patient or self._has_more())
            if is_enough and b"\n" in head:
                return bytes(head), False
        return bytes(head), True

    def _has_more(self) -> bool:
        """Whether there is more to read at once, or soon."""
        try:
            return bool(select.select([self._stream.fileno()], [], [], _PATIENCE_S)[0])
        except (OSError, ValueError, AttributeError):  # no pipe
            return True

    def _read(self) -> bytes:
        try:
            number = self._stream.fileno()
        except (io.UnsupportedOperation, AttributeError):
            return self._stream.read(_CHUNK_BYTES)
        return os.read(number, _CHUNK_BYTES)  # not by the stream: its lock would hang the exit while the thread waits


class _Drain:
    """Moves the rest of the pipe to the spool file. `run` alone writes the fields, in its thread; the reader waits."""

    def __init__(self, read: Any, part: Path, spool: Path, num_bytes: int) -> None:
        self._read = read
        self._part = part
        self._spool = spool
        self._changed = threading.Condition()
        self._num_bytes = num_bytes
        self._has_ended = False
        self._problem: OSError | None = None

    def run(self) -> None:
        try:
            with self._part.open("ab", buffering=0) as file:
                while chunk := self._read():
                    file.write(chunk)
                    with self._changed:
                        self._num_bytes += len(chunk)
                        self._changed.notify()
                os.fsync(file.fileno())
            self._part.replace(self._spool)
        except OSError as problem:
            self._problem = problem
        finally:
            with self._changed:
                self._has_ended = True
                self._changed.notify()

    def open(self) -> BinaryIO:
        """The file, which stays the same when it gets its final name."""
        try:
            return self._part.open("rb")
        except FileNotFoundError:
            return self._spool.open("rb")

    def wait_beyond(self, num_read: int) -> int:
        """How many bytes lie in the file, once they are more than `num_read`; 0 if there will be no more."""
        with self._changed:
            self._changed.wait_for(lambda: self._num_bytes > num_read or self._has_ended)
        if self._num_bytes > num_read:
            return self._num_bytes
        if self._problem is not None:
            raise JobError(f"the standard input could not be kept in {self._part.parent}: {self._problem}")
        return 0
