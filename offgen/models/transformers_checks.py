"""Does a transformers module run exactly over pages? Asked of the module itself: what its attention wants, and a probe.

The probe is the proof: the model generates a few tokens by transformers' own means, and the paged path must give the
same logits over chunks, a mixed step and decodes. Whatever a model keeps or does besides attention shows there.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from offgen.backends.base import AttentionInputs, AttentionSpec, Backend
from offgen.errors import UsageError
from offgen.models.paged_interface import PAGED, Step, UnservableAttention, window_of
from offgen.models.transformers_load import quiet

if TYPE_CHECKING:
    from offgen.models.transformers_model import TransformersModel

PROBE_TOKENS = 8
ROWS = (21, 9)  # prompt tokens of the two probe rows
NEW_TOKENS = 3
BLOCK_SIZE = 4
MAX_MASK_POSITIONS = 300_000


class NoStorageError(Exception):
    """The module cannot be asked without its weights."""


@dataclasses.dataclass(frozen=True, slots=True)
class Discovery:
    """What a forward pass showed.

    specs     one per attention call, in order
    trunk     path of the submodule that all attention happens in: what comes after it is the head
    modules   those that attention was called for
    """

    specs: list[AttentionSpec]
    trunk: str
    modules: list[Any]


def discover(module: Any, step: Step, num_positions: int) -> Discovery:
    """Run `module` (under DISCOVER) once and see what it asks of attention. UsageError if that is not servable."""
    name = type(module).__name__
    device = next(module.parameters()).device
    token_ids = torch.zeros(1, PROBE_TOKENS, dtype=torch.long, device=device)
    inputs = {"input_ids": token_ids, "position_ids": torch.arange(PROBE_TOKENS, device=device).unsqueeze(0)}
    if device.type == "meta":  # without a mask, positions are searched for packed rows, which needs values
        inputs["attention_mask"] = torch.ones_like(token_ids)
    step.calls = []
    try:
        with torch.no_grad(), quiet():
            trunks = _trunks(module, step, lambda: module(**inputs, use_cache=False, return_dict=True))
        if not step.calls:
            raise UnservableAttention("has attention of its own, not transformers' attention interface")
        length = min(max(num_positions, 2), MAX_MASK_POSITIONS)
        windows = {id(call.mask_function): window_of(call, length) for call in step.calls}
    except UnservableAttention as error:
        raise UsageError(f"{name}: {error}, which is not supported") from None
    except Exception as error:
        if device.type == "meta":
            raise NoStorageError from error
        raise UsageError(f"{name}: does not run over paged attention: {type(error).__name__}: {error}") from error
    if len(trunks) != 1:
        raise UsageError(f"{name}: attends in {len(trunks)} places outside of one base model, which is not supported")
    specs = [dataclasses.replace(call.spec, sliding_window=windows[id(call.mask_function)]) for call in step.calls]
    return Discovery(specs, trunks[0], [call.module for call in step.calls])


def _trunks(module: Any, step: Step, run: Callable[[], Any]) -> list[str]:
    """The outermost submodules in which attention is called while `run` runs the module."""
    found: list[str] = []
    hooks: list[Any] = []
    calls_before: list[int] = []  # one entry per module that is running

    def enter(part: Any, args: Any) -> None:
        calls_before.append(len(step.calls))

    def leave(path: str) -> Callable[[Any, Any, Any], None]:
        def hook(part: Any, args: Any, output: Any) -> None:
            if len(step.calls) > calls_before.pop() and not calls_before and path not in found:
                found.append(path)

        return hook

    for path, part in module.named_modules():
        if path:
            hooks += [part.register_forward_pre_hook(enter), part.register_forward_hook(leave(path))]
    try:
        run()
    finally:
        for handle in hooks:
            handle.remove()
    return found


def verify(model: TransformersModel, module: Any, modules: list[Any], backend: Backend) -> None:
    """Compare the paged path with transformers' generate on the loaded weights. UsageError if they differ."""
    name = type(module).__name__
    rows = _probe_rows(module, model.config.vocab_size, model.config.max_position_embeddings)
    try:
        with torch.inference_mode(), quiet():
            expected = _generate(module, rows, backend)
            with _Counting(modules) as counting:
                found = _run_paged(model, rows, [tokens for tokens, _ in expected], backend)
    except Exception as error:
        raise UsageError(f"{name}: does not run over paged attention: {type(error).__name__}: {error}") from error
    if counting.is_found:
        raise UsageError(f"{name}: counts positions by the place in the batch, which is not supported")
    tolerance = _tolerance(backend)
    for (_, truth), logits in zip(expected, found, strict=True):
        gap = float((truth - logits).abs().max() / truth.abs().max().clamp_min(1e-6))
        if not gap <= tolerance:  # NaN too
            raise UsageError(
                f"{name}: over paged attention its logits differ from transformers' by {gap:.2g} of their size "
                f"(allowed: {tolerance:g}), so it keeps or computes something that is not supported"
            )


class _Counting(torch.overrides.TorchFunctionMode):
    """Notices attention that numbers its tokens by their place in the batch, which tells on long rows only."""

    def __init__(self, modules: list[Any]) -> None:
        super().__init__()
        self._modules = {id(module) for module in modules}
        self.is_found = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.arange and id(sys._getframe(1).f_locals.get("self")) in self._modules:
            self.is_found = True
        return func(*args, **(kwargs or {}))


def _tolerance(backend: Backend) -> float:
    return 1e-3 if backend.dtype == torch.float32 else 0.1


def _probe_rows(module: Any, vocab_size: int, limit: int) -> list[list[int]]:
    """Ordinary tokens: not those that config.json gives a meaning."""
    special = {value for value in _integers(module.config.to_dict()) if 0 <= value < vocab_size}
    generator = torch.Generator().manual_seed(7)
    order = torch.randperm(vocab_size, generator=generator).tolist()
    ordinary = [token for token in order if token not in special] or order
    lengths = [max(1, min(length, limit - NEW_TOKENS - 1)) for length in ROWS]
    picks = torch.randint(0, len(ordinary), (sum(lengths),), generator=generator).tolist()
    tokens = [ordinary[pick] for pick in picks]
    return [tokens[: lengths[0]], tokens[lengths[0] :]]


def _integers(values: Any) -> set[int]:
    found: set[int] = set()
    for key, value in values.items():
        if isinstance(value, dict):
            found |= _integers(value)
        elif str(key).endswith(("token_id", "token_index")):
            found |= {int(one) for one in (value if isinstance(value, list) else [value]) if isinstance(one, int)}
    return found


def _generate(module: Any, rows: list[list[int]], backend: Backend) -> list[tuple[list[int], torch.Tensor]]:
    """(new tokens, logits [NEW_TOKENS, V]) of each row, alone, by transformers' own attention and cache."""
    from transformers import GenerationConfig

    module.set_attn_implementation("eager")
    config = GenerationConfig(
        max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, do_sample=False, num_beams=1, use_cache=True,
        eos_token_id=None, pad_token_id=0, output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    results = []
    try:
        for row in rows:
            ids = torch.tensor([row], device=backend.device)
            out = module.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
            logits = torch.cat(out.logits).to(torch.float32)
            results.append((out.sequences[0, len(row) :].tolist(), logits))
    finally:
        module.set_attn_implementation(PAGED)
    return results


def _run_paged(
    model: TransformersModel, rows: list[list[int]], new: list[list[int]], backend: Backend
) -> list[torch.Tensor]:
    """The same logits over pages: one row in two chunks, the second beside the other row's prompt, then decodes."""
    specs = list(model.config.attention)
    per_row = -(-(max(map(len, rows)) + NEW_TOKENS) // BLOCK_SIZE)
    caches = backend.allocate_kv(len(specs), 2 * per_row, BLOCK_SIZE, specs)
    full = [row + tokens for row, tokens in zip(rows, new, strict=True)]
    half = max(1, len(rows[0]) // 2)
    steps = [[(0, 0, half)]] if half < len(rows[0]) else []
    steps.append([(0, half if steps else 0, len(rows[0])), (1, 0, len(rows[1]))])
    for count in range(NEW_TOKENS - 1):
        steps.append([(row, len(rows[row]) + count, len(rows[row]) + count + 1) for row in (0, 1)])
    found: list[list[torch.Tensor]] = [[], []]
    for index, spans in enumerate(steps):
        num_decodes = 2 if index >= len(steps) - (NEW_TOKENS - 1) else 0
        token_ids, inputs = _inputs(full, spans, per_row, num_decodes, backend.device)
        hidden = model.forward(token_ids, caches, inputs)
        ends = [int(end) - 1 for end in inputs.cu_seqlens_q[1:]]
        logits = model.compute_logits(hidden[ends])
        for (row, _, stop), values in zip(spans, logits, strict=True):
            if stop >= len(rows[row]):
                found[row].append(values)
    return [torch.stack(values) for values in found]


def _inputs(
    full: list[list[int]], spans: list[tuple[int, int, int]], per_row: int, num_decodes: int, device: torch.device
) -> tuple[torch.Tensor, AttentionInputs]:
    def tensor(values: Any) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    # the rows' blocks alternate, so that nothing leans on blocks lying side by side
    tables = {row: [2 * block + row for block in range(per_row)] for row in (0, 1)}
    places = [(row, position) for row, start, stop in spans for position in range(start, stop)]
    ends = [0]
    for _, start, stop in spans:
        ends.append(ends[-1] + stop - start)
    inputs = AttentionInputs(
        slots=tensor([tables[row][at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE for row, at in places]),
        positions=tensor([at for _, at in places]),
        block_tables=tensor([tables[row] for row, _, _ in spans]),
        seq_lens=tensor([stop for _, _, stop in spans]),
        cu_seqlens_q=tensor(ends),
        num_decodes=num_decodes,
        max_seq_len=max(stop for _, _, stop in spans),
        block_size=BLOCK_SIZE,
    )
    return torch.tensor([full[row][at] for row, at in places], device=device), inputs
