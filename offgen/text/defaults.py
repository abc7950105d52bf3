"""What the model's own files say about generation: sampling defaults and the ids that end a completion.

The rule for generation_config.json: a model is sampled only if it says `do_sample: true`, then with its temperature (1
if it names none), top_p, top_k and min_p; else it is greedy. Its repetition_penalty holds either way, as it does in
transformers. Its length limits are not used. What the user says wins over all of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from offgen.errors import UsageError
from offgen.sampling.params import SamplingParams, from_dict
from offgen.text.tokenizer import Tokenizer

_SAMPLED = ("temperature", "top_p", "top_k", "min_p")


def generation_defaults(folder: Path, mode: str) -> dict[str, Any]:
    """Fields of SamplingParams that generation_config.json sets; empty for mode `none` or if there is no such file."""
    config = _read(folder / "generation_config.json") if mode == "auto" else {}
    is_sampled = config.get("do_sample") is True
    names = ("repetition_penalty", *(_SAMPLED if is_sampled else ()))
    values = {name: config[name] for name in names if config.get(name) is not None}
    if is_sampled:
        values.setdefault("temperature", 1.0)
    try:
        checked = from_dict(values, defaults=SamplingParams())
    except ValueError as error:
        raise UsageError(f"{folder / 'generation_config.json'}: {error}", hint="--generation-config none") from error
    return {name: getattr(checked, name) for name in values}


def eos_ids(folder: Path, tokenizer: Tokenizer) -> frozenset[int]:
    """Every id that ends a completion: of the tokenizer, of config.json and of generation_config.json together."""
    config = _read(folder / "config.json")
    nested = config.get("text_config")
    sources = [config, nested if isinstance(nested, dict) else {}, _read(folder / "generation_config.json")]
    return tokenizer.eos_ids.union(*(_ids(source.get("eos_token_id")) for source in sources))


def _ids(value: Any) -> Iterable[int]:
    values = value if isinstance(value, list) else [value]
    return [one for one in values if isinstance(one, int) and not isinstance(one, bool) and one >= 0]


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise UsageError(f"{path}: is not a JSON object")
    return content
