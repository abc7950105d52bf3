from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from offgen.readers import open_input
from offgen.readers.openai_batch import sampling_params

MESSAGES = [{"role": "user", "content": "hi"}]


def request(i: int, url: str = "/v1/chat/completions", **body: Any) -> dict[str, Any]:
    return {"custom_id": f"r{i}", "method": "POST", "url": url, "body": {"model": "m", **body}}


def write(folder: Path, *requests: Any) -> str:
    path = folder / "batch.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in requests))
    return str(path)


def test_requests_become_rows_with_messages_and_parameters(tmp_path: Path, read: Any) -> None:
    path = write(
        tmp_path,
        request(0, messages=MESSAGES, temperature=0.5, max_tokens=7, stop=["a"], user="u", stream=False),
        request(1, messages=MESSAGES, max_completion_tokens=9, top_p=None, response_format={"type": "text"}),
    )
    source = open_input([path])
    assert source.is_openai_batch
    assert source.schema.names == ["custom_id", "method", "url", "body", "messages", "sampling_params"]
    got = read(source, ["custom_id", "messages", "sampling_params"])
    assert [v["custom_id"] for v in got.values] == ["r0", "r1"]
    assert [v["messages"] for v in got.values] == [MESSAGES, MESSAGES]
    assert [json.loads(v["sampling_params"]) for v in got.values] == [
        {"temperature": 0.5, "stop": ["a"], "max_tokens": 7},
        {"max_tokens": 9},
    ]
    assert got.table.column("sampling_params").type == pa.string()
    assert got.table.column("body").to_pylist()[0]["messages"] == MESSAGES


def test_completion_requests_bring_a_prompt(tmp_path: Path, read: Any) -> None:
    got = read(write(tmp_path, request(0, "/v1/completions", prompt="Once", logprobs=3, n=2)), ["prompt"])
    assert got.values == [{"prompt": "Once"}]
    assert json.loads(got.table.column("sampling_params")[0].as_py()) == {"n": 2, "logprobs": 3}


def test_lines_that_are_no_requests_are_error_rows(tmp_path: Path, read: Any) -> None:
    path = write(
        tmp_path,
        request(0, messages=MESSAGES),
        {"custom_id": "x"},
        request(2, "/v1/embeddings", input="x"),
        request(3, prompt=["a", "b"]),
        request(4, messages=MESSAGES),
    )
    got = read(path, ["custom_id"])
    assert list(got.errors) == [1, 2, 3]
    assert "neither `messages` nor `prompt`" in got.errors[2]


def test_the_format_is_seen_by_content_or_named(tmp_path: Path) -> None:
    assert not open_input([write(tmp_path, {"prompt": "x", "body": {}})]).is_openai_batch
    assert open_input([write(tmp_path, {"body": {"prompt": "x"}})], input_format="openai-batch").is_openai_batch
    assert open_input([write(tmp_path, "bad", request(0, prompt="x"))]).is_openai_batch


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"model": "m", "messages": [], "metadata": {"a": "b"}, "store": True}, {}),
        ({"max_tokens": 5, "max_completion_tokens": 6}, {"max_tokens": 6}),
        ({"logprobs": True, "top_logprobs": 4}, {"logprobs": 4}),
        ({"logprobs": True}, {"logprobs": 0}),
        ({"logprobs": False, "top_logprobs": None}, {}),
        ({"logit_bias": {"5": -100}, "seed": 1, "top_k": 3}, {"logit_bias": {"5": -100}, "seed": 1, "top_k": 3}),
        ({"stream": True, "tools": [{"type": "function"}]}, {"stream": True, "tools": [{"type": "function"}]}),
        ({"echo": False, "best_of": 1, "tools": [], "suffix": None}, {}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}},
            {"json_schema": {"type": "object"}},
        ),
        ({"response_format": {"type": "json_object"}}, {"response_format": {"type": "json_object"}}),
    ],
)
def test_parameters_keep_their_meaning_and_unknown_ones_are_not_dropped(body: Any, expected: Any) -> None:
    assert sampling_params(body) == expected
