"""OpenAI batch request files: JSON lines of {custom_id, method, url, body}, as rows.

The body's messages (or prompt) become a column, its sampling parameters the column `sampling_params` (JSON text, names
as in vLLM's SamplingParams); all original columns stay. Knows lines; knows nothing of sampling but the names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from offgen.json_text import dumps
from offgen.readers.json_columns import Record
from offgen.readers.jsonl import BadLine, parse_object

PARAMS_COLUMN = "sampling_params"

# what a body may say that does not shape the completion
_IGNORED = frozenset(
    {
        *("model", "messages", "prompt"),
        *("user", "metadata", "store", "stream_options", "service_tier", "safety_identifier"),
        *("prompt_cache_key", "prompt_cache_retention", "parallel_tool_calls"),
        *("logprobs", "top_logprobs", "max_tokens", "max_completion_tokens"),  # translated below
    }
)
# values that ask for nothing
_NEUTRAL: Mapping[str, Any] = {
    "stream": False,
    "echo": False,
    "best_of": 1,
    "response_format": {"type": "text"},
    "tool_choice": "none",
    "modalities": ["text"],
    "suffix": "",
    "tools": [],
}


def is_request(record: Record) -> bool:
    """Whether a JSON object is a line of an OpenAI batch request file."""
    return isinstance(record.get("body"), dict) and isinstance(record.get("custom_id"), str) and "url" in record


def parse_request(line: bytes) -> Record:
    """One line as a row: the request's own fields, `messages` or `prompt`, and `sampling_params`."""
    request = parse_object(line)
    body = request.get("body")
    if not isinstance(body, dict):
        raise BadLine("not an OpenAI batch request: `body` is not an object")
    row = dict(request)
    if body.get("messages") is not None:
        row["messages"] = body["messages"]
    elif isinstance(body.get("prompt"), str):
        row["prompt"] = body["prompt"]
    elif body.get("prompt") is not None:
        raise BadLine("`body.prompt` is not one text: one request a line, please")
    else:
        raise BadLine("`body` has neither `messages` nor `prompt`")
    row[PARAMS_COLUMN] = dumps(sampling_params(body))
    return row


def sampling_params(body: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a request body under vLLM's names. Unknown ones stay, so that they are refused, not ignored."""
    params = {
        name: value
        for name, value in body.items()
        if value is not None and name not in _IGNORED and _NEUTRAL.get(name, _NEUTRAL) != value
    }
    for name in ("max_tokens", "max_completion_tokens"):
        if body.get(name) is not None:
            params["max_tokens"] = body[name]
    logprobs = body.get("logprobs")
    if logprobs is True:
        params["logprobs"] = body.get("top_logprobs") or 0
    elif logprobs is not None and logprobs is not False:
        params["logprobs"] = logprobs
    schema = (body.get("response_format") or {}) if isinstance(body.get("response_format"), dict) else {}
    if schema.get("type") == "json_schema":
        params.pop("response_format", None)
        params["json_schema"] = (schema.get("json_schema") or {}).get("schema")
    return params
