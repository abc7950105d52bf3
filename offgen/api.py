"""`offgen.Engine`: the engine for Python programs. Prompts from memory; knows no file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import count, groupby
from typing import Any

from offgen.checkpoints import resolve
from offgen.config import EngineConfig, engine_options
from offgen.config.job import Given, build, unknown_key
from offgen.config.option import options_of
from offgen.engine import open_engine, prepare
from offgen.models import load_config
from offgen.records import Completion, Prompt, Row
from offgen.sampling.params import SamplingParams, from_dict
from offgen.text import PromptOptions, Renderer, eos_ids, generation_defaults, load_tokenizer

PromptLike = str | Sequence[int] | Sequence[Mapping[str, Any]]


class Engine:
    """One model, loaded once, many prompts at a time.

        engine = offgen.Engine("smollm2-135m-instruct", max_num_seqs=32)
        for completion in engine.generate(["The capital of France is"], offgen.SamplingParams(max_tokens=16)):
            print(completion.row.row_id, completion.text)

    model               a folder in Hugging Face layout, a .gguf file, a hub id, or an alias
    chat                text prompts go through the model's chat template: True, False, or None: if it has one
    system              a system message before each prompt
    generation_config   `none`: leave out the model's own sampling defaults
    options             the engine's options of `offgen run`, with underscores (`kv_cache_memory="2GiB"`)

    Raises offgen.errors.UsageError for what cannot be served.
    """

    def __init__(
        self,
        model: str,
        *,
        revision: str | None = None,
        tokenizer: str | None = None,
        chat: bool | None = None,
        system: str | None = None,
        generation_config: str = "auto",
        **options: Any,
    ) -> None:
        engine = _engine_config(options)
        prepare(engine_options(engine))
        checkpoint = resolve(model, revision=revision, tokenizer=tokenizer)
        self._tokenizer = load_tokenizer(checkpoint.tokenizer_folder)
        self._options = PromptOptions(chat=chat, system=system)
        ends = eos_ids(checkpoint.folder, self._tokenizer)
        self.defaults = from_dict(generation_defaults(checkpoint.folder, generation_config), defaults=SamplingParams())
        self._vocab_size = load_config(checkpoint.folder, model_impl=engine.model_impl).vocab_size
        self._engine = open_engine(checkpoint.folder, engine_options(engine), eos_ids=ends)

    def generate(self, prompts: Iterable[PromptLike], params: SamplingParams | None = None) -> Iterator[Completion]:
        """Complete each prompt (a text, a list of token ids, or a list of messages), in finishing order.

        `completion.row.row_id` is the prompt's place, from 0. A prompt that fails is a completion with `error` set.
        params   None: the model's defaults, `engine.defaults`
        """
        chosen = self.defaults if params is None else _checked(params)
        yield from self._engine.generate(self._render(prompts, chosen))

    def stop(self) -> None:
        """Make `generate` end after the step under way; from any thread."""
        self._engine.stop()

    def describe(self) -> dict[str, Any]:
        """Device, dtype, sizes, and why they were chosen."""
        return self._engine.describe()

    def _render(self, prompts: Iterable[PromptLike], params: SamplingParams) -> Iterator[Prompt]:
        renderers: dict[str, Renderer] = {}
        try:
            for kind, group in groupby(zip(count(), prompts), lambda numbered: _kind(numbered[1])):
                if kind not in renderers:
                    renderers[kind] = self._renderer(kind, params)
                rows = (Row(place, None, 0, {"prompt": prompt}, f"prompt {place}") for place, prompt in group)
                yield from renderers[kind].render(rows)
        finally:
            for renderer in renderers.values():
                renderer.close()

    def _renderer(self, kind: str, params: SamplingParams) -> Renderer:
        if kind == "ids":
            options = PromptOptions(token_ids_column="prompt")
        elif kind == "messages":
            options = replace(self._options, messages_column="prompt", chat=None)
        else:
            options = replace(self._options, prompt_column="prompt")
        renderer = Renderer(
            self._tokenizer,
            prompt=options,
            defaults=params,
            max_model_len=self._engine.max_model_len,
            vocab_size=self._vocab_size,
        )
        renderer.needed_columns(["prompt"])
        return renderer


def _engine_config(options: Mapping[str, Any]) -> EngineConfig:
    known = {option.name: None for option in options_of(EngineConfig)}
    for name in options:
        if name not in known:
            raise unknown_key("Engine", name, known)
    return build(EngineConfig, {name: Given(value, name) for name, value in options.items() if value is not None})


def _checked(params: SamplingParams) -> SamplingParams:
    """Built by hand, so not checked yet."""
    values = asdict(params)
    del values["bad_words_token_ids"]
    return from_dict(values, defaults=SamplingParams())


def _kind(prompt: PromptLike) -> str:
    if isinstance(prompt, str):
        return "text"
    return "messages" if len(prompt) and isinstance(prompt[0], Mapping) else "ids"
