"""What scheduling costs: pure Python, one core, no model. Prints JSON lines.

    python benchmarks/scheduler_cost.py [--rows 256] [--steps 2000] [--requests 100000]

`steady_decode`  schedule() + update() with all seats decoding; rows cross block edges at different steps
`churn`          the same while rows end and others start, lengths log-normal with a mean of 100
`simulation`     a whole simulated job of `--requests` rows
The aim is under 3 microseconds per running request and step, and 100,000 rows of 100 tokens in under 60 s.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from time import perf_counter

from offgen.scheduling import Request, Scheduler, SchedulerConfig
from offgen.scheduling.cost_model import CostModel
from offgen.scheduling.simulate import simulate
from offgen.scheduling.workload import SimulatedRow, read_workload


def steady_decode(num_rows: int, num_steps: int) -> float:
    """Microseconds per running request and step."""
    length = num_steps + 400
    config = SchedulerConfig(
        max_num_seqs=num_rows, max_model_len=length, num_blocks=num_rows * (length // 16 + 1), steps_ahead=0
    )
    scheduler = Scheduler(config)
    for request_id in range(num_rows):
        scheduler.add(
            Request(request_id, [request_id] * (10 + request_id % 80), max_tokens=length - 100, stop_ids=frozenset([2]))
        )
    while True:
        batch = scheduler.schedule()
        assert batch is not None
        if not batch.chunks:
            break
        scheduler.update(batch, [5] * (sum(chunk.samples for chunk in batch.chunks) + len(batch.decode_seats)))
    ids = [5] * num_rows
    scheduler.update(batch, ids)
    started = perf_counter()
    for _ in range(num_steps):
        batch = scheduler.schedule()
        assert batch is not None
        scheduler.update(batch, ids)
    return (perf_counter() - started) / num_steps / num_rows * 1e6


def job(rows: list[SimulatedRow], max_num_seqs: int) -> tuple[float, float]:
    """Seconds of a simulated job, and microseconds per token."""
    length = max(len(row.prompt_ids) + row.max_tokens for row in rows)
    config = SchedulerConfig(
        max_num_seqs=max_num_seqs, max_model_len=length, num_blocks=max_num_seqs * (length // 16 + 1)
    )
    started = perf_counter()
    result = simulate(rows, config, CostModel())
    seconds = perf_counter() - started
    return seconds, seconds / result.completion_tokens * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--requests", type=int, default=100_000)
    options = parser.parse_args()
    machine = {"python": platform.python_version(), "machine": platform.machine(), "rows": options.rows}

    def tell(what: str, **values: float) -> None:
        print(json.dumps({"benchmark": what, **machine, **{k: round(v, 4) for k, v in values.items()}}), flush=True)

    tell("steady_decode", us_per_row_and_step=min(steady_decode(options.rows, options.steps) for _ in range(3)))
    lognormal = "lognormal:n={n},median=64,sigma=0.94,max=2048,prompt=100"
    seconds, per_token = job(read_workload(lognormal.format(n=5000)), options.rows)
    tell("churn", us_per_token=per_token)
    if options.requests:
        seconds, per_token = job(read_workload(lognormal.format(n=options.requests)), options.rows)
        tell("simulation", requests=options.requests, seconds=seconds, us_per_token=per_token)


if __name__ == "__main__":
    sys.exit(main())
