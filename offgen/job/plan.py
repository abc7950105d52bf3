"""A job before it runs: what its rows are, what will not fit, what memory it takes, how long it may last.

Walks the first half of main street (rows, model, prompts) and loads no weights.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from offgen.config import JobConfig
from offgen.errors import UsageError
from offgen.job.footprint import Footprint, footprint_of
from offgen.job.model_side import choose_model
from offgen.job.rows import input_of, is_live, selection_of
from offgen.records import Prompt
from offgen.scheduling.config import SchedulerConfig
from offgen.scheduling.cost_model import CostModel
from offgen.scheduling.prefix_cache import extend_hashes
from offgen.scheduling.simulate import simulate
from offgen.scheduling.workload import SimulatedRow
from offgen.stats.histogram import LogHistogram

if TYPE_CHECKING:
    from offgen.models import ModelConfig

MAX_EXAMPLES = 10  # rows that are named
MAX_SAMPLE = 300  # prompts that the forecast plays
MAX_HASHES = 2_000_000  # blocks remembered for the shared prefixes: about 250 MB
SHARE_OF_MAX_TOKENS = {"low": 0.1, "expected": 0.4, "high": 1.0}  # how much of --max-tokens rows use
SPEED_ERROR = {"low": 0.75, "expected": 1.0, "high": 1.5}  # how far off a quick measurement of the machine may be
BIN_EDGES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)


def plan_job(config: JobConfig, *, cost: CostModel | None = None) -> dict[str, Any]:
    """Everything `offgen plan` says, JSON-able. `cost` is that of a step; None: measure the machine for a second.

    Raises UsageError for what `offgen run` would refuse.
    """
    if is_live(config):
        raise UsageError("a plan reads its input, and a pipe can be read only once", hint="give a file")
    rows = input_of(config)
    model = choose_model(config, rows)
    if model.checkpoint is None or model.shape is None:
        raise UsageError(f"--model {model.name} has nothing to plan")
    footprint = footprint_of(config.engine, model.checkpoint, model.shape)
    survey = Survey(config.engine.block_size)
    try:
        undone = rows.rows(model.needed_columns, selection=selection_of(config), skip=lambda _row_id: False)
        for prompt in model.renderer.render(undone):
            survey.add(prompt)
    finally:
        model.renderer.close()
    context = _context(config, model.shape)
    return {
        "model": model.name,
        "prompts": model.prompt_kind,
        "max_model_len": context,
        **survey.to_dict(),
        "memory": footprint.to_dict(longest_row=min(context, survey.longest_row)),
        "forecast": forecast(config, survey, footprint, cost or footprint.cost_model(), context),
    }


def _context(config: JobConfig, shape: ModelConfig) -> int:
    return min(shape.max_position_embeddings, config.engine.max_model_len or shape.max_position_embeddings)


@dataclass(slots=True)
class Survey:
    """Counts over all prompts, in bounded memory. Written by `add` alone."""

    block_size: int
    rows: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    examples: list[dict[str, Any]] = field(default_factory=list)
    lengths: LogHistogram = field(default_factory=LogHistogram)
    bins: Counter[int] = field(default_factory=Counter)
    prompt_tokens: int = 0
    shared_tokens: int = 0
    max_output_tokens: int = 0
    longest_row: int = 0
    ends_early: bool = False  # some row may end before its max_tokens
    sample: list[SimulatedRow] = field(default_factory=list)
    _hashes: set[bytes] = field(default_factory=set)
    _random: random.Random = field(default_factory=lambda: random.Random(0))
    _num_fitting: int = 0

    def add(self, prompt: Prompt) -> None:
        """Take one row."""
        self.rows += 1
        if prompt.error is not None:
            self.errors[prompt.error.type] += 1
            if len(self.examples) < MAX_EXAMPLES:
                self.examples.append(
                    {"row_id": prompt.row.row_id, "where": prompt.row.where, "error": str(prompt.error)}
                )
            return
        length, params = len(prompt.token_ids), prompt.params
        self.lengths.add(length)
        self.bins[next((edge for edge in BIN_EDGES if length <= edge), BIN_EDGES[-1] * 2)] += 1
        self.prompt_tokens += length
        self.shared_tokens += self._num_shared(prompt)
        self.max_output_tokens += params.max_tokens * params.n
        self.longest_row = max(self.longest_row, length + params.max_tokens)
        self.ends_early = self.ends_early or not params.ignore_eos
        self._keep(SimulatedRow(prompt.token_ids, params.max_tokens, params.max_tokens))

    def _num_shared(self, prompt: Prompt) -> int:
        """Leading tokens, in whole blocks, that an earlier prompt has too."""
        hashes: list[bytes] = []
        whole = (len(prompt.token_ids) - 1) // self.block_size * self.block_size
        extend_hashes(hashes, prompt.token_ids[:whole], self.block_size, b"")
        num_shared = next((place for place, one in enumerate(hashes) if one not in self._hashes), len(hashes))
        if len(self._hashes) < MAX_HASHES:
            self._hashes.update(hashes)
        return num_shared * self.block_size

    def _keep(self, row: SimulatedRow) -> None:
        """A uniform sample of all rows (reservoir)."""
        self._num_fitting += 1
        if len(self.sample) < MAX_SAMPLE:
            self.sample.append(row)
        elif (place := self._random.randrange(self._num_fitting)) < MAX_SAMPLE:
            self.sample[place] = row

    def to_dict(self) -> dict[str, Any]:
        starts = (0, *BIN_EDGES)
        return {
            "rows": self.rows,
            "rows_that_will_not_fit": self.errors.get("prompt_too_long", 0),
            "errors": dict(self.errors),
            "error_examples": self.examples,
            "prompt_tokens": {"total": self.prompt_tokens, **self.lengths.summary()},
            "prompt_tokens_histogram": [
                {"from": starts[place] + 1, "to": edge, "rows": self.bins[edge]}
                for place, edge in enumerate((*BIN_EDGES, BIN_EDGES[-1] * 2))
                if self.bins[edge]
            ],
            "shared_prefix_share": self.shared_tokens / self.prompt_tokens if self.prompt_tokens else 0.0,
            "max_output_tokens": self.max_output_tokens,
        }


def forecast(config: JobConfig, survey: Survey, footprint: Footprint, cost: CostModel, context: int) -> dict[str, Any]:
    """Seconds of the run, without load: expected, and an interval that says what is not known."""
    engine = config.engine
    seats = engine.max_num_seqs or footprint.default_max_num_seqs
    scheduler = SchedulerConfig(
        max_num_seqs=seats,
        max_num_batched_tokens=max(engine.max_num_batched_tokens or 2048, 1),
        max_model_len=context,
        block_size=engine.block_size,
        num_blocks=max(footprint.num_blocks, 1),
        prefix_caching=engine.prefix_caching,
        chunked_prefill=engine.chunked_prefill,
        batching=engine.batching,
        order_policy=engine.order_policy,
    )
    # a sample is played, and its time taken per row
    scale = (survey.rows - survey.errors.total()) / max(len(survey.sample), 1)
    seconds = {
        name: simulate(list(_shortened(survey, share)), scheduler, cost).makespan_s * scale * SPEED_ERROR[name]
        for name, share in SHARE_OF_MAX_TOKENS.items()
    }
    used = "all" if not survey.ends_early else "10% to 100% (40% expected)"
    return {
        **{f"{name}_s": value for name, value in seconds.items()},
        "assumes": f"rows use {used} of their max_tokens; {seats} rows at once; weights load on top",
        "max_num_seqs": seats,
    }


def _shortened(survey: Survey, share: float) -> Iterator[SimulatedRow]:
    for row in survey.sample:
        length = max(1, round(row.max_tokens * share)) if survey.ends_early else row.max_tokens
        yield SimulatedRow(row.prompt_ids, length, row.max_tokens)
