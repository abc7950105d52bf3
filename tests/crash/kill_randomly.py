"""Kills one running job at random times, resuming it each time, and compares with a run that nothing disturbed.

A program of its own. Each run is a process that SIGKILL ends; what was durable by then may not be run again.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from crash_jobs import Scenario, result, rows_of
from kill_everywhere import in_child

from offgen.engine.echo import EchoEngine, echo_prompts
from offgen.records import Completion
from offgen.sampling.params import SamplingParams
from offgen.writers import OutputOptions, open_output

NUM_ROWS = 2000
SEED = 1
SCENARIO = Scenario("random", "out/", OutputOptions(rows_per_shard=300, flush_interval_s=0.05))


def batches() -> list:
    import pyarrow as pa

    table = pa.table({"prompt": [f"prompt {place}" for place in range(NUM_ROWS)]})
    return list(table.to_batches(max_chunksize=100))


def shuffled_a_little(completions: Iterator[Completion]) -> Iterator[Completion]:
    """Rows finish out of order, within a window, as in an engine."""
    window: list[Completion] = []
    rng = random.Random(SEED)
    for completion in completions:
        window.append(completion)
        if len(window) > 64:
            yield window.pop(rng.randrange(len(window)))
    yield from window


def run(scenario: Scenario, folder: Path, rows_per_s: float | None = None) -> None:
    output = open_output(f"{folder}/{scenario.target}", scenario.options, scenario.batches()[0].schema)
    state = output.start(fingerprint={"job": "kills"}, run={}, overwrite=False, resume=True, retry_errors=False)
    if state.is_finished:
        output.finish()
        return
    rows = (row for row in rows_of(scenario) if not output.is_done(row.row_id))
    prompts = echo_prompts(rows, column="prompt", params=SamplingParams())
    for completion in shuffled_a_little(EchoEngine(rows_per_s=rows_per_s).generate(prompts)):
        output.write(completion)
    output.end_of_input(NUM_ROWS)
    output.finish()


def killed(scenario: Scenario, folder: Path, after_s: float) -> bool:
    """Run in a process of its own and kill it after a while; False if it was done by then."""
    pid = os.fork()
    if pid == 0:
        try:
            run(scenario, folder, rows_per_s=1500)
        finally:
            os._exit(0)
    time.sleep(after_s)
    ended, _ = os.waitpid(pid, os.WNOHANG)
    if ended:
        return False
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return True


def main(num_kills: int) -> int:
    rng = random.Random(SEED)
    base = Path(tempfile.mkdtemp())
    for target in ("out/", "out.parquet"):
        scenario = replace(SCENARIO, target=target, batches=batches)
        clean = base / f"clean-{target.strip('/')}"
        clean.mkdir()
        run(scenario, clean)
        count = attempt = 0
        while count < num_kills:
            folder = base / f"{attempt}-{target.strip('/')}"
            folder.mkdir(exist_ok=True)
            if killed(scenario, folder, rng.uniform(0.02, 0.5)):
                count += 1
                continue
            assert in_child(lambda at=folder, job=scenario, good=clean: compare(job, at, good)) == 0
            attempt += 1
        assert in_child(lambda job=scenario, at=folder: run(job, at)) == 0
        assert in_child(lambda at=folder, job=scenario, good=clean: compare(job, at, good)) == 0
        print(f"{target}: {count} kills over {attempt + 1} jobs", flush=True)
    return 0


def compare(scenario: Scenario, folder: Path, clean: Path) -> None:
    assert result(scenario, folder) == result(scenario, clean)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
