"""Chat messages of a row, checked and cleaned for a chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

# Names under which data carries a message's reasoning; templates read the first (some the second).
_REASONING = ("reasoning_content", "thinking", "reasoning")

Message = dict[str, Any]


def user_message(text: str) -> Message:
    return {"role": "user", "content": text}


def with_system(messages: Sequence[Message], system: str | None) -> list[Message]:
    """`--system` comes first, unless the row brings a system message of its own."""
    if system is None or (messages and messages[0]["role"] == "system"):
        return list(messages)
    return [{"role": "system", "content": system}, *messages]


def read_messages(value: Any) -> list[Message]:
    """A list of {role, content, …}, or the same as JSON text. Keys whose value is None are dropped at every depth: a
    Parquet column has them in all its rows as soon as one row has them.

    Raises ValueError with what is wrong.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ValueError(f"is text, but not JSON: {error}") from None
    if value is None:
        raise ValueError("is null")
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise ValueError(f"must be a list of messages, not {type(value).__name__}")
    return [_read_message(message, place) for place, message in enumerate(value)]


def _read_message(value: Any, place: int) -> Message:
    if not isinstance(value, Mapping):
        raise ValueError(f"message {place} must be an object with role and content, not {type(value).__name__}")
    message: Message = _without_nulls(value)
    if not isinstance(message.get("role"), str):
        raise ValueError(f"message {place} has no `role`")
    if not isinstance(message.get("content", ""), str | list):
        raise ValueError(f"message {place}: `content` must be text, not {type(message['content']).__name__}")
    reasoning = next((message[name] for name in _REASONING if name in message), None)
    return message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(one) for key, one in value.items() if one is not None}
    if isinstance(value, list | tuple):
        return [_without_nulls(one) for one in value]
    return value
