"""What transformers makes of a model: the truth that ours is compared with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

PROMPT_LENGTHS = (1, 5, 23, 9)


def randomize(model: Any, seed: int = 0, scale: float = 0.3) -> Any:
    """Weights wide enough that greedy picks differ from token to token, norms and biases included."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() >= 2:
                parameter.copy_(noise * scale)
            else:
                parameter.add_(noise * 0.1)
    return model.eval()


def prompts(vocab_size: int, lengths: tuple[int, ...] = PROMPT_LENGTHS, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, vocab_size, (length,), generator=generator).tolist() for length in lengths]


def greedy(model: Any, prompt: list[int], max_tokens: int) -> list[int]:
    with torch.inference_mode():
        out = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            num_beams=1,
            max_new_tokens=max_tokens,
            min_new_tokens=max_tokens,
            eos_token_id=None,
            pad_token_id=0,
            repetition_penalty=1.0,
        )
    return out[0, len(prompt) :].tolist()


def save(model: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder
