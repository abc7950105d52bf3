"""Any other causal LM, through transformers' attention interface: its modules compute, our pages remember.

A model is served only if three things hold, each checked before a row runs: its class keeps nothing but keys and
values; every attention call asks for causal attention with at most one window; and a probe of the loaded model, in
chunks, mixed rows and decode steps, gives the logits that transformers gives. Otherwise it is refused in a sentence.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import nn

from offgen.backends.base import AttentionInputs, Backend, KVCache, Linear
from offgen.models import paged_interface
from offgen.models.base import Model
from offgen.models.config import ModelConfig
from offgen.models.paged_interface import PAGED, Step
from offgen.models.transformers_checks import NoStorageError, discover, verify
from offgen.models.transformers_load import (
    build_empty,
    context_limit,
    fix_rope,
    load_weights,
    read_class,
    shape_of,
    specs_by_config,
)


class TransformersModel:
    """A transformers module run over pages. `_step` is written by `forward` for the attention calls within it."""

    def __init__(self, module: Any, trunk: str, config: ModelConfig, step: Step, weight_bytes: int) -> None:
        self.config = config
        self.weight_bytes = weight_bytes
        self._module, self._step = module, step
        base = module.get_submodule(trunk)
        base.register_forward_hook(_stop_after_base)
        self._given = _GivenHidden(base)
        self._head = _with_submodule(module, trunk, self._given)

    def forward(self, token_ids: torch.Tensor, kv_caches: list[KVCache], inputs: AttentionInputs) -> torch.Tensor:
        return self.forward_at(token_ids, inputs.positions.long(), kv_caches, inputs)

    def forward_at(
        self, token_ids: torch.Tensor, positions: torch.Tensor, kv_caches: list[KVCache], inputs: AttentionInputs
    ) -> torch.Tensor:
        """The same with positions other than the rows' own: for the probe."""
        step = self._step
        step.kv_caches, step.inputs, step.next_layer = kv_caches, inputs, 0
        try:
            self._module(
                input_ids=token_ids.unsqueeze(0), position_ids=positions.unsqueeze(0), use_cache=False, return_dict=True
            )
        except _BaseDone as done:
            return done.hidden[0]
        finally:
            step.kv_caches, step.inputs = [], None
        raise RuntimeError("the base model did not run")

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        dummy = torch.zeros(1, hidden.shape[0], dtype=torch.long, device=hidden.device)
        self._given.hidden = hidden.unsqueeze(0)
        output = self._head(input_ids=dummy, position_ids=dummy, use_cache=False, return_dict=True)
        logits: torch.Tensor = output.logits[0]
        return logits.to(torch.float32)


class _BaseDone(Exception):
    """Carries the hidden states out of a forward pass before its head computes logits for every token."""

    def __init__(self, hidden: torch.Tensor) -> None:
        super().__init__()
        self.hidden = hidden


def _stop_after_base(module: Any, args: Any, output: Any) -> None:
    if module.offgen_step.inputs is not None:
        raise _BaseDone(output[0] if isinstance(output, tuple) else output.last_hidden_state)


class _GivenHidden(nn.Module):
    """Stands in for the base model while the head computes logits of hidden states that exist already."""

    hidden: torch.Tensor

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.__dict__["base"] = base  # not a submodule: the weights belong to the model itself

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["base"], name)

    def forward(self, *_: Any, **__: Any) -> Any:
        return _BaseOutput(self.hidden)


class _BaseOutput:
    """What a base model returns, with nothing but its hidden states."""

    def __init__(self, hidden: torch.Tensor) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, at: Any) -> Any:
        return (self.last_hidden_state,)[at]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return


def _with_submodule(module: Any, path: str, stub: nn.Module) -> Any:
    """The same module, its weights shared, with a stub in place of the submodule at `path`."""
    name, _, rest = path.partition(".")
    child = _with_submodule(module._modules[name], rest, stub) if rest else stub
    clone = copy.copy(module)
    clone.__dict__ = {**module.__dict__, "_modules": {**module._modules, name: child}}
    return clone


class BackendLinear(nn.Module):
    """An nn.Linear whose weight the backend packed."""

    def __init__(self, linear: Linear, dtype: torch.dtype) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._linear = linear
        # some modules look at a weight's dtype; whoever wants its values fails on the shape
        self.weight = torch.empty(0, dtype=dtype)
        self.bias = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._linear(x.reshape(-1, self.in_features)).view(*x.shape[:-1], self.out_features)


def pack_linears(module: nn.Module, backend: Backend) -> None:
    """Hand every plain nn.Linear to the backend, one at a time: the original is freed before the next is packed."""
    for part in list(module.modules()):
        for name, child in part.named_children():
            if type(child) is nn.Linear:
                bias = None if child.bias is None else child.bias.detach()
                setattr(part, name, BackendLinear(backend.linear(child.weight.detach(), bias), child.weight.dtype))


def load(folder: Path, backend: Backend, *, load_format: str, max_model_len: int | None) -> Model:
    """Load, check and probe. Raises UsageError for a model that does not run exactly over pages."""
    paged_interface.register()
    model_class, hf_config = read_class(folder)
    limit, reason = context_limit(hf_config)
    module = load_weights(model_class, folder, hf_config, backend, load_format=load_format)
    fix_rope(module, max_model_len or limit, limit, reason)
    step = Step(backend=backend)
    for part in module.modules():
        part.offgen_step = step
    found = discover(module, step, max_model_len or limit)
    step.specs = found.specs
    weight_bytes = sum(tensor.numel() * tensor.element_size() for tensor in module.parameters())
    pack_linears(module, backend)
    module.set_attn_implementation(PAGED)
    config = shape_of(folder, model_class, hf_config, step.specs, limit, reason)
    model = TransformersModel(module, found.trunk, config, step, weight_bytes)
    verify(model, module, found.modules, backend)
    return model


def describe(folder: Path) -> ModelConfig:
    """The shape of the model from config.json alone, as far as an empty module tells it."""
    paged_interface.register()
    model_class, hf_config = read_class(folder)
    limit, reason = context_limit(hf_config)
    module = build_empty(model_class, hf_config)
    step = Step()
    for part in module.modules():
        part.offgen_step = step
    try:
        specs = discover(module, step, limit).specs
    except NoStorageError:  # a forward pass that looks at values; loading asks again
        specs = specs_by_config(hf_config)
    return shape_of(folder, model_class, hf_config, specs, limit, reason)
