"""The front door: help, versions, messages for what the parser refuses."""

from __future__ import annotations

import pytest

import offgen as package
from offgen.cli.app import COMMANDS

FLAGS = """
--input-format --subset --split -o --output --output-format --model --revision --prompt-column --messages-
column --template --system --token-ids-column --chat --raw --truncate-prompt --truncate-side --max-tokens
--temperature --top-p --top-k --min-p --repetition-penalty --presence-penalty --frequency-penalty --min-tokens
--stop --stop-token-ids --ignore-eos --seed --n --logprobs --prompt-logprobs --logit-bias --bad-words --json-
schema --regex --grammar --choice --skip-special-tokens --no-skip-special-tokens --generation-config --params-
column --device --dtype --max-model-len --max-num-seqs --max-num-batched-tokens --block-size --num-gpu-blocks-
override --gpu-memory-utilization --kv-cache-memory --kv-cache-dtype --prefix-caching --no-prefix-caching
--chunked-prefill --no-chunked-prefill --batching --order-policy --quantization --load-format --model-impl
--attention-backend --lora --tokenizer --threads --enforce-eager --batch-invariant --no-batch-invariant
--limit --skip --shard --columns --drop-columns --id-column --rows-per-shard --row-order --column-prefix
--output-token-ids --no-stats --overwrite --no-resume --retry-errors --allow-errors --max-errors --flush-
interval --report --config --progress --quiet --log-interval --metrics-file --metrics-port
"""


def test_the_version(offgen):
    assert offgen("--version", check=0).stdout == f"offgen {package.__version__}\n"


def test_help_lists_every_command(offgen):
    text = offgen("--help", check=0).stdout
    assert all(f"\n  {name} " in text for name in COMMANDS)


@pytest.mark.parametrize("command", ["run", "report", "info"])
def test_every_command_has_help(offgen, command):
    assert "Usage:" in offgen(command, "--help", check=0).stdout


def test_run_help_names_every_option_in_its_group(offgen):
    text = offgen("run", "--help", check=0).stdout
    for group in ("Input", "Output", "Model", "Prompt", "Sampling", "Engine", "Data", "Display"):
        assert f"\n{group}:\n" in text
    for flag in FLAGS.split():
        assert flag in text, flag


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("nope",), "No such command"),
        (("run", "--nope"), "No such option"),
        (("run", "in.jsonl", "--max-tokens"), "--max-tokens"),
        (("run",), "no INPUT is given"),
        (("run", "in.jsonl", "-o", "x.jsonl"), "no model is given"),
        (("report",), "OUTPUT"),
        (("report", "nope.parquet"), "no such output"),
    ],
)
def test_what_cannot_be_understood_is_exit_2_with_a_message(offgen, args, says):
    refused = offgen(*args, check=2)
    assert says in refused.stderr
    assert refused.stdout == ""


def test_no_command_shows_the_help_and_fails(offgen):
    assert "Usage:" in offgen(check=2).stderr


def test_info_is_json_on_request(offgen):
    import json

    found = json.loads(offgen("info", "--json", check=0).stdout)
    assert found["versions"]["offgen"] == package.__version__
    assert found["cpu"]["threads"] >= 1
    assert "--lora" in found["not_available_yet"]
