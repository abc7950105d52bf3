"""Every operation that changes the disk, in one place.

Knows paths and bytes; knows neither rows nor formats. A fault becomes a JobError that names the path. Tests replace
`Disk` by one that dies, or runs out of space, at a chosen operation.
"""

from __future__ import annotations

import contextlib
import errno
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

from offgen.errors import JobError

_HINTS = {
    errno.ENOSPC: "free some space and run the same command again; it goes on where this one stopped",
    errno.EDQUOT: "the quota is used up; free some space and run the same command again",
    errno.EFBIG: "a file may not grow this large here (ulimit -f, or the file system)",
    errno.EROFS: "the file system is read-only; once it can be written to, run the same command again",
    errno.EACCES: "the folder must be writable; then run the same command again",
}
# a folder that can never be made there, by whatever name: a wrong command, not a fault on the way
NO_PLACE = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP}
)
_HELD_BYTES = 256 << 10
_RESUME = "everything that had finished before is safe; run the same command again to go on"


def disk_error(problem: OSError, path: Path) -> JobError:
    """The fault of one disk operation, as what stops the job."""
    reason = problem.strerror or str(problem)
    return JobError(f"{path}: {reason}", hint=_HINTS.get(problem.errno or 0, _RESUME))


@contextlib.contextmanager
def faults_of(path: Path) -> Iterator[None]:
    """Turn an OSError inside into a JobError that names `path`."""
    try:
        yield
    except OSError as problem:
        raise disk_error(problem, path) from problem


class Disk:
    """The real disk. `before` is called ahead of every operation; subclasses in tests die or fail there."""

    def before(self, operation: str, path: Path) -> None:
        """Nothing, on the real disk."""

    def write(self, fd: int, data: memoryview, path: Path) -> None:
        """Write all of `data`."""
        self.before("write", path)
        while data:
            data = data[os.write(fd, data) :]

    def sync(self, fd: int, path: Path) -> None:
        self.before("fsync", path)
        os.fsync(fd)

    def create(self, path: Path) -> DiskFile:
        """A new empty file, in place of one left over."""
        return self._open(path, os.O_CREAT | os.O_TRUNC, "create")

    def append(self, path: Path) -> DiskFile:
        """The file, opened for writing at its end; made if absent."""
        return self._open(path, os.O_CREAT | os.O_APPEND, "append")

    def _open(self, path: Path, flags: int, operation: str) -> DiskFile:
        with faults_of(path):
            self.before(operation, path)
            fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | flags, 0o666)
        return DiskFile(self, fd, path)

    def make_folder(self, path: Path) -> None:
        """The folder and those above it; durable once this returns."""
        with faults_of(path):
            missing = [folder for folder in (path, *path.parents) if not folder.exists()]
            for folder in reversed(missing):
                self.before("mkdir", folder)
                folder.mkdir(exist_ok=True)
                self.sync_folder(folder.parent)

    def sync_folder(self, path: Path) -> None:
        with faults_of(path):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
            try:
                self.sync(fd, path)
            except OSError as problem:
                if problem.errno not in {errno.EINVAL, errno.ENOTSUP}:  # some network file systems cannot
                    raise
            finally:
                os.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        """Put `source` in `target`'s place, at once and durably."""
        with faults_of(target):
            self.before("rename", target)
            source.replace(target)
        self.sync_folder(target.parent)
        if source.parent != target.parent:
            self.sync_folder(source.parent)

    def remove(self, path: Path) -> None:
        """Remove a file; one that is not there is fine."""
        with faults_of(path):
            self.before("remove", path)
            path.unlink(missing_ok=True)

    def remove_folder(self, path: Path) -> None:
        """Remove a folder if it is empty."""
        with contextlib.suppress(OSError):
            self.before("rmdir", path)
            path.rmdir()

    def truncate(self, path: Path, size: int) -> None:
        with faults_of(path):
            self.before("truncate", path)
            os.truncate(path, size)

    def write_whole(self, path: Path, data: bytes) -> None:
        """Make or replace a small file: it is there whole, or as it was."""
        temporary = temporary_of(path)
        with self.create(temporary) as file:
            file.write(data)
            file.sync()
        self.rename(temporary, path)


def temporary_of(path: Path) -> Path:
    """Where a file is written until it takes its name; readers of folders skip names with a dot in front."""
    return path.with_name(f".{path.name}.tmp")


class DiskFile:
    """A file being written, front to back. Also the sink of pyarrow's writers, for their many small writes."""

    def __init__(self, disk: Disk, fd: int, path: Path) -> None:
        self.path = path
        self.size = 0  # bytes written here
        self.crc = 0  # crc32 of them
        self._disk = disk
        self._fd = fd
        self._held = bytearray()  # written here, but not to the disk yet
        self._is_broken = False

    def __enter__(self) -> DiskFile:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        return self._fd < 0

    def write(self, data: bytes | memoryview) -> int:
        """Hold or write `data`; on the disk after `push`, `sync` or `close`."""
        view = memoryview(data).cast("B")
        self.crc = zlib.crc32(view, self.crc)
        self.size += len(view)
        if len(self._held) + len(view) < _HELD_BYTES:
            self._held += view
        else:
            self.push()
            self._put(view)
        return len(view)

    def push(self) -> None:
        """Hand all that is held to the system: it survives the death of this process from here on."""
        if self._held:
            held, self._held = self._held, bytearray()
            self._put(memoryview(held))

    def _put(self, view: memoryview) -> None:
        if self._is_broken:  # a writer of a format that tries to end its file after a fault
            raise JobError(f"{self.path}: the file could not be written")
        try:
            self._disk.write(self._fd, view, self.path)
        except OSError as problem:
            self._is_broken = True
            raise disk_error(problem, self.path) from problem

    def sync(self) -> None:
        self.push()
        with faults_of(self.path):
            self._disk.sync(self._fd, self.path)

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        """What pyarrow calls; nothing needs to be on the disk then."""

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        if self._fd >= 0:
            try:
                if not self._is_broken:
                    self.push()
            finally:
                fd, self._fd = self._fd, -1
                with faults_of(self.path):
                    os.close(fd)
