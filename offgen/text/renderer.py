"""Rows to prompts: text or messages, through templates, to checked token ids.

Whatever is wrong with a row becomes its prompt's error; what is wrong with the job is a UsageError before any row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from offgen.errors import UsageError
from offgen.records import Prompt, Row, RowError
from offgen.sampling.params import SamplingParams
from offgen.text.chat import read_messages, user_message, with_system
from offgen.text.detokenizer import PromptText
from offgen.text.options import PromptOptions
from offgen.text.row_params import RowParams
from offgen.text.source import Kind, PromptSource, choose_source
from offgen.text.template import Fault, Template, TemplateProcess
from offgen.text.token_ids import check_token_ids, read_token_ids, without_double_bos
from offgen.text.tokenizer import Tokenizer

BATCH = 64  # rows that are tokenized together; the first batches are smaller, so that the first prompt is soon there
ALL_COLUMNS = "row"  # in a template, all columns by name: for those whose names are not Jinja names


@dataclass(slots=True)
class _Draft:
    """A row on its way: `content` is what it is so far (a value, text, messages, ids), until an error ends it."""

    row: Row
    content: Any = None
    params: SamplingParams | None = None
    truncated: bool = False
    error: RowError | None = None


class Renderer:
    """Makes prompts. `needed_columns` comes first: it decides what a prompt is made of."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        prompt: PromptOptions,
        defaults: SamplingParams,
        max_model_len: int,
        vocab_size: int,
    ) -> None:
        self._tokenizer = tokenizer
        self._options = prompt
        self._max_model_len = max_model_len
        self._vocab_size = vocab_size
        self._params = RowParams(tokenizer, defaults, vocab_size)
        self._process = TemplateProcess()
        self._user_template: Template | None = None
        self._chat_template: Template | None = None
        self._template_names: set[str] = set()
        self._source: PromptSource | None = None

    @property
    def source(self) -> PromptSource:
        """What was chosen; for the screen and run.json."""
        assert self._source is not None, "needed_columns decides it"
        return self._source

    def needed_columns(self, schema_names: Sequence[str]) -> set[str]:
        """Columns that prompts and parameters are made of. Raises UsageError if one is absent, or a template is bad."""
        options = self._options
        has_chat_template = self._tokenizer.chat_template is not None
        self._source = choose_source(options, schema_names, has_chat_template=has_chat_template)
        needed = set() if self._source.column is None else {self._source.column}
        if options.params_column is not None:
            if options.params_column not in schema_names:
                raise UsageError(f"column `{options.params_column}` (--params-column) is not in the input")
            needed.add(options.params_column)
        if options.template is not None and self._source.kind is Kind.TEMPLATE:
            self._user_template = self._process.load("user", options.template, {})
            self._template_names = _template_columns(self._user_template, schema_names)
            needed |= self._template_names
        if self._source.is_chat:
            source, variables = self._tokenizer.chat_template, self._tokenizer.template_variables
            self._chat_template = self._process.load("chat", source or "", variables)
        return needed

    def render(self, rows: Iterable[Row]) -> Iterator[Prompt]:
        """Prompts in the order of rows, made as they are pulled, in batches that grow to BATCH rows."""
        size, remaining = 1, iter(rows)
        while batch := list(islice(remaining, size)):
            yield from self._render_batch(batch)
            size = min(2 * size, BATCH)

    def describe(self, row: Row) -> str:
        """The text of one row's prompt, as the model will read it; or its error."""
        prompt = next(self.render([row]))
        if prompt.error is not None:
            return str(prompt.error)
        return self._tokenizer.decode(prompt.token_ids, skip_special_tokens=False)

    def close(self) -> None:
        """End the process in which templates run."""
        self._process.close()

    def _render_batch(self, rows: Sequence[Row]) -> list[Prompt]:
        drafts = [self._begin(row) for row in rows]
        if self._user_template is not None:
            contexts = [self._template_context(draft.row.values) for draft in drafts]
            self._through_template(drafts, self._user_template, contexts)
        if self._chat_template is not None:
            self._to_messages(drafts)
            chats = [
                {"messages": draft.content, "tools": None, "documents": None, "add_generation_prompt": True}
                for draft in drafts
            ]
            self._through_template(drafts, self._chat_template, chats)
        if self.source.kind is not Kind.TOKEN_IDS:
            self._encode(drafts)
        return [self._finish(draft) for draft in drafts]

    def _begin(self, row: Row) -> _Draft:
        """Take the row's own values, and check their types."""
        if row.error is not None:
            return _Draft(row, error=row.error)
        value, error = self._read_value(row)
        params = self._params.defaults
        if error is None and self._options.params_column is not None:
            read = self._params.read(row.values.get(self._options.params_column))
            if isinstance(read, RowError):
                return _Draft(row, error=read)
            params = read
        return _Draft(row, value, params, error=error)

    def _read_value(self, row: Row) -> tuple[Any, RowError | None]:
        source = self.source
        if source.column is None:
            return None, None
        value = row.values.get(source.column)
        if source.kind is Kind.TOKEN_IDS:
            read = read_token_ids(value)
            return (None, read) if isinstance(read, RowError) else (read, None)
        if source.kind is Kind.MESSAGES:
            try:
                messages = read_messages(value)
            except ValueError as error:
                return None, RowError("bad_row", f"column `{source.column}` {error}")
            return messages, None if messages else RowError("empty_prompt", "there are no messages")
        if not isinstance(value, str):
            what = "null" if value is None else f"a {type(value).__name__}, not text"
            return None, RowError("bad_row", f"column `{source.column}` is {what}")
        return value, None

    def _through_template(
        self, drafts: Sequence[_Draft], template: Template, contexts: Sequence[Mapping[str, Any]]
    ) -> None:
        """Replace the content of each draft that has no error by the template's text."""
        alive = [place for place, draft in enumerate(drafts) if draft.error is None]
        texts = template.render([contexts[place] for place in alive])
        for place, text in zip(alive, texts, strict=True):
            if isinstance(text, Fault):
                drafts[place].error = RowError("template_error", text.message)
            else:
                drafts[place].content = text

    def _template_context(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """A column that this row has not is null, as any missing key."""
        return {ALL_COLUMNS: values, **dict.fromkeys(self._template_names), **values}

    def _to_messages(self, drafts: Sequence[_Draft]) -> None:
        for draft in drafts:
            if draft.error is not None:
                continue
            if isinstance(draft.content, str):
                if not draft.content:
                    draft.error = RowError("empty_prompt", "the prompt is an empty text")
                    continue
                draft.content = [user_message(draft.content)]
            draft.content = with_system(draft.content, self._options.system)

    def _encode(self, drafts: Sequence[_Draft]) -> None:
        """Text to ids. A chat template says itself where BOS goes; other text gets what the tokenizer adds."""
        alive = [draft for draft in drafts if draft.error is None]
        add_special_tokens = self._chat_template is None
        try:
            batch = self._tokenizer.encode_batch(
                [draft.content for draft in alive], add_special_tokens=add_special_tokens
            )
        except Exception:  # one text with half a surrogate pair fails them all: find it
            batch = [self._encode_one(draft, add_special_tokens=add_special_tokens) for draft in alive]
        for draft, ids in zip(alive, batch, strict=True):
            draft.content = without_double_bos(ids, self._tokenizer.bos_id)

    def _encode_one(self, draft: _Draft, *, add_special_tokens: bool) -> list[int]:
        try:
            return self._tokenizer.encode(draft.content, add_special_tokens=add_special_tokens)
        except Exception as error:
            draft.error = RowError("bad_row", f"the prompt cannot be tokenized: {error}")
            return []

    def _finish(self, draft: _Draft) -> Prompt:
        if draft.error is None:
            draft.error = self._fit(draft)
        if draft.error is not None or draft.params is None:
            return Prompt(draft.row, (), draft.params or self._params.defaults, error=draft.error)
        watch = PromptText(self._tokenizer, draft.content, draft.params)
        return Prompt(draft.row, draft.content, draft.params, watch, draft.truncated)

    def _fit(self, draft: _Draft) -> RowError | None:
        """Check and cut the ids."""
        ids: list[int] = draft.content
        if not ids:
            return RowError("empty_prompt", "the prompt has no tokens")
        error = check_token_ids(ids, self._vocab_size)
        most = self._options.truncate_prompt
        if most is not None and len(ids) > most:
            draft.content = ids = ids[-most:] if self._options.truncate_side == "left" else ids[:most]
            draft.truncated = True
        if error is None and len(ids) >= self._max_model_len:
            return RowError(
                "prompt_too_long",
                f"{len(ids)} tokens leave no room for a new one in a context of {self._max_model_len}",
            )
        return error


def _template_columns(template: Template, schema_names: Sequence[str]) -> set[str]:
    known = set(schema_names)
    missing = template.names - template.optional - known - {ALL_COLUMNS}
    if missing:
        shown = ", ".join(f"`{name}`" for name in sorted(missing))
        have = ", ".join(f"`{name}`" for name in schema_names)
        raise UsageError(f"--template uses {shown}, which is not in the input", hint=f"the input has {have}")
    uses_all = ALL_COLUMNS in template.names and ALL_COLUMNS not in known
    return known if uses_all else known & template.names
