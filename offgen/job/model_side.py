"""What a job needs of its model before any weights load: its identity, how rows become prompts, how to open it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Protocol

from offgen.config import JobConfig, PromptConfig, engine_options, sampling_defaults
from offgen.errors import UsageError
from offgen.records import Completion, Prompt, Row
from offgen.sampling.params import SamplingParams
from offgen.stats.engine import EngineStats

if TYPE_CHECKING:
    from offgen.checkpoints import Checkpoint
    from offgen.models import ModelConfig
    from offgen.readers import Input
    from offgen.text import PromptOptions

REQUEST_PARAMS = "sampling_params"  # the column that an OpenAI batch request's parameters come in
ECHO = "echo"  # the model that says what it is told: for testing pipelines


class Renderer(Protocol):
    """Rows to prompts."""

    def render(self, rows: Iterable[Row]) -> Iterator[Prompt]: ...

    def describe(self, row: Row) -> str: ...

    def close(self) -> None: ...


class Serving(Protocol):
    """An engine, or what stands in for one."""

    @property
    def stats(self) -> EngineStats: ...

    def describe(self) -> dict[str, Any]: ...

    def stop(self) -> None: ...

    def generate(self, prompts: Any) -> Iterator[Completion]: ...


@dataclass(frozen=True, slots=True)
class ModelSide:
    """A model that is chosen and checked, and not loaded.

    fingerprint      what its output depends on
    defaults         the sampling parameters of a row that brings none of its own
    needed_columns   what the prompts are made of
    prompt_kind      chat (through the model's template) or raw
    checkpoint, shape   where its files are and what they hold; None for the echo model
    notes            what a user should read before it runs
    """

    name: str
    fingerprint: dict[str, Any]
    defaults: SamplingParams
    renderer: Renderer
    needed_columns: frozenset[str]
    prompt_kind: str
    open: Callable[[], Serving]
    checkpoint: Checkpoint | None = None
    shape: ModelConfig | None = None
    notes: tuple[str, ...] = ()


def prepare_model(config: JobConfig) -> None:
    """Begin what the job will wait for once its model is chosen."""
    if config.model.model != ECHO:
        from offgen.engine import prepare

        prepare(engine_options(config.engine))


def choose_model(config: JobConfig, rows: Input) -> ModelSide:
    """Find the model, its tokenizer and its sampling defaults, and check that the input has the prompt's columns.

    Raises UsageError; loads no weights.
    """
    prompt, columns = _prompt_options(config.prompt, rows)
    if config.model.model == ECHO:
        return _echo(config, prompt, columns)
    from offgen.checkpoints import resolve
    from offgen.engine import open_engine
    from offgen.engine.machine import require_device
    from offgen.models import load_config
    from offgen.text import Renderer as TextRenderer
    from offgen.text import eos_ids, generation_defaults, load_tokenizer

    asked, engine = config.model, config.engine
    require_device(engine.device)
    checkpoint = resolve(asked.model, revision=asked.revision, tokenizer=asked.tokenizer)
    tokenizer = load_tokenizer(checkpoint.tokenizer_folder)
    defaults = sampling_defaults(config.sampling, generation_defaults(checkpoint.folder, asked.generation_config))
    shape = load_config(checkpoint.folder, model_impl=engine.model_impl)
    context = min(shape.max_position_embeddings, engine.max_model_len or shape.max_position_embeddings)
    renderer = TextRenderer(
        tokenizer, prompt=prompt, defaults=defaults, max_model_len=context, vocab_size=shape.vocab_size
    )
    needed = frozenset(renderer.needed_columns(columns))
    ends = eos_ids(checkpoint.folder, tokenizer)
    return ModelSide(
        name=checkpoint.name,
        fingerprint=checkpoint.fingerprint(),
        defaults=defaults,
        renderer=renderer,
        needed_columns=needed,
        prompt_kind="chat" if renderer.source.is_chat else "raw",
        open=lambda: open_engine(checkpoint.folder, engine_options(engine), eos_ids=ends),
        checkpoint=checkpoint,
        shape=shape,
        notes=(*shape.notes, *_vocabulary_note(tokenizer.vocab_size, shape.vocab_size)),
    )


def _vocabulary_note(num_tokenizer_ids: int, num_embeddings: int) -> Iterator[str]:
    if num_tokenizer_ids > num_embeddings:
        yield (
            f"the tokenizer knows {num_tokenizer_ids:,} ids and the model {num_embeddings:,}: "
            "a row whose prompt has one of the others fails (token_out_of_range)"
        )


def _prompt_options(asked: PromptConfig, rows: Input) -> tuple[PromptOptions, Sequence[str]]:
    """How prompts are made of these rows, and the columns to make them of."""
    from offgen.text import PromptOptions

    columns = rows.schema.names
    options = PromptOptions(**{one.name: getattr(asked, one.name) for one in fields(asked)})
    if rows.is_openai_batch:
        options = replace(options, params_column=options.params_column or REQUEST_PARAMS)
    if not columns and rows.num_rows == 0:
        # an empty file has no columns to miss: it makes an empty output
        chosen = options.prompt_column or "prompt"
        return PromptOptions(prompt_column=chosen, chat=options.chat), [chosen]
    return options, columns


def _echo(config: JobConfig, prompt: PromptOptions, columns: Sequence[str]) -> ModelSide:
    """The stand-in: raw text in, the same text out; no tokenizer, no template."""
    from offgen.engine.echo import NAME, EchoEngine

    if prompt.chat or prompt.system or prompt.template or prompt.messages_column or prompt.token_ids_column:
        raise UsageError("--model echo takes a column of texts as it is", hint="--prompt-column NAME")
    column = prompt.prompt_column or next((name for name in ("prompt", "text") if name in columns), "prompt")
    if column not in columns:
        raise UsageError(f"column `{column}` is not in the input", hint=f"--prompt-column {'|'.join(columns)}")
    defaults = sampling_defaults(config.sampling, {})
    return ModelSide(
        name=NAME,
        fingerprint={"name": NAME},
        defaults=defaults,
        renderer=EchoRenderer(column, defaults),
        needed_columns=frozenset({column}),
        prompt_kind="raw",
        open=EchoEngine,
    )


@dataclass(frozen=True, slots=True)
class EchoRenderer:
    """Rows to the echo engine's prompts."""

    column: str
    params: SamplingParams

    def render(self, rows: Iterable[Row]) -> Iterator[Prompt]:
        from offgen.engine.echo import echo_prompts

        return echo_prompts(rows, column=self.column, params=self.params)

    def describe(self, row: Row) -> str:
        return str(row.values.get(self.column))

    def close(self) -> None:
        """There is nothing to close."""
