"""transformers' attention interface, filled with paged attention. Knows its calling convention; knows no architecture.

The registry there is global, so two names are registered once: one runs over pages, one only notes what each layer
asks for. What a call needs comes with the module it is called for (`offgen_step`, set on every module of a model when
it is loaded): not every model hands forward's keyword arguments down to its attention.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

from offgen.backends.base import AttentionInputs, AttentionSpec, Backend, KVCache

PAGED = "offgen_paged"
DISCOVER = "offgen_discover"
MaskFunction = Callable[..., Any]

# keyword arguments that reach attention and change nothing there
HARMLESS = {"dropout", "position_ids", "cache_position", "position_embeddings", "use_cache", "return_dict", "labels"}
HARMLESS |= {"output_attentions", "output_hidden_states", "output_router_logits", "token_type_ids"}


class UnservableAttention(Exception):
    """What a model asks of attention is not what paged attention computes; the message is what the model does."""


@dataclass(slots=True)
class AttentionCall:
    """What one attention call of a forward pass asked for. `mask_function` is None where the model changed the mask."""

    spec: AttentionSpec
    window_argument: int | None
    mask_function: MaskFunction | None
    module: Any


@dataclass(slots=True)
class Step:
    """One forward pass, written by the model before it and by the attention function during it.

    Layers are told apart by the order of their calls: a model may run one module several times.
    """

    backend: Backend | None = None
    specs: list[AttentionSpec] = field(default_factory=list)
    kv_caches: list[KVCache] = field(default_factory=list)
    inputs: AttentionInputs | None = None
    next_layer: int = 0
    calls: list[AttentionCall] = field(default_factory=list)


def register() -> None:
    """Make both names known to transformers. May be called again."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(PAGED, _attend_paged)
    AttentionInterface.register(DISCOVER, _note_call)
    AttentionMaskInterface.register(PAGED, _no_mask)
    AttentionMaskInterface.register(DISCOVER, _noted_mask)


def _attend_paged(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """query [1, H, T, D], key and value [1, G, T, D or Dv] -> [1, T, H, Dv]."""
    step: Step = module.offgen_step
    assert step.backend is not None and step.inputs is not None
    spec, kv_cache = step.specs[step.next_layer], step.kv_caches[step.next_layer]
    step.next_layer += 1
    width = value.shape[-1]
    k, v = (_rows(states, spec.head_dim) for states in (key, value))
    step.backend.write_kv(k, v, kv_cache, step.inputs)
    attended = step.backend.paged_attention(_rows(query, spec.head_dim), kv_cache, step.inputs, spec, s_aux)
    return attended[..., :width].unsqueeze(0), None


def _rows(states: torch.Tensor, head_dim: int) -> torch.Tensor:
    """[1, heads, T, d] -> [T, heads, head_dim]; a narrower d is filled with zeros, which change no dot product."""
    rows = states[0].transpose(0, 1)
    if rows.shape[-1] < head_dim:
        return F.pad(rows, (0, head_dim - rows.shape[-1]))
    return rows.contiguous()


def _no_mask(*_: Any, **__: Any) -> None:
    """Pages are causal by themselves, and windows are in the specs."""
    return


def _note_call(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    step: Step = module.offgen_step
    unknown = sorted(key for key, value in others.items() if key not in HARMLESS and value is not None)
    if unknown:
        raise UnservableAttention(f"hands attention an argument of its own (`{unknown[0]}`)")
    if query.shape[2] != key.shape[2]:
        raise UnservableAttention("attends to something else than its own tokens")
    if is_causal is False or getattr(module, "is_causal", True) is False:
        raise UnservableAttention("attends in both directions")
    head_dim = max(query.shape[-1], value.shape[-1])
    spec = AttentionSpec(
        num_heads=query.shape[1],
        num_kv_heads=key.shape[1],
        head_dim=head_dim,
        scale=float(query.shape[-1] ** -0.5 if scaling is None else scaling),
        logit_soft_cap=None if softcap is None else float(softcap),
    )
    step.calls.append(AttentionCall(spec, sliding_window, getattr(attention_mask, "offgen_function", None), module))
    shape = (query.shape[0], query.shape[2], query.shape[1], value.shape[-1])
    return torch.zeros(shape, dtype=query.dtype, device=query.device), None


def _noted_mask(*args: Any, mask_function: MaskFunction | None = None, **kwargs: Any) -> Any:
    """The mask that eager attention gets, with the function that made it, so that a call can say which one it uses."""
    from transformers.masking_utils import causal_mask_function, eager_mask

    function = causal_mask_function if mask_function is None else mask_function
    mask = eager_mask(*args, mask_function=function, **kwargs)
    if mask is not None:
        mask.offgen_function = function
    return mask


def window_of(call: AttentionCall, num_positions: int) -> int | None:
    """The sliding window of a call, read from its mask at every distance; None if each query sees all before it.

    Raises UnservableAttention for a mask that is anything else than causal with one window.
    """
    if call.mask_function is None:
        raise UnservableAttention("changes the attention mask by itself")
    last = num_positions - 1
    row = _mask_row(call.mask_function, last, num_positions)
    if not bool(row[last]):
        raise UnservableAttention("hides a token from itself")
    hidden = (~row).nonzero()
    window = None if hidden.numel() == 0 else last - int(hidden.max())
    probes = {0, 1, last // 2, last - 1, last}
    if window is not None:
        probes |= {window - 2, window - 1, window, window + 1, 2 * window, 2 * window + 1}
    keys = torch.arange(num_positions)
    for query in sorted(at for at in probes if 0 <= at <= last):
        expected = keys <= query
        if window is not None:
            expected &= keys > query - window
        if not torch.equal(_mask_row(call.mask_function, query, num_positions), expected):
            raise UnservableAttention("attends by a pattern that is not causal with one sliding window")
    if call.window_argument is not None and window is not None and call.window_argument != window:
        raise UnservableAttention(f"names a window of {call.window_argument} and masks by one of {window}")
    return window


def _mask_row(function: MaskFunction, query: int, num_positions: int) -> torch.Tensor:
    """Which keys the query sees: [num_positions] bool."""
    zero = torch.zeros((), dtype=torch.long)
    seen = function(zero, zero, torch.tensor(query), torch.arange(num_positions))
    return torch.as_tensor(seen).expand(num_positions).bool()
