"""Rows made into other rows: OpenAI batch requests and results, chat messages. Python records in, records out.

Knows names of fields; knows no file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Record = Mapping[str, Any]
Shape = Callable[[Record, int], Iterator[dict[str, Any]]]

_REQUEST = ("custom_id", "method", "url", "body")
_TEXT_COLUMNS = ("prompt", "text")


def from_result(record: Record, row_id: int) -> Iterator[dict[str, Any]]:
    """A result line as rows: custom_id and the completion, one row for each choice."""
    response: Record = record.get("response") or {}
    body: Record = response.get("body") or {}
    error = record.get("error") or body.get("error")
    usage = body.get("usage") or {}
    common = {"custom_id": record.get("custom_id"), "model": body.get("model")}
    tokens = {"prompt_tokens": usage.get("prompt_tokens"), "completion_tokens": usage.get("completion_tokens")}
    choices = body.get("choices") or []
    if error or not choices:
        text = _error_text(error) if error else f"status {response.get('status_code')}: no choices"
        yield {**common, "sample_index": 0, "completion": None, "finish_reason": "error", **tokens, "error": text}
        return
    for choice in choices:
        message = choice.get("message") or {}
        completion = choice.get("text") if "text" in choice else message.get("content")
        yield {
            **common,
            "sample_index": choice.get("index", 0),
            "completion": completion,
            "finish_reason": choice.get("finish_reason"),
            **tokens,
            "error": None,
        }


def _error_text(error: Any) -> str:
    if not isinstance(error, dict):
        return str(error)
    return f"{error.get('code') or error.get('type') or 'error'}: {error.get('message')}"


def to_request(record: Record, row_id: int, *, model: str | None = None) -> Iterator[dict[str, Any]]:
    """A row as a request line; a row that was read from one goes back as it was."""
    if isinstance(record.get("body"), dict) and record.get("custom_id") is not None:
        yield {**{name: record.get(name) for name in _REQUEST}, "body": _without_nulls(record["body"])}
        return
    body: dict[str, Any] = {"model": model or record.get("model") or "default"}
    messages, text = _messages_of(record), _text_of(record)
    if messages is not None:
        body["messages"] = messages
    elif text is not None:
        body["messages"] = [{"role": "user", "content": text}]
    else:
        raise ValueError("has neither `messages` nor `prompt`")
    body.update(_params_of(record))
    yield {"custom_id": _id_of(record, row_id), "method": "POST", "url": "/v1/chat/completions", "body": body}


def to_result(record: Record, row_id: int, *, model: str | None = None) -> Iterator[dict[str, Any]]:
    """A row with a completion as a result line."""
    if "completion" not in record:
        raise ValueError("has no `completion`")
    custom_id, error = _id_of(record, row_id), record.get("error")
    line: dict[str, Any] = {"id": f"batch_req_{row_id}", "custom_id": custom_id, "response": None, "error": None}
    if error:
        code, _, text = str(error).partition(": ")
        line["error"] = {"code": code, "message": text or code}
    else:
        prompt_tokens, completion_tokens = record.get("prompt_tokens") or 0, record.get("completion_tokens") or 0
        message = {"role": "assistant", "content": record["completion"], "refusal": None}
        choice = {"index": record.get("sample_index") or 0, "message": message, "logprobs": None}
        body = {
            "id": f"chatcmpl-{row_id}",
            "object": "chat.completion",
            "created": 0,
            "model": model or record.get("model") or "default",
            "choices": [{**choice, "finish_reason": record.get("finish_reason") or "stop"}],
            "usage": {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": completion_tokens,
                "total_tokens": prompt_tokens + completion_tokens,
            },
        }
        line["response"] = {"status_code": 200, "request_id": f"req_{row_id}", "body": body}
    yield line


def to_messages(record: Record, row_id: int) -> Iterator[dict[str, Any]]:
    """A row as a chat: its messages (or its prompt as the user's), then its completion as the assistant's."""
    messages, text = _messages_of(record), _text_of(record)
    if messages is None:
        if text is None:
            raise ValueError("has neither `messages` nor `prompt`")
        messages = [{"role": "user", "content": text}]
    if record.get("completion") is not None:
        messages = [*messages, {"role": "assistant", "content": record["completion"]}]
    gone = {"messages", "completion", *_TEXT_COLUMNS}
    yield {"messages": messages, **{name: value for name, value in record.items() if name not in gone}}


def _messages_of(record: Record) -> list[Any] | None:
    messages = record.get("messages")
    if isinstance(messages, str):  # a CSV's, or JSON text
        messages = json.loads(messages)
    return None if not isinstance(messages, list) else [_without_nulls(message) for message in messages]


def _text_of(record: Record) -> str | None:
    return next((record[name] for name in _TEXT_COLUMNS if isinstance(record.get(name), str)), None)


def _id_of(record: Record, row_id: int) -> str:
    for name in ("custom_id", "id", "row_id"):
        if record.get(name) is not None:
            return str(record[name])
    return f"row-{row_id}"


def _params_of(record: Record) -> dict[str, Any]:
    params = record.get("sampling_params")
    if isinstance(params, str):
        params = json.loads(params)
    if not isinstance(params, dict):
        return {}
    body = {name: value for name, value in params.items() if value is not None}
    if "logprobs" in body:
        body["top_logprobs"], body["logprobs"] = body["logprobs"], True
    return body


def _without_nulls(value: Any) -> Any:
    """Structs of Parquet give absent keys as None; a message says only what it says."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None or key == "content"}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
