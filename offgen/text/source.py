"""Which columns of a row its prompt is made of, and how: decided once, from the options and the input's columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum

from offgen.errors import UsageError
from offgen.text.options import PromptOptions


class Kind(Enum):
    TEXT = "text"
    MESSAGES = "messages"
    TEMPLATE = "template"
    TOKEN_IDS = "token_ids"


@dataclass(frozen=True, slots=True)
class PromptSource:
    """column is None for a template, which takes several."""

    kind: Kind
    column: str | None
    is_chat: bool


def choose_source(options: PromptOptions, columns: Sequence[str], *, has_chat_template: bool) -> PromptSource:
    """Raises UsageError if the column is not there, or the choice needs a chat template that the model has not."""
    kind, column = _choose_column(options, columns)
    if column is not None and column not in columns:
        raise _missing(column, columns, kind)
    if kind is Kind.TOKEN_IDS:
        return PromptSource(kind, column, is_chat=False)
    is_chat = kind is Kind.MESSAGES or (has_chat_template if options.chat is None else options.chat)
    if options.system is not None and not is_chat and options.chat is None:
        is_chat = True
    if is_chat and not has_chat_template:
        what = "messages" if kind is Kind.MESSAGES else "--system" if options.system is not None else "--chat"
        raise UsageError(
            f"the model has no chat template, which {what} needs: it is a base model",
            hint="take a chat model, or make the prompt with --template",
        )
    return PromptSource(kind, column, is_chat)


def _choose_column(options: PromptOptions, columns: Sequence[str]) -> tuple[Kind, str | None]:
    if options.token_ids_column is not None:
        return Kind.TOKEN_IDS, options.token_ids_column
    if options.template is not None:
        return Kind.TEMPLATE, None
    if options.messages_column is not None:
        return Kind.MESSAGES, options.messages_column
    if options.prompt_column is not None:
        return Kind.TEXT, options.prompt_column
    for name, kind in (("prompt", Kind.TEXT), ("text", Kind.TEXT), ("messages", Kind.MESSAGES)):
        if name in columns:
            return kind, name
    raise UsageError(
        f"the input has no column `prompt`, `text` or `messages`; it has {_list(columns)}",
        hint=f"--prompt-column {columns[0]}" if columns else "the input has no columns at all",
    )


def _missing(column: str, columns: Sequence[str], kind: Kind) -> UsageError:
    close = get_close_matches(column, columns, n=1)
    flag = {Kind.TEXT: "--prompt-column", Kind.MESSAGES: "--messages-column"}.get(kind, "--token-ids-column")
    return UsageError(
        f"column `{column}` is not in the input, which has {_list(columns)}",
        hint=f"{flag} {close[0]}" if close else None,
    )


def _list(columns: Sequence[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in columns[:10])
    return shown + (f" and {len(columns) - 10} more" if len(columns) > 10 else "") if columns else "no columns"
