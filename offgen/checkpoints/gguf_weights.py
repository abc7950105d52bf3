"""GGUF tensors to one safetensors file, tensor by tensor. Knows both files' layouts and llama.cpp's reorderings."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from offgen.errors import UsageError

if TYPE_CHECKING:
    from offgen.checkpoints.gguf_file import GGUFFile

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
READ_BY_CONFIG = {"rope_freqs.weight"}
STORED: dict[str, tuple[str, np.dtype[Any]]] = {"F32": ("F32", np.dtype("<f4")), "F16": ("F16", np.dtype("<f2"))}


def write_weights(file: GGUFFile, config: dict[str, Any], path: Path) -> None:
    """All tensors under their Hugging Face names. UsageError for one that has none: nothing is left out silently."""
    tensors = {hf_name(file, name): tensor for name, tensor in file.tensors.items() if name not in READ_BY_CONFIG}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in tensors.items():
        stored, dtype = _stored_as(tensor)
        shape = [int(side) for side in reversed(tensor.shape)]
        size = int(np.prod(shape)) * dtype.itemsize
        header[name] = {"dtype": stored, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for name, tensor in tensors.items():
            values = _values(tensor).reshape(header[name]["shape"])
            out.write(np.ascontiguousarray(_reordered(values, name, file, config)).data)


def hf_name(file: GGUFFile, name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if kind in ("weight", "bias"):
        if stem in NAMES:
            return f"{NAMES[stem]}.{kind}"
        block = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
        if block and block[2] in BLOCK_NAMES:
            return f"model.layers.{block[1]}.{BLOCK_NAMES[block[2]]}.{kind}"
    raise UsageError(f"{file.path}: tensor `{name}` of architecture `{file.architecture}` is not supported")


def _stored_as(tensor: Any) -> tuple[str, np.dtype[Any]]:
    return STORED.get(tensor.tensor_type.name, STORED["F32"])


def _values(tensor: Any) -> np.ndarray[Any, Any]:
    import gguf

    if tensor.tensor_type.name in STORED:
        return np.asarray(tensor.data)
    try:
        values: np.ndarray[Any, Any] = gguf.dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError:
        raise UsageError(f"tensor `{tensor.name}`: quantization {tensor.tensor_type.name} is not supported") from None
    return values


def _reordered(values: np.ndarray[Any, Any], name: str, file: GGUFFile, config: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Undo llama.cpp's pairing: it rotates (0, 1), (2, 3) … together, this layout (0, half), (1, half + 1) …"""
    if file.architecture != "llama" or not name.rpartition(".")[0].endswith((".q_proj", ".k_proj")):
        return values
    heads = config["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"]
    paired = values.reshape(heads, values.shape[0] // heads // 2, 2, *values.shape[1:])
    return paired.swapaxes(1, 2).reshape(values.shape)
