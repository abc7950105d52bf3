"""Whose output is it: what lies at the target, and what may be done with it.

Nothing is written while anything is refused. Only what offgen owns is ever deleted.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from offgen.errors import UsageError
from offgen.writers.commits import CommitLog
from offgen.writers.disk import Disk
from offgen.writers.journal import read_journal
from offgen.writers.layout import SUCCESS, Layout, is_part, is_temporary
from offgen.writers.run_record import RunRecord, differences, job_digest, load_record

_STATE_NAMES = ("report.json", "commits.log", "run.json")  # the last one goes last: it says whose the rest is


def check_target(layout: Layout, *, overwrite: bool) -> None:
    """Raise UsageError if something stands there that is not offgen's and would be touched."""
    target = layout.target
    if layout.state_dir.exists() and not layout.state_dir.is_dir():
        raise UsageError(f"{layout.state_dir}: is a file, where the state of the job belongs")
    if layout.is_file:
        if target.exists() and not overwrite and not _has_state(layout):
            raise UsageError(
                f"{target}: is there already, and not from offgen", hint="--overwrite replaces it when the job is done"
            )
        return
    _check_parent(layout)
    if not target.exists() or _has_state(layout):
        return
    foreign = sorted(path.name for path in target.iterdir() if not path.name.startswith(".") and path.name != "_offgen")
    if not foreign:
        return
    in_the_way = [name for name in foreign if is_part(name) or name == SUCCESS or name.startswith("shard-")]
    if in_the_way:
        raise UsageError(
            f"{target}: holds `{in_the_way[0]}`, which is not from this job",
            hint="take another folder, or empty this one: --overwrite deletes only what offgen can tell is its own",
        )
    if not overwrite:
        raise UsageError(
            f"{target}: is not empty, and not from offgen (`{foreign[0]}`)",
            hint="take another folder; --overwrite writes beside what is there",
        )


def _check_parent(layout: Layout) -> None:
    name, parent = layout.target.name, layout.target.parent
    if name.startswith("shard-") and "-of-" in name and (parent / "_offgen" / "run.json").exists():
        raise UsageError(f"{parent}: holds the output of a job without --shard", hint="take another folder")


def _has_state(layout: Layout) -> bool:
    return any((layout.state_dir / name).exists() for name in (*_STATE_NAMES, "journal", "parts"))


def known_record(disk: Disk, layout: Layout, fingerprint: dict[str, Any]) -> RunRecord | None:
    """The record of what lies there, out of commits.log or the journals if run.json is lost; None if nothing does."""
    if not _has_state(layout):
        return None
    _refuse_other_version(layout.run_path)
    record = load_record(layout.run_path)
    if record is not None:
        return record
    head = CommitLog(disk, layout).head()
    if head is not None:
        return RunRecord(head)
    jobs = {read_journal(path).job for found in layout.journals().values() for path in found.values()} - {None}
    if jobs and jobs != {job_digest(fingerprint)}:
        return RunRecord({"job": sorted(str(job) for job in jobs)[0]})
    return RunRecord(fingerprint)


def _refuse_other_version(path: Path) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        version = json.loads(path.read_bytes()).get("version")
        if isinstance(version, int) and version != RunRecord({}).version:
            raise UsageError(
                f"{path}: written by another version of offgen (state version {version})",
                hint="go on with that version, or give another output",
            )


def check_same_job(layout: Layout, record: RunRecord, fingerprint: dict[str, Any]) -> None:
    """Raise UsageError, saying what differs, if the output is another job's."""
    changed = differences(record.fingerprint, fingerprint)
    if changed:
        shown = "\n".join(f"  {line}" for line in changed[:20])
        raise UsageError(
            f"{layout.target}: belongs to another job; what differs:\n{shown}",
            hint="--overwrite discards it and starts this job; or give another output",
        )


def check_visible_file(layout: Layout, record: RunRecord, *, overwrite: bool) -> None:
    """A single file that is there must be the one the record speaks of, or one that may be replaced."""
    if not layout.is_file or overwrite or record.replaces or not layout.target.exists():
        return
    finished = record.finished
    if finished is None or layout.target.stat().st_size != finished["file"]["size"]:
        raise UsageError(
            f"{layout.target}: is not the file this job wrote", hint="--overwrite replaces it when the job is done"
        )


def discard(disk: Disk, layout: Layout, record: RunRecord) -> None:
    """Delete an output and its state, but for the lock. What says whose it is goes last.

    A single file goes only if the job had finished it: until then, what is there is somebody else's, to be replaced.
    """
    if not layout.is_file:
        disk.remove(layout.success_path)
    elif record.finished is not None:
        disk.remove(layout.target)
    for path in [*layout.temporaries(), *_parts(layout)]:
        disk.remove(path)
    for folder in (layout.journal_dir, layout.parts_dir):
        if folder.is_dir():
            for path in folder.iterdir():
                if path.suffix in {".journal", ".arrow"} or is_temporary(path.name):
                    disk.remove(path)
            disk.remove_folder(folder)
    for name in _STATE_NAMES:
        disk.remove(layout.state_dir / name)


def _parts(layout: Layout) -> list[Path]:
    if layout.is_file or not layout.target.is_dir():
        return []
    return [path for path in layout.target.iterdir() if is_part(path.name) and path.is_file()]
