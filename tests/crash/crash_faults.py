"""Disks that fail at a chosen operation: they kill the process, lose what was not fsynced, or raise."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NoReturn

from offgen.writers.disk import Disk

KILLED = 99


class KillingDisk(Disk):
    """Dies at operation number `kill_at`. A write is half done when it dies; `loses` drops what was not fsynced too."""

    def __init__(self, kill_at: int, *, loses: bool = False) -> None:
        self.num_operations = 0
        self._kill_at = kill_at
        self._loses = loses
        self._files: dict[int, list[int]] = {}  # inode -> [our own descriptor, bytes that are safe]

    def before(self, operation: str, path: Path) -> None:
        self.num_operations += 1
        if self.num_operations == self._kill_at and operation != "write":
            self._die()

    def write(self, fd: int, data: memoryview, path: Path) -> None:
        self.num_operations += 1
        if self.num_operations == self._kill_at:
            os.write(fd, data[: len(data) // 2])
            self._die()
        inode = os.fstat(fd).st_ino
        if inode not in self._files:
            self._files[inode] = [os.dup(fd), os.fstat(fd).st_size]
        while data:
            data = data[os.write(fd, data) :]

    def sync(self, fd: int, path: Path) -> None:
        super().sync(fd, path)
        status = os.fstat(fd)
        if status.st_ino in self._files:
            self._files[status.st_ino][1] = status.st_size

    def _die(self) -> NoReturn:
        if self._loses:
            for fd, safe_size in self._files.values():
                if os.fstat(fd).st_size > safe_size:
                    os.ftruncate(fd, safe_size)
        os._exit(KILLED)


class FailingDisk(Disk):
    """Raises an OSError at operation number `fail_at` and at every one after it, as a full disk does."""

    def __init__(self, fail_at: int, code: int = errno.ENOSPC, *, only: tuple[str, ...] = ()) -> None:
        self.num_operations = 0
        self._fail_at = fail_at
        self._code = code
        self._only = only

    def before(self, operation: str, path: Path) -> None:
        if self._only and operation not in self._only:
            return
        self.num_operations += 1
        if self.num_operations >= self._fail_at and operation != "remove":
            raise OSError(self._code, os.strerror(self._code), str(path))
