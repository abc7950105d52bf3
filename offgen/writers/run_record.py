"""run.json: whose output this is. Written whole, by rename, at the start of a run and at the end of the job."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from offgen.writers.disk import Disk

VERSION = 1


@dataclass(slots=True)
class RunRecord:
    """What run.json holds.

    fingerprint   what must be the same for the job to go on
    run           what the job says of itself (model, prompt, sampling in force, …); of the last run
    runs          one entry for each run: when it started, where, as which process
    output        the output's options, for verify and report
    replaces      a file of that name was there and may be replaced at the end
    was_finished  it has been finished once, and what the state folder kept of its shards may be gone
    finished      None until all is written; then rows, and the file's seal for a single-file output
    """

    fingerprint: dict[str, Any]
    run: dict[str, Any] = field(default_factory=dict)
    runs: list[dict[str, Any]] = field(default_factory=list)
    output: dict[str, Any] = field(default_factory=dict)
    replaces: bool = False
    was_finished: bool = False
    finished: dict[str, Any] | None = None
    version: int = VERSION

    @property
    def job(self) -> str:
        return job_digest(self.fingerprint)

    def begin_run(self, run: dict[str, Any]) -> None:
        self.run = run
        now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        self.runs.append({"started": now, "host": socket.gethostname(), "pid": os.getpid()})

    def save(self, disk: Disk, path: Path) -> None:
        text = json.dumps(asdict(self), ensure_ascii=False, indent=2, default=str)
        disk.write_whole(path, text.encode("utf-8", "replace") + b"\n")


def load_record(path: Path) -> RunRecord | None:
    """None if there is none that can be read."""
    try:
        data = json.loads(path.read_bytes())
        record = RunRecord(**{name: data[name] for name in RunRecord.__slots__})
    except (OSError, ValueError, KeyError, TypeError):
        return None
    is_sound = isinstance(record.fingerprint, dict) and isinstance(record.runs, list)
    return record if is_sound and record.version == VERSION else None


def job_digest(fingerprint: dict[str, Any]) -> str:
    """A short name for a fingerprint."""
    text = json.dumps(fingerprint, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def plain(fingerprint: dict[str, Any]) -> dict[str, Any]:
    """The fingerprint as it comes back from JSON: tuples are lists, keys are strings."""
    return dict(json.loads(json.dumps(fingerprint, default=str)))


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What differs between two fingerprints, as `key: before -> now`."""
    old, new = _flat(before), _flat(now)
    changed = [key for key in {**old, **new} if old.get(key, _ABSENT) != new.get(key, _ABSENT)]
    return [f"{key}: {_shown(old.get(key, _ABSENT))} -> {_shown(new.get(key, _ABSENT))}" for key in changed]


_ABSENT = object()


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _shown(value: Any) -> str:
    if value is _ABSENT:
        return "(absent)"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
