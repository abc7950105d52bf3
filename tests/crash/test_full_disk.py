"""A disk that is full or read-only stops the job with a message; what had finished is safe, and it goes on later."""

from __future__ import annotations

import errno
import resource
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
from crash_faults import FailingDisk
from crash_jobs import SCENARIOS, plain_batches, result, run
from kill_everywhere import in_child

from offgen.errors import JobError

BY_NAME = {one.name: one for one in SCENARIOS}


@pytest.mark.parametrize(
    ("name", "code"),
    [("folder", errno.ENOSPC), ("lines-folder", errno.EIO), ("parquet-file", errno.EDQUOT), ("gzip-file", errno.EROFS)],
)
def test_every_disk_operation_may_fail(name: str, code: int, tmp_path: Path) -> None:
    scenario = replace(BY_NAME[name], retries=False)
    clean = tmp_path / "clean"
    clean.mkdir()
    run(scenario, clean)
    fail_at, step = 1, 8
    while True:
        folder = tmp_path / str(fail_at)
        folder.mkdir()
        try:
            run(scenario, folder, disk=FailingDisk(fail_at, code))
        except JobError as error:
            assert str(folder) in error.message
            assert error.hint is not None
        else:
            break
        run(scenario, folder)
        assert result(scenario, folder) == result(scenario, clean)
        fail_at += step
    assert fail_at > 3 * step


def test_files_may_not_grow_beyond_a_limit(tmp_path: Path) -> None:
    """RLIMIT_FSIZE, in a process of its own."""
    scenario = BY_NAME["folder"]

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))
        with pytest.raises(JobError, match=str(tmp_path)) as caught:
            run(scenario, tmp_path)
        assert "run the same command" in str(caught.value) or "ulimit" in str(caught.value)

    assert in_child(limited) == 0
    run(scenario, tmp_path)
    assert len(plain_batches()) and (tmp_path / "out" / "_SUCCESS").exists()


def test_a_temporary_of_a_failed_commit_is_removed(tmp_path: Path) -> None:
    with pytest.raises(JobError):
        run(BY_NAME["folder"], tmp_path, disk=FailingDisk(1, errno.ENOSPC, only=("rename",)))
    assert not [path for path in (tmp_path / "out").iterdir() if path.name.endswith(".tmp")]
