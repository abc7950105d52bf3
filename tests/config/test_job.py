import json

import pytest

from offgen.config import Allowance, DisplayConfig, InputConfig, Shard
from offgen.config.availability import NOT_BUILT
from offgen.config.file import read_job_file
from offgen.config.job import JOB_GROUPS, Given, job_config
from offgen.config.option import options_of
from offgen.errors import UsageError

NEEDED = {"inputs": ["in.jsonl"], "output": "out.parquet", "model": "m"}


def config(**given):
    return job_config(
        {name: Given(value, f"--{name.replace('_', '-')}") for name, value in {**NEEDED, **given}.items()}
    )


def test_a_job_needs_input_output_and_model():
    for name in NEEDED:
        given = {other: Given(value, other) for other, value in NEEDED.items() if other != name}
        with pytest.raises(UsageError) as refusal:
            job_config(given)
        assert refusal.value.exit_code == 2
        assert refusal.value.hint


def test_values_arrive_in_their_groups():
    job = config(
        max_tokens="7", temperature="0.5", stop=["a", "b"], kv_cache_memory="1GiB", shard="1/4", allow_errors="5%",
        stats=False, columns="a,b",
    )  # fmt: skip
    assert job.sampling.max_tokens == 7
    assert job.sampling.temperature == 0.5
    assert job.sampling.stop == ("a", "b")
    assert job.engine.kv_cache_memory == 1 << 30
    assert job.data.shard == Shard(1, 4)
    assert job.data.allow_errors == Allowance(percent=5)
    assert job.output.stats is False
    assert job.output.columns == ("a", "b")
    assert job.display == DisplayConfig()
    assert json.loads(json.dumps(job.to_dict()))["data"]["shard"] == "1/4"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", "0"),
        ("max_tokens", "-1"),
        ("max_tokens", "1.5"),
        ("temperature", "-0.1"),
        ("temperature", "nan"),
        ("top_p", "0"),
        ("top_p", "1.1"),
        ("top_k", "-2"),
        ("min_p", "2"),
        ("repetition_penalty", "0"),
        ("presence_penalty", "3"),
        ("n", "0"),
        ("logprobs", "-1"),
        ("seed", "-1"),
        ("seed", str(2**63)),
        ("stop", [""]),
        ("stop_token_ids", "1,-2"),
        ("logit_bias", "[]"),
        ("block_size", "0"),
        ("gpu_memory_utilization", "1.2"),
        ("gpu_memory_utilization", "0"),
        ("kv_cache_memory", "4 apples"),
        ("max_num_seqs", "0"),
        ("threads", "0"),
        ("device", "tpu"),
        ("dtype", "fp12"),
        ("batching", "none"),
        ("order_policy", "x"),
        ("quantization", "int1"),
        ("rows_per_shard", "0"),
        ("row_order", "random"),
        ("output_format", "xml"),
        ("truncate_prompt", "0"),
        ("truncate_side", "middle"),
        ("flush_interval", "0"),
        ("limit", "-1"),
        ("skip", "-1"),
        ("progress", "loud"),
        ("log_interval", "0"),
        ("metrics_port", "70000"),
        ("template", ""),
        ("system", ""),
        ("output", ""),
        ("inputs", [""]),
    ],
)
def test_a_senseless_value_says_what_and_where(name, value):
    with pytest.raises(UsageError) as refusal:
        config(**{name: value})
    assert f"--{name.replace('_', '-')}" in refusal.value.message


@pytest.mark.parametrize(
    "given",
    [
        {"prompt_column": "a", "template": "x"},
        {"messages_column": "a", "token_ids_column": "b"},
        {"token_ids_column": "a", "chat": True},
        {"token_ids_column": "a", "system": "s"},
        {"messages_column": "a", "chat": False},
        {"chat": False, "system": "s"},
        {"min_tokens": "20", "max_tokens": "10"},
        {"min_tokens": "600"},
        {"truncate_prompt": "64", "max_model_len": "64"},
        {"num_gpu_blocks_override": "8", "kv_cache_memory": "1GiB"},
    ],
)
def test_options_that_contradict_each_other_are_refused(given):
    with pytest.raises(UsageError):
        config(**given)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("json_schema", "{}"),
        ("regex", "a+"),
        ("grammar", "start: x"),
        ("choice", ["a"]),
        ("lora", ["p"]),
        ("quantization", "awq"),
    ],
)
def test_what_is_not_built_is_refused_not_ignored(name, value):
    with pytest.raises(UsageError, match="not available yet"):
        config(**{name: value})


def test_the_table_of_what_is_not_built_names_options():
    names = {option.name for group in JOB_GROUPS for option in options_of(group)}
    assert set(NOT_BUILT) <= names


def test_every_option_has_help_and_one_name():
    options = [option for group in JOB_GROUPS for option in options_of(group)]
    assert len({option.name for option in options}) == len(options)
    assert len({key for option in options for key in option.keys}) >= len(options)
    assert all(option.help.endswith((".", "}")) for option in options)
    assert InputConfig.__doc__ == "Input"


def read(tmp_path, text, name="job.toml"):
    path = tmp_path / name
    path.write_text(text)
    return read_job_file(path, JOB_GROUPS)


def test_a_job_file_takes_dashes_and_underscores(tmp_path):
    given = read(
        tmp_path,
        'input = ["a.jsonl"]\noutput = "o.parquet"\nmodel = "m"\nmax-tokens = 5\ntop_k = 3\nstop = ["x"]\n'
        'no-stats = true\nraw = true\nlogit-bias = {5 = 1.0}\nallow-errors = "5%"\nkv-cache-memory = "1GiB"\n',
    )
    job = job_config(given)
    assert job.input.inputs == ("a.jsonl",)
    assert (job.sampling.max_tokens, job.sampling.top_k, job.sampling.stop) == (5, 3, ("x",))
    assert job.output.stats is False
    assert job.prompt.chat is False
    assert job.sampling.logit_bias == {"5": 1.0}


def test_yaml_is_the_same(tmp_path):
    given = read(tmp_path, "max-tokens: 5\nstop: [a, b]\ntemplate:\n", "job.yaml")
    assert {name: one.value for name, one in given.items()} == {"max_tokens": 5, "stop": ["a", "b"]}
    assert read(tmp_path, "", "empty.yml") == {}


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        ("max-token = 5", "job.toml", "max-token` is not an option"),
        ("[sampling]\ntemperature = 1", "job.toml", "sampling` is not an option"),
        ("max-tokens = ", "job.toml", "not TOML"),
        ("a: [", "job.yaml", "not YAML"),
        ("- a", "job.yaml", "mapping"),
        ("x", "job.ini", "ends in"),
        ("max-tokens = 5\nmax_tokens = 6", "job.toml", "twice"),
        ("stats = true\nno-stats = true", "job.toml", "twice"),
        ("no-stats = 1", "job.toml", "true or false"),
    ],
)
def test_a_wrong_job_file_is_refused(tmp_path, text, name, says):
    with pytest.raises(UsageError, match=says):
        read(tmp_path, text, name)


def test_a_wrong_value_in_a_job_file_names_file_and_key(tmp_path):
    given = {**{name: Given(value, name) for name, value in NEEDED.items()}, **read(tmp_path, "max-tokens = 0")}
    with pytest.raises(UsageError, match=r"job.toml: max-tokens: 0 is too small"):
        job_config(given)


def test_a_missing_job_file_is_wrong_usage(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        read_job_file(tmp_path / "nope.toml", JOB_GROUPS)
