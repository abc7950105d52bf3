"""`offgen run` and offgen.Engine on a tiny random model: what the echo model cannot show."""

from __future__ import annotations

import json
import os
import shutil
import signal

import pytest

from offgen import Engine, SamplingParams
from offgen.errors import UsageError
from tests.cli.tiny_chat import CONTEXT

ENGINE = ("--num-gpu-blocks-override", "64", "--max-num-seqs", "4", "--threads", "1")


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_chat_model_answers_and_its_choices_are_told(offgen, prompts, tiny_model, tmp_path):
    prompts(6)
    run = offgen("run", "in.jsonl", "-o", "out.jsonl", "--model", tiny_model, "--max-tokens", "5", *ENGINE, check=0)
    assert "prompts: chat" in run.stderr
    assert "  | <|im_start|>user\n  | prompt 0<|im_end|>" in run.stderr
    assert "engine: cpu float32; 4 rows at once" in run.stderr
    assert "sampling: greedy, max_tokens 5, temperature 0, seed 0" in run.stderr
    rows = rows_of(tmp_path / "out.jsonl")
    assert all(row["completion_tokens"] <= 5 and row["error"] is None for row in rows)
    report = json.loads((tmp_path / "out.jsonl.offgen" / "report.json").read_text())
    assert report["device"] == "cpu"
    assert report["kv_blocks"] == 64
    assert 0 < report["kv_blocks_peak"] <= 64
    assert report["steps"] > 0
    assert 0 <= report["bubble_ratio"] < 1
    assert all(0 <= point["kv_used"] <= 1 for point in report["timeline"])
    record = json.loads((tmp_path / "out.jsonl.offgen" / "run.json").read_text())["run"]
    assert record["engine"]["max_num_seqs"] == 4


def test_rows_that_cannot_be_served_are_error_rows(offgen, tiny_model, tmp_path):
    long = "fox " * 2 * CONTEXT
    lines = [{"prompt": "fox", "p": None}, {"prompt": long, "p": None}, {"prompt": "fox", "p": {"top_p": 7}}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    offgen(
        "run", "in.jsonl", "-o", "out.jsonl", "--model", tiny_model, "--max-tokens", "3", "--params-column", "p",
        "--quiet", *ENGINE, check=3,
    )  # fmt: skip
    kinds = [(row["error"] or "").split(":")[0] for row in rows_of(tmp_path / "out.jsonl")]
    assert kinds == ["", "prompt_too_long", "bad_params"]


def test_a_model_that_cannot_be_opened_is_exit_2_and_writes_nothing(offgen, prompts, tiny_model, tmp_path):
    prompts(2)
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in tiny_model.iterdir():
        content = file.read_bytes()
        (broken / file.name).write_bytes(content[:-1000] if file.suffix == ".safetensors" else content)
    before = sorted(tmp_path.iterdir())
    for output in ("out.parquet", "folder/"):
        refused = offgen("run", "in.jsonl", "-o", output, "--model", "broken", check=2)
        assert "safetensors" in refused.stderr
    offgen("run", "in.jsonl", "-o", "out.parquet", "--model", "./nowhere", check=2)
    offgen("run", "in.jsonl", "-o", "out.parquet", "--model", tiny_model, "--device", "cuda", check=2)
    assert sorted(tmp_path.iterdir()) == before


def test_options_that_only_the_model_makes_senseless_are_exit_2(offgen, prompts, tiny_model):
    prompts(2)
    for option, value in (("--logit-bias", '{"99999": 1}'), ("--stop-token-ids", "99999")):
        refused = offgen("run", "in.jsonl", "-o", "out.parquet", "--model", tiny_model, option, value, check=2)
        assert "99999" in refused.stderr


def test_a_tokenizer_with_more_ids_than_the_model_is_told_and_its_rows_fail_alone(offgen, tiny_model, tmp_path):
    from transformers import AutoModelForCausalLM

    small = shutil.copytree(tiny_model, tmp_path / "small")
    model = AutoModelForCausalLM.from_pretrained(small)
    size = 180  # enough for the template's ids and for "a"; not for merged words
    model.resize_token_embeddings(size)
    model.save_pretrained(small)
    (tmp_path / "in.jsonl").write_text('{"prompt": "a"}\n{"prompt": "quick brown"}\n')
    run = offgen("run", "in.jsonl", "-o", "out.jsonl", "--model", small, "--raw", "--max-tokens", "2", *ENGINE, check=3)
    assert f"ids and the model {size}" in run.stderr
    kinds = [(row["error"] or "").split(":")[0] for row in rows_of(tmp_path / "out.jsonl")]
    assert kinds == ["", "token_out_of_range"]


def test_the_triton_backend_writes_what_the_cpu_backend_writes(offgen, prompts, tiny_model, tmp_path):
    prompts(2)
    for name in ("cpu", "triton"):
        offgen(
            "run", "in.jsonl", "-o", f"{name}.jsonl", "--model", tiny_model, "--max-tokens", "3", "--device", "cpu",
            "--attention-backend", name, "--quiet", "--no-stats", *ENGINE, check=0,
        )  # fmt: skip
    assert rows_of(tmp_path / "triton.jsonl") == rows_of(tmp_path / "cpu.jsonl")


def test_samples_are_rows_and_one_failed_sample_fails_the_row(offgen, prompts, tiny_model, tmp_path):
    prompts(3)
    command = ("--model", tiny_model, "--max-tokens", "3", "--n", "2", "--temperature", "1", "--quiet", *ENGINE)
    offgen("run", "in.jsonl", "-o", "out.jsonl", *command, check=0)
    assert [(row["row_id"], row["sample_index"]) for row in rows_of(tmp_path / "out.jsonl")] == [
        (row_id, sample) for row_id in range(3) for sample in range(2)
    ]


@pytest.fixture(scope="module")
def engine(tiny_model):
    return Engine(str(tiny_model), num_gpu_blocks_override=64, max_num_seqs=4, threads=1)


def in_order(completions):
    return sorted(completions, key=lambda completion: (completion.row.row_id, completion.sample_index))


def test_the_python_engine_takes_texts_ids_and_messages(engine):
    params = SamplingParams(max_tokens=4, ignore_eos=True)
    chat = [{"role": "user", "content": "The quick brown fox"}]
    done = in_order(engine.generate(["The quick brown fox", [5, 6, 7], chat], params))
    assert [completion.row.row_id for completion in done] == [0, 1, 2]
    assert all(completion.num_completion_tokens == 4 and completion.error is None for completion in done)
    assert done[0].text == done[2].text
    assert done[1].num_prompt_tokens == 3


def test_the_python_engine_gives_errors_as_completions_and_can_be_used_again(engine):
    done = in_order(engine.generate(["", [10**6], "fox"], SamplingParams(max_tokens=2)))
    assert [completion.error.type if completion.error else None for completion in done] == [
        "empty_prompt", "token_out_of_range", None,
    ]  # fmt: skip
    assert len(list(engine.generate(["fox", "dog"]))) == 2


def test_the_python_engine_checks_what_it_is_given(tiny_model, engine):
    with pytest.raises(UsageError, match="max_num_seq` is not an option"):
        Engine(str(tiny_model), max_num_seq=4)
    with pytest.raises(UsageError, match="max_num_seqs"):
        Engine(str(tiny_model), max_num_seqs=0)
    with pytest.raises(ValueError, match="top_p"):
        list(engine.generate(["fox"], SamplingParams(top_p=3.0)))


def test_openai_requests_come_in_and_go_out(offgen, tiny_model, tmp_path):
    body = {"model": "x", "messages": [{"role": "user", "content": "The quick brown fox"}], "max_tokens": 3}
    requests = [{"custom_id": f"r{i}", "method": "POST", "url": "/v1/chat/completions", "body": body} for i in range(3)]
    (tmp_path / "batch.jsonl").write_text("".join(json.dumps(request) + "\n" for request in requests))
    command = ("--model", tiny_model, "--output-format", "openai-batch", "--quiet", *ENGINE)
    offgen("run", "batch.jsonl", "-o", "results.jsonl", *command, check=0)
    results = rows_of(tmp_path / "results.jsonl")
    assert [result["custom_id"] for result in results] == ["r0", "r1", "r2"]
    assert all(result["response"]["body"]["usage"]["completion_tokens"] <= 3 for result in results)


def test_a_signal_while_the_model_loads_ends_the_job_at_once(offgen, prompts, tiny_model, tmp_path, monkeypatch):
    def interrupted(*args, **kwargs):
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("not reached")

    prompts(2)
    command = ("run", "in.jsonl", "-o", "out.jsonl", "--model", tiny_model, "--max-tokens", "2", *ENGINE)
    with monkeypatch.context() as patch:
        patch.setattr("offgen.engine.opening.load_model", interrupted)
        stopped = offgen(*command, check=143)
    assert "stopped: by SIGTERM; 0 rows are finished" in stopped.stderr
    offgen(*command, check=0)
    assert len(rows_of(tmp_path / "out.jsonl")) == 2
