"""`offgen plan` and `offgen bench` on a tiny model."""

from __future__ import annotations

import json

from tests.cli.tiny_chat import CONTEXT


def test_a_plan_counts_rows_tokens_and_what_will_not_fit(offgen, tiny_model, tmp_path):
    shared = "The quick brown fox jumps over the lazy dog. " * 3
    rows = [{"prompt": f"{shared}{i}"} for i in range(20)] + [{"prompt": "fox " * 2 * CONTEXT}, {"prompt": None}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ("--model", tiny_model, "--max-tokens", "10", "--kv-cache-memory", "1MiB")
    plan = json.loads(offgen("plan", "in.jsonl", *options, "--json", check=0).stdout)
    assert plan["rows"] == 22
    assert plan["rows_that_will_not_fit"] == 1
    assert plan["errors"] == {"prompt_too_long": 1, "bad_row": 1}
    assert [example["row_id"] for example in plan["error_examples"]] == [20, 21]
    assert sum(one["rows"] for one in plan["prompt_tokens_histogram"]) == 20
    assert plan["max_output_tokens"] == 200
    assert 0.5 < plan["shared_prefix_share"] < 1
    assert plan["memory"]["kv_pool_bytes"] == 1 << 20
    assert 0 < plan["forecast"]["low_s"] < plan["forecast"]["expected_s"] < plan["forecast"]["high_s"]
    text = offgen("plan", "in.jsonl", *options, check=0).stdout
    assert "rows     22, 2 of them will fail" in text
    assert "in.jsonl:21: prompt_too_long" in text


def test_a_plan_refuses_what_run_would_refuse(offgen, prompts, tiny_model):
    prompts(2)
    offgen("plan", "in.jsonl", check=2)
    offgen("plan", "in.jsonl", "--model", tiny_model, "--prompt-column", "nope", check=2)
    offgen("plan", "-", "--model", tiny_model, check=2)


def test_a_bench_measures_the_modes_side_by_side(offgen, tiny_model):
    run = offgen(
        "bench", "list:30/2/2/2/2/2/2/30", "--model", tiny_model, "--max-num-seqs", "4", "--profile",
        "--num-gpu-blocks-override", "64", "--threads", "1", check=0,
    )  # fmt: skip
    static, dynamic, continuous = (json.loads(line) for line in run.stdout.splitlines())
    assert [one["batching"] for one in (static, dynamic, continuous)] == ["static", "dynamic", "continuous"]
    assert static["completion_tokens"] == continuous["completion_tokens"] == 72
    assert static["bubble_ratio"] > continuous["bubble_ratio"] >= 0
    assert static["steps"] > continuous["steps"]
    assert static["speedup"] == 1
    assert "part of a step" in run.stderr
    assert "bubble" in run.stderr


def test_a_bench_without_model_or_mode_is_refused(offgen, tiny_model):
    offgen("bench", check=2)
    offgen("bench", "--model", tiny_model, "--batching", "fast", check=2)
    offgen("bench", "nope.jsonl", "--model", tiny_model, check=2)
