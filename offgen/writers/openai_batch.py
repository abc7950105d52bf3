"""Output rows as OpenAI batch results: one line for each input row, which OpenAI's client types parse.

Nothing in a line depends on when it was made: `created` is 0 and ids come from the row id, so that a resumed job
writes the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import pyarrow as pa

from offgen.json_text import dumps
from offgen.writers.schema import OutputSchema

_SLICE_ROWS = 256
_UNLIKELY = -9999.0  # OpenAI's own stand-in where there is no finite value
_STATUS = {"bad_row": 400, "non_finite_logits": 500}


class OpenAIBatchLines:
    """Lines of output rows. The samples of a row must lie together, as they do in every shard."""

    def __init__(self, schema: OutputSchema, model: str) -> None:
        self._schema = schema
        self._model = model

    def lines(self, batch: pa.RecordBatch) -> Iterator[str]:
        slices = (batch.slice(start, _SLICE_ROWS) for start in range(0, batch.num_rows, _SLICE_ROWS))
        samples = (sample for rows in slices for sample in self._samples(rows))
        for _, row in groupby(samples, key=lambda one: one["row_id"]):
            yield self._line(list(row))

    def _samples(self, batch: pa.RecordBatch) -> list[dict[str, Any]]:
        names = ["row_id", "completion", "finish_reason", "prompt_tokens", "completion_tokens", "error"]
        optional = ("sample_index", "stats", "logprobs", "completion_token_ids", "stop_reason")
        names += [name for name in optional if self._schema.has_own(name)]
        columns = {name: self._schema.own(batch, name).to_pylist() for name in names}
        for name, source in (("custom_id", "custom_id"), ("method", "method"), ("url", "url"), ("model", "model")):
            if source in batch.schema.names:
                columns[name] = batch.column(source).to_pylist()
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]

    def _line(self, samples: list[dict[str, Any]]) -> str:
        first = samples[0]
        row_id = first["row_id"]
        custom_id = first.get("custom_id")
        line: dict[str, Any] = {
            "id": f"batch_req_{row_id}",
            "custom_id": f"request-{row_id}" if custom_id is None else str(custom_id),
            "response": None,
            "error": None,
        }
        failed = next((one["error"] for one in samples if one["error"] is not None), None)
        if failed is None:
            body = self._text_body(samples) if _is_text(first) else self._chat_body(samples)
            line["response"] = {"status_code": 200, "request_id": f"req_{row_id}", "body": body}
        else:
            code, _, message = failed.partition(": ")
            error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
            status = _STATUS.get(code, 400)
            line["response"] = {"status_code": status, "request_id": f"req_{row_id}", "body": {"error": error}}
            line["error"] = {"code": code, "message": message}
        return dumps(line)

    def _chat_body(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        choices = [
            {
                "index": one.get("sample_index", 0),
                "message": {"role": "assistant", "content": one["completion"], "refusal": None},
                "logprobs": _chat_logprobs(one.get("logprobs")),
                "finish_reason": one["finish_reason"],
            }
            for one in samples
        ]
        return self._body(samples, f"chatcmpl-{samples[0]['row_id']}", "chat.completion", choices)

    def _text_body(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        choices = [
            {
                "index": one.get("sample_index", 0),
                "text": one["completion"],
                "logprobs": _text_logprobs(one.get("logprobs")),
                "finish_reason": one["finish_reason"],
            }
            for one in samples
        ]
        return self._body(samples, f"cmpl-{samples[0]['row_id']}", "text_completion", choices)

    def _body(self, samples: list[dict[str, Any]], name: str, kind: str, choices: list[Any]) -> dict[str, Any]:
        prompt_tokens = samples[0]["prompt_tokens"]
        completion_tokens = sum(one["completion_tokens"] for one in samples)
        return {
            "id": name,
            "object": kind,
            "created": 0,
            "model": samples[0].get("model") or self._model,
            "choices": choices,
            "usage": {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": completion_tokens,
                "total_tokens": prompt_tokens + completion_tokens,
            },
        }


def _is_text(sample: dict[str, Any]) -> bool:
    """/v1/completions rather than /v1/chat/completions."""
    url = str(sample.get("url") or "")
    return url.endswith("/completions") and not url.endswith("/chat/completions")


def _token(entry: dict[str, Any]) -> dict[str, Any]:
    """A token is named by its id, as vLLM does with return_tokens_as_token_ids: a writer knows no vocabulary."""
    return {"token": f"token_id:{entry['token_id']}", "logprob": _number(entry["logprob"]), "bytes": None}


def _number(logprob: float | None) -> float:
    return _UNLIKELY if logprob is None else logprob


def _chat_logprobs(entries: list[Any] | None) -> dict[str, Any] | None:
    if entries is None:
        return None
    known = [entry for entry in entries if entry is not None]
    content = [{**_token(entry), "top_logprobs": [_token(one) for one in entry["top"] or []]} for entry in known]
    return {"content": content, "refusal": None}


def _text_logprobs(entries: list[Any] | None) -> dict[str, Any] | None:
    if entries is None:
        return None
    tokens = [_token(entry) for entry in entries if entry is not None]
    tops = [[_token(one) for one in entry["top"] or []] for entry in entries if entry is not None]
    return {
        "tokens": [one["token"] for one in tokens],
        "token_logprobs": [one["logprob"] for one in tokens],
        "top_logprobs": [{one["token"]: one["logprob"] for one in top} for top in tops],
        "text_offset": [],
    }
