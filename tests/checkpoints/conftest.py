"""Tiny folders in Hugging Face layout and tiny GGUF files."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

SIZES = {"hidden": 32, "inner": 48, "heads": 4, "kv_heads": 2, "layers": 2, "head_dim": 8}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    path = tmp_path / "cache"
    monkeypatch.setenv("OFFGEN_CACHE", str(path))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What resolve asks of a folder; no model would load from it."""
    path = tmp_path / "models" / "tiny"
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    (path / "tokenizer.json").write_text("{}")
    (path / "model.safetensors").write_bytes(b"x" * 1000)
    return path


@pytest.fixture
def write_gguf(tmp_path: Path) -> Callable[..., Path]:
    return lambda name="tiny.gguf", **options: _write_gguf(tmp_path / name, **options)


def byte_level_vocabulary() -> tuple[list[str], list[str]]:
    """All bytes as GPT-2 spells them, and a few merges over digits and letters."""
    alphabet = gpt2_alphabet()
    merges = ["1 2", "12 3", "a b", "Ġ a", "Ġa b", "Ġ 1"]
    return [*alphabet, *(merge.replace(" ", "") for merge in merges), "<|end|>", "<think>"], merges


def gpt2_alphabet() -> list[str]:
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spelled = {byte: chr(byte) for byte in printable}
    for offset, byte in enumerate(byte for byte in range(256) if byte not in spelled):
        spelled[byte] = chr(256 + offset)
    return [spelled[byte] for byte in range(256)]


def _write_gguf(
    path: Path,
    *,
    arch: str = "llama",
    pre: str | None = "gpt-2",
    kind: str = "gpt2",
    quantized: bool = False,
    extra: dict[str, Any] | None = None,
    drop: tuple[str, ...] = (),
    rope_freqs: bool = False,
    add_bos: bool | None = None,
) -> Path:
    tokens, merges = byte_level_vocabulary()
    scores: list[float] = []
    if kind == "llama":
        tokens, scores, types = _spm_vocabulary()
    else:
        types = [1] * (len(tokens) - 2) + [3, 4]
    writer = gguf.GGUFWriter(str(path), arch)
    writer.add_context_length(128)
    writer.add_embedding_length(SIZES["hidden"])
    writer.add_block_count(SIZES["layers"])
    writer.add_feed_forward_length(SIZES["inner"])
    writer.add_head_count(SIZES["heads"])
    writer.add_head_count_kv(SIZES["kv_heads"])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model(kind)
    if pre is not None and kind == "gpt2":
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    if kind == "gpt2":
        writer.add_token_merges(merges)
    else:
        writer.add_token_scores(scores)
    writer.add_eos_token_id(len(tokens) - 2 if kind == "gpt2" else 2)
    writer.add_bos_token_id(len(tokens) - 2 if kind == "gpt2" else 1)
    if add_bos is not None:
        writer.add_add_bos_token(add_bos)
    writer.add_chat_template("{% for m in messages %}{{ m.content }}{% endfor %}")
    for key, value in (extra or {}).items():
        add = writer.add_string if isinstance(value, str) else writer.add_uint32
        add(key, value)
    for name, shape in _shapes(len(tokens)).items():
        if name in drop:
            continue
        values = np.random.default_rng(abs(hash(name)) % 1000).normal(size=shape).astype(np.float32)
        if quantized and len(shape) == 2:
            packed = gguf.quantize(values, gguf.GGMLQuantizationType.Q8_0) if shape[1] % 32 == 0 else values
            kind_of = gguf.GGMLQuantizationType.Q8_0 if shape[1] % 32 == 0 else None
            writer.add_tensor(name, packed, raw_dtype=kind_of)
        else:
            writer.add_tensor(name, values)
    if rope_freqs:
        writer.add_tensor("rope_freqs.weight", np.linspace(1, 4, SIZES["head_dim"] // 2).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _shapes(vocab: int) -> dict[str, tuple[int, ...]]:
    hidden, inner = SIZES["hidden"], SIZES["inner"]
    kv = SIZES["kv_heads"] * SIZES["head_dim"]
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocab, hidden), "output_norm.weight": (hidden,)}
    for layer in range(SIZES["layers"]):
        shapes |= {
            f"blk.{layer}.attn_norm.weight": (hidden,),
            f"blk.{layer}.ffn_norm.weight": (hidden,),
            f"blk.{layer}.attn_q.weight": (hidden, hidden),
            f"blk.{layer}.attn_k.weight": (kv, hidden),
            f"blk.{layer}.attn_v.weight": (kv, hidden),
            f"blk.{layer}.attn_output.weight": (hidden, hidden),
            f"blk.{layer}.ffn_gate.weight": (inner, hidden),
            f"blk.{layer}.ffn_up.weight": (inner, hidden),
            f"blk.{layer}.ffn_down.weight": (hidden, inner),
        }
    return shapes


def _spm_vocabulary() -> tuple[list[str], list[float], list[int]]:
    special = ["<unk>", "<s>", "</s>"]
    raw = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = ["▁", "h", "e", "l", "o", "w", "r", "d", "he", "ll", "▁w", "hell", "hello", "▁hello", "or", "ld", "▁wor"]
    scores = [0.0] * 259 + [-float(len(pieces) - i) if len(p) > 1 else -100.0 for i, p in enumerate(pieces)]
    return [*special, *raw, *pieces], scores, [2, 3, 3] + [6] * 256 + [1] * len(pieces)
