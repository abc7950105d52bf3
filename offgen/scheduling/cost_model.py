"""How long a step takes: a constant, and so much per prefill token, per decode row and per byte of KV read.

Fitted by least squares from measured steps (`offgen bench` writes them), or given as a JSON file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from itertools import combinations

from offgen.errors import UsageError


@dataclass(frozen=True, slots=True)
class StepSample:
    """One measured step."""

    num_prefill_tokens: int
    num_decode_rows: int
    num_kv_bytes: int  # KV read by attention: of all rows' tokens so far
    seconds: float


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds of a step. The defaults are a round picture of a small model on a mid-size GPU."""

    step_s: float = 5e-3
    prefill_token_s: float = 5e-5
    decode_row_s: float = 2e-5
    kv_byte_s: float = 2e-12  # 500 GB/s
    kv_bytes_per_token: int = 65_536

    def seconds(self, *, num_prefill_tokens: int, num_decode_rows: int, num_kv_tokens: int) -> float:
        """What the model says of one step; `num_kv_tokens` are read by its attention."""
        return (
            self.step_s
            + self.prefill_token_s * num_prefill_tokens
            + self.decode_row_s * num_decode_rows
            + self.kv_byte_s * self.kv_bytes_per_token * num_kv_tokens
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str, *, where: str = "cost model") -> CostModel:
        """Raises UsageError for text that is no cost model."""
        try:
            values = json.loads(text)
        except ValueError as problem:
            raise UsageError(f"{where}: not JSON: {problem}") from problem
        names = {field.name for field in fields(cls)}
        if not isinstance(values, dict) or not values.keys() <= names:
            raise UsageError(f"{where}: not a cost model", hint=f"a JSON object with {', '.join(sorted(names))}")
        for name, value in values.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
                raise UsageError(f"{where}: `{name}` must be a number of 0 or more, not {value!r}")
        return cls(**values)


def fit(samples: Sequence[StepSample], *, kv_bytes_per_token: int = 1) -> CostModel:
    """The cost model with the least squared error over the measured steps, no coefficient below zero.

    Raises ValueError without samples. What the samples cannot tell apart stays with fewer coefficients.
    """
    if not samples:
        raise ValueError("no steps to fit a cost model from")
    columns = [
        [1.0] * len(samples),
        [float(sample.num_prefill_tokens) for sample in samples],
        [float(sample.num_decode_rows) for sample in samples],
        [float(sample.num_kv_bytes) for sample in samples],
    ]
    seconds = [sample.seconds for sample in samples]
    scales = [max(column) or 1.0 for column in columns]
    columns = [[value / scale for value in column] for column, scale in zip(columns, scales, strict=True)]
    gram = [[_dot(one, other) for other in columns] for one in columns]
    right = [_dot(column, seconds) for column in columns]
    best, best_error = [0.0] * 4, float("inf")
    # 15 subsets: the best of those whose plain least squares has no negative coefficient is the constrained optimum
    for size in range(1, 5):
        for chosen in combinations(range(4), size):
            weights = _solve([[gram[i][j] for j in chosen] for i in chosen], [right[i] for i in chosen])
            if weights is None or min(weights) < 0:
                continue
            error = _dot(seconds, seconds) - sum(w * right[i] for w, i in zip(weights, chosen, strict=True))
            if error < best_error - 1e-12 * _dot(seconds, seconds):
                best_error = error
                best = [0.0] * 4
                for weight, index in zip(weights, chosen, strict=True):
                    best[index] = weight / scales[index]
    return CostModel(best[0], best[1], best[2], best[3], kv_bytes_per_token)


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def _solve(matrix: list[list[float]], right: list[float]) -> list[float] | None:
    """Gaussian elimination with pivoting; None if the matrix is (nearly) singular."""
    size = len(right)
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    largest = max(abs(value) for row in matrix for value in row)
    for column in range(size):
        pivot = max(range(column, size), key=lambda index: abs(rows[index][column]))
        if abs(rows[pivot][column]) <= 1e-12 * largest:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        for index in range(column + 1, size):
            factor = rows[index][column] / rows[column][column]
            rows[index] = [a - factor * b for a, b in zip(rows[index], rows[column], strict=True)]
    solution = [0.0] * size
    for column in reversed(range(size)):
        known = sum(rows[column][other] * solution[other] for other in range(column + 1, size))
        solution[column] = (rows[column][size] - known) / rows[column][column]
    return solution
