from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offgen.convert import ConvertOptions, convert
from offgen.errors import JobError

CHAT = [{"role": "user", "content": "hi", "name": "bob"}, {"role": "assistant", "content": None}]


def jsonl(path: Path, *records: Any) -> str:
    path.write_text("".join(json.dumps(r) + "\n" for r in records), "utf-8")
    return str(path)


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def go(src: Any, dst: Any, **options: Any) -> Any:
    return convert(str(src), str(dst), ConvertOptions(**options))


def test_rows_become_requests_that_become_the_same_rows(tmp_path: Path) -> None:
    table = pa.table(
        {
            "id": ["a", "b"],
            "messages": [CHAT, [{"role": "user", "content": "ho", "name": None}]],
            "sampling_params": [{"max_tokens": 5, "logprobs": None}, {"max_tokens": None, "logprobs": 2}],
        }
    )
    pq.write_table(table, tmp_path / "in.parquet")
    go(tmp_path / "in.parquet", tmp_path / "batch.jsonl", output_format="openai-batch", model="m")
    first, second = lines(tmp_path / "batch.jsonl")
    assert first == {
        "custom_id": "a",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "m", "messages": CHAT, "max_tokens": 5},
    }
    assert second["body"]["messages"] == [{"role": "user", "content": "ho"}]
    go(tmp_path / "batch.jsonl", tmp_path / "back.parquet")
    back = pq.read_table(tmp_path / "back.parquet")
    assert back.column("messages").to_pylist()[1][0]["content"] == "ho"
    assert [json.loads(text) for text in back.column("sampling_params").to_pylist()] == [
        {"max_tokens": 5},
        {"logprobs": 2},
    ]
    go(tmp_path / "back.parquet", tmp_path / "again.jsonl", output_format="openai-requests")
    assert lines(tmp_path / "again.jsonl") == lines(tmp_path / "batch.jsonl")


def test_prompts_become_requests_and_rows_without_one_are_named(tmp_path: Path) -> None:
    src = jsonl(tmp_path / "in.jsonl", {"prompt": "x"}, {"text": "y", "custom_id": "c"}, {"other": 1})
    with pytest.raises(JobError, match=r"in\.jsonl:3: has neither"):
        go(src, tmp_path / "out.jsonl", output_format="openai-requests")
    go(src, tmp_path / "out.jsonl", output_format="openai-requests", limit=2)
    got = lines(tmp_path / "out.jsonl")
    assert [(r["custom_id"], r["body"]["messages"][0]["content"]) for r in got] == [("row-0", "x"), ("c", "y")]


def test_completions_become_results_that_become_rows(tmp_path: Path) -> None:
    rows = [
        {"custom_id": "a", "completion": "A", "finish_reason": "stop", "prompt_tokens": 2, "completion_tokens": 3},
        {"custom_id": "b", "completion": None, "finish_reason": "error", "error": "bad_row: no"},
    ]
    src = jsonl(tmp_path / "in.jsonl", *rows)
    go(src, tmp_path / "results.jsonl", output_format="openai-batch", model="m")
    good, bad = lines(tmp_path / "results.jsonl")
    assert good["response"]["body"]["choices"][0]["message"]["content"] == "A"
    assert good["response"]["body"]["usage"]["total_tokens"] == 5
    assert bad["error"] == {"code": "bad_row", "message": "no"}
    go(tmp_path / "results.jsonl", tmp_path / "rows.parquet")
    back = pq.read_table(tmp_path / "rows.parquet").to_pylist()
    assert [(r["custom_id"], r["completion"], r["finish_reason"], r["error"]) for r in back] == [
        ("a", "A", "stop", None),
        ("b", None, "error", "bad_row: no"),
    ]
    assert (back[0]["prompt_tokens"], back[0]["completion_tokens"], back[0]["model"]) == (2, 3, "m")


def test_each_choice_of_a_result_is_a_row(tmp_path: Path) -> None:
    choices = [{"index": i, "message": {"content": f"c{i}"}, "finish_reason": "stop"} for i in range(3)]
    body = {"model": "m", "choices": choices, "usage": {"prompt_tokens": 1, "completion_tokens": 9}}
    text = {"choices": [{"index": 0, "text": "t", "finish_reason": "length"}]}
    src = jsonl(
        tmp_path / "in.jsonl",
        {"id": "1", "custom_id": "x", "response": {"status_code": 200, "body": body}, "error": None},
        {"id": "2", "custom_id": "y", "response": {"status_code": 200, "body": text}, "error": None},
        {"id": "3", "custom_id": "z", "response": None, "error": {"code": "e", "message": "m"}},
    )
    go(src, tmp_path / "rows.jsonl")
    got = [(r["custom_id"], r["sample_index"], r["completion"], r["error"]) for r in lines(tmp_path / "rows.jsonl")]
    assert got[:3] == [("x", i, f"c{i}", None) for i in range(3)]
    assert got[3:] == [("y", 0, "t", None), ("z", 0, None, "e: m")]


@pytest.mark.parametrize("dst", ["chat.jsonl", "chat.parquet"])
def test_rows_become_chats(tmp_path: Path, dst: str) -> None:
    src = jsonl(
        tmp_path / "in.jsonl",
        {"prompt": "q", "completion": "a", "id": 1},
        {"messages": CHAT[:1], "completion": "b", "id": 2},
        {"prompt": "only", "id": 3},
    )
    go(src, tmp_path / dst, output_format="messages")
    got = lines(tmp_path / dst) if dst.endswith("jsonl") else pq.read_table(tmp_path / dst).to_pylist()
    chats = [[(m["role"], m["content"]) for m in row["messages"]] for row in got]
    assert chats == [[("user", "q"), ("assistant", "a")], [("user", "hi"), ("assistant", "b")], [("user", "only")]]
    assert [row["id"] for row in got] == [1, 2, 3]
