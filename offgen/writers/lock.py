"""Keeps two jobs out of one output. The system frees the lock when its process dies, however it dies."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from pathlib import Path

from offgen.errors import JobError
from offgen.writers.disk import faults_of


class OutputLock:
    """An flock on a file that says who holds it. Taken by `take`, freed by `free` or the end of the process."""

    def __init__(self, path: Path, output: Path) -> None:
        self._path = path
        self._output = output
        self._fd = -1

    def take(self) -> None:
        """Raises JobError, naming the holder, if another job has it."""
        if self._fd >= 0:
            return
        with faults_of(self._path):
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as problem:
            holder = _described(os.pread(fd, 4096, 0))
            os.close(fd)
            raise JobError(
                f"{self._output}: another job is writing here ({holder})", hint="wait until it ends, or stop it"
            ) from problem
        except OSError:  # a file system without locks
            pass
        self._fd = fd
        started = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        holder_text = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "started": started})
        with faults_of(self._path):
            os.ftruncate(fd, 0)
            os.pwrite(fd, holder_text.encode("utf-8"), 0)

    def free(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _described(content: bytes) -> str:
    try:
        holder = json.loads(content)
        return f"pid {holder['pid']} on {holder['host']}, since {holder['started']}"
    except (ValueError, KeyError, TypeError):
        return "it has not said who it is"
