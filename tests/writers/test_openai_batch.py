"""`--output-format openai-batch`: result lines that OpenAI's own types take."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from writer_jobs import Job, rows_of, table_of

from offgen.records import Completion, TokenLogprob

types = pytest.importorskip("openai.types.chat")


def lines_of(target: str) -> list[dict[str, Any]]:
    path = Path(target)
    files = [path] if path.is_file() else sorted(path.glob("part-*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


@pytest.mark.parametrize("name", ["out/", "out.jsonl"])
def test_lines_are_batch_results_in_input_order(job: Callable[..., Job], name: str) -> None:
    table = table_of(6, custom_id=[f"mine-{place}" for place in range(6)])
    options = {"format": "openai-batch", "num_samples": 2, "model": "tiny"}
    made = job(name, table=table, options=options, fails=lambda row_id: row_id == 4, order=lambda rows: rows[::-1])
    made.run(stop_after=3)
    made.run()
    lines = lines_of(made.target)
    assert [line["custom_id"] for line in lines] == [f"mine-{place}" for place in range(6)]
    completion = types.ChatCompletion.model_validate(lines[1]["response"]["body"])
    assert lines[1]["response"]["status_code"] == 200 and lines[1]["error"] is None
    assert [choice.message.content for choice in completion.choices] == ["text 1.0", "text 1.1"]
    assert completion.model == "tiny" and completion.choices[0].finish_reason == "stop"
    assert completion.usage is not None and completion.usage.total_tokens == 3 + 5 + 6
    assert lines[4]["error"]["code"] == "bad_row" and lines[4]["response"]["status_code"] == 400


def test_logprobs_name_tokens_by_their_ids(job: Callable[..., Job]) -> None:
    table = table_of(2, url=["/v1/chat/completions", "/v1/completions"])
    made = job("out.jsonl", table=table, options={"format": "openai-batch", "with_logprobs": True})
    output = made.open()
    output.start(fingerprint={}, run={}, overwrite=False, resume=True, retry_errors=False)
    token = TokenLogprob(7, -0.5, 1, ((7, -0.5), (8, float("-inf"))))
    for row in rows_of(table):
        output.write(Completion(row, text="x", finish_reason="stop", logprobs=[token]))
    output.end_of_input(2)
    output.finish()
    chat, text = (line["response"]["body"] for line in lines_of(made.target))
    choice = types.ChatCompletion.model_validate(chat).choices[0]
    assert choice.logprobs.content[0].token == "token_id:7" and choice.logprobs.content[0].logprob == -0.5
    assert [one.logprob for one in choice.logprobs.content[0].top_logprobs] == [-0.5, -9999.0]
    from openai.types import Completion as TextCompletion

    assert TextCompletion.model_validate(text).choices[0].logprobs.token_logprobs == [-0.5]


def test_completions_requests_get_text_completions(job: Callable[..., Job]) -> None:
    made = job("out.jsonl", table=table_of(1, url=["/v1/completions"]), options={"format": "openai-batch"})
    made.run()
    body = lines_of(made.target)[0]["response"]["body"]
    from openai.types import Completion

    assert Completion.model_validate(body).choices[0].text == "text 0.0"
