"""How a row becomes a prompt, as the user asked. Pure; field names are those of the command line."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PromptOptions:
    """At most one of prompt_column, messages_column, template and token_ids_column is set; none: the usual columns.

    chat           True, False, or None: text goes through the model's chat template if it has one
    truncate_side  the side that is cut: `left` or `right`
    """

    prompt_column: str | None = None
    messages_column: str | None = None
    template: str | None = None
    token_ids_column: str | None = None
    system: str | None = None
    chat: bool | None = None
    truncate_prompt: int | None = None
    truncate_side: str = "left"
    params_column: str | None = None
