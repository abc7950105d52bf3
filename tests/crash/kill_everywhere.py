"""Kills one job at every disk operation in turn, resumes it, and compares with a run that nothing disturbed.

A program of its own: it forks a fresh process for every run. Prints one line for each operation that went wrong.
"""

from __future__ import annotations

import mmap
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from crash_faults import KILLED, KillingDisk
from crash_jobs import NUM_ROWS, SCENARIOS, Scenario, result, run

from offgen.records import Completion
from offgen.writers.split_writer import SplitWriter


def in_child(action: Callable[[], object]) -> int:
    """Run it in a process of its own; its exit code."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            action()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Promises:
    """Rows that the writer has called durable, in memory that is shared with the processes that die."""

    def __init__(self) -> None:
        self._marks = mmap.mmap(-1, NUM_ROWS)
        promises, handle = self, SplitWriter.handle

        def watched(writer: SplitWriter, completions: Sequence[Completion], is_due: bool) -> None:
            handle(writer, completions, is_due)
            promises._waiting += [one.row.row_id for one in completions]
            if is_due:
                for row_id in promises._waiting:
                    promises._marks[row_id] = 1

        self._waiting: list[int] = []
        SplitWriter.handle = watched  # type: ignore[method-assign]

    def forget(self) -> None:
        self._marks[:] = bytes(NUM_ROWS)

    def check(self, resume: Callable[[], list[int]]) -> None:
        marks = bytes(self._marks)
        broken = [row_id for row_id in resume() if marks[row_id]]
        assert not broken, f"rows {broken} were durable and were run again"


def disturbed(scenario: Scenario, folder: Path, kills: list[int], promises: Promises, *, loses: bool) -> int | None:
    """The job, killed at each of `kills` in turn and then left alone: None if the last kill came too late to matter."""
    if scenario.retries:
        assert in_child(lambda: run(scenario, folder, is_first=True)) == 0
    promises.forget()
    code = 0
    for kill_at in kills:
        code = in_child(lambda at=kill_at: run(scenario, folder, disk=KillingDisk(at, loses=loses)))
        assert code in {0, KILLED}, f"the job ended with {code}"
    if code == 0:
        return None
    return in_child(lambda: promises.check(lambda: run(scenario, folder)))


def main(name: str, step: int, *, loses: bool) -> int:
    scenario = next(one for one in SCENARIOS if one.name == name)
    memory = Path("/dev/shm")  # an fsync costs nothing there
    base = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
    warm, clean = base / "warm", base / "clean"
    warm.mkdir()
    clean.mkdir()
    run(scenario, warm)  # so that no child has to import and set up pyarrow
    if scenario.retries:
        in_child(lambda: run(scenario, clean, is_first=True))
    assert in_child(lambda: run(scenario, clean)) == 0

    def compare(folder: Path) -> None:
        wanted, found = result(scenario, clean), result(scenario, folder)
        assert found == wanted, f"{found}\n!=\n{wanted}"

    promises = Promises()
    num_wrong, kill_at = 0, 1
    while True:
        folder = base / str(kill_at)
        folder.mkdir()
        kills = [kill_at]
        code = disturbed(scenario, folder, kills, promises, loses=loses)
        if code is None:
            break
        if kill_at % 3 == 0:  # now and then it is killed a second time, on its way back
            kills.append(1 + kill_at // 2)
            shutil.rmtree(folder)
            folder.mkdir()
            code = disturbed(scenario, folder, kills, promises, loses=loses) or 0
        if code != 0 or in_child(lambda at=folder: compare(at)) != 0:
            print(f"{name}: wrong after kills at operations {kills}", flush=True)
            num_wrong += 1
        shutil.rmtree(folder)
        kill_at += step
    print(f"{name}: {kill_at} operations", flush=True)
    shutil.rmtree(base)
    return 1 if num_wrong or kill_at < 20 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), loses="loses" in sys.argv[3:]))
