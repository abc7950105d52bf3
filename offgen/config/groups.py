"""What may be asked of a job: one frozen dataclass for each group of options. A new option is one field here.

The fields are the command line's options and the job file's keys; docs/cli.md tells what they mean. None is "not said".
"""

# ruff: noqa: RUF009  (`option` and `switch` make dataclass fields)
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offgen.config import values
from offgen.config.availability import KNOWN_QUANTIZATIONS
from offgen.config.option import option, switch
from offgen.config.values import (
    Allowance,
    Shard,
    choice,
    full_text,
    many,
    name,
    names,
    number,
    plain_text,
    size,
    whole,
)


@dataclass(frozen=True, slots=True)
class InputConfig:
    """Input"""

    inputs: tuple[str, ...] = option(
        "Files, globs, folders, URLs, hf://datasets/ORG/NAME, or - for JSONL on stdin.", many(name), (), repeats=True
    )
    input_format: str | None = option("The inputs' format, when their names do not tell.", name, metavar="FORMAT")
    subset: str | None = option("Subset (configuration) of a hub dataset.", name, metavar="NAME")
    split: str | None = option("Split of a hub dataset.", name, metavar="NAME")


@dataclass(frozen=True, slots=True)
class OutputConfig:
    """Output"""

    output: str = option(
        "Folder, *.parquet, *.arrow, *.jsonl[.gz|.zst], or - for JSONL on stdout.",
        name,
        "",
        short="-o",
        metavar="OUTPUT",
    )
    output_format: str | None = option(
        "parquet, arrow, jsonl or openai-batch, when the name does not tell.",
        choice("parquet", "arrow", "jsonl", "openai-batch"),
        metavar="FORMAT",
    )
    columns: tuple[str, ...] | None = option("Input columns to pass through (default: all).", names, metavar="A,B")
    drop_columns: tuple[str, ...] = option("Input columns to leave out.", names, (), metavar="A,B")
    id_column: str | None = option("Column that names rows in messages and in verify.", name, metavar="NAME")
    rows_per_shard: int = option("Rows of one output file of a folder.", whole(1), 10_000, metavar="N")
    row_order: str = option(
        "Order of rows in a file: input, or finish (as they end).", choice("input", "finish"), "input", metavar="ORDER"
    )
    column_prefix: str = option("Put before the names of the columns that offgen adds.", plain_text, "", metavar="P")
    output_token_ids: bool = switch("Add completion_token_ids.", off="--no-output-token-ids")
    stats: bool = switch("Add the stats column.", True, off="--no-stats")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Model"""

    model: str = option(
        "Hugging Face folder, .gguf file, hub id, or smollm2-135m-instruct.", name, "", short="-m", metavar="MODEL"
    )
    revision: str | None = option("Branch, tag or commit of a hub model.", name, metavar="REV")
    tokenizer: str | None = option("Take the tokenizer from here instead of the model.", name, metavar="PATH|ID")
    generation_config: str = option(
        "Sampling defaults from the model: auto, or none.", choice("auto", "none"), "auto", metavar="MODE"
    )


@dataclass(frozen=True, slots=True)
class PromptConfig:
    """Prompt"""

    prompt_column: str | None = option("Column of prompt texts (default: prompt, else text).", name, metavar="NAME")
    messages_column: str | None = option("Column of [{role, content, …}] (default: messages).", name, metavar="NAME")
    template: str | None = option("Jinja template over the row's columns, or @file.", full_text, metavar="TEXT")
    token_ids_column: str | None = option("Column of lists of token ids.", name, metavar="NAME")
    system: str | None = option("System message put before each prompt.", full_text, metavar="TEXT")
    chat: bool | None = switch(
        "Prompts go through the model's chat template, or do not (default: if it has one).", None, off="--raw"
    )
    truncate_prompt: int | None = option("Keep this many tokens of a longer prompt.", whole(1), metavar="N")
    truncate_side: str = option("The side that is cut: left or right.", choice("left", "right"), "left", metavar="SIDE")
    params_column: str | None = option("Column of each row's own sampling parameters.", name, metavar="NAME")


@dataclass(frozen=True, slots=True)
class SamplingConfig:
    """Sampling"""

    max_tokens: int | None = option("Most tokens to generate per row (default: 512).", whole(1), metavar="N")
    min_tokens: int | None = option("No end before this many tokens.", whole(0), metavar="N")
    temperature: float | None = option("0 is greedy.", number(0), metavar="T")
    top_p: float | None = option("Least set of tokens with this probability.", number(maximum=1, above=0), metavar="P")
    top_k: int | None = option("The likeliest K tokens; 0 or -1: all.", whole(-1), metavar="K")
    min_p: float | None = option("Tokens at least this likely, relative to the likeliest.", number(0, 1), metavar="P")
    repetition_penalty: float | None = option("Over prompt and output; 1 is none.", number(above=0), metavar="X")
    presence_penalty: float | None = option("Over the output; 0 is none.", number(-2, 2), metavar="X")
    frequency_penalty: float | None = option("Over the output, per occurrence; 0 is none.", number(-2, 2), metavar="X")
    stop: tuple[str, ...] | None = option(
        "Text that ends a completion (repeat it).", many(full_text), metavar="TEXT", repeats=True
    )
    stop_token_ids: tuple[int, ...] | None = option("Token ids that end a completion.", values.token_ids, metavar="1,2")
    ignore_eos: bool | None = switch("Go on after the end token.", None, off="--no-ignore-eos")
    seed: int | None = option("Seed of every row's random numbers (default: 0).", whole(0, 2**63 - 1), metavar="N")
    n: int | None = option("Samples per row (default: 1).", whole(1), metavar="N")
    logprobs: int | None = option("Log-probabilities of the sampled and the K likeliest tokens.", whole(0), metavar="K")
    prompt_logprobs: int | None = option("The same for the prompt's tokens.", whole(0), metavar="K")
    logit_bias: dict[str, Any] | None = option(
        'JSON object of token id to bias: {"42": -100}.', values.mapping, metavar="JSON"
    )
    bad_words: tuple[str, ...] | None = option(
        "Text never to generate (repeat it).", many(full_text), metavar="TEXT", repeats=True
    )
    json_schema: str | None = option("Completions follow this JSON schema.", full_text, metavar="JSON")
    regex: str | None = option("Completions match this regular expression.", full_text, metavar="RE")
    grammar: str | None = option("Completions follow this Lark grammar.", full_text, metavar="LARK")
    choice: tuple[str, ...] | None = option(
        "Completions are one of these (repeat it).", many(full_text), metavar="TEXT", repeats=True
    )
    skip_special_tokens: bool | None = switch(
        "Leave special tokens out of the text (default).", None, off="--no-skip-special-tokens"
    )


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Engine"""

    device: str = option("auto, cuda or cpu.", choice("auto", "cuda", "cpu"), "auto", metavar="DEVICE")
    dtype: str = option(
        "auto, float32, bfloat16 or float16.", choice("auto", "float32", "bfloat16", "float16"), "auto", metavar="DTYPE"
    )
    max_model_len: int | None = option("Most tokens of prompt and completion together.", whole(2), metavar="N")
    max_num_seqs: int | None = option("Most rows that run at once.", whole(1), metavar="N")
    max_num_batched_tokens: int | None = option("Most tokens of one step.", whole(1), metavar="N")
    block_size: int = option("Tokens of one KV block.", whole(1, 1024), 16, metavar="N")
    num_gpu_blocks_override: int | None = option("KV blocks (also on CPU).", whole(1), metavar="N")
    gpu_memory_utilization: float = option(
        "Share of the device's memory to use.", number(maximum=1, above=0), 0.92, metavar="X"
    )
    kv_cache_memory: int | None = option("Memory of the KV cache, like 4GiB.", size, metavar="SIZE")
    kv_cache_dtype: str = option(
        "auto, bf16, fp8 or int8.", choice("auto", "bf16", "fp8", "int8"), "auto", metavar="DTYPE"
    )
    prefix_caching: bool = switch("Rows share the KV of equal prefixes.", True, off="--no-prefix-caching")
    chunked_prefill: bool = switch("Long prompts are computed in pieces.", True, off="--no-chunked-prefill")
    batching: str = option(
        "continuous, dynamic or static.", choice("continuous", "dynamic", "static"), "continuous", metavar="MODE"
    )
    order_policy: str = option(
        "auto, input, longest-first or prefix.",
        choice("auto", "input", "longest-first", "prefix"),
        "auto",
        metavar="POLICY",
    )
    quantization: str = option("none, int8 (CPU) or fp8 (GPU).", choice(*KNOWN_QUANTIZATIONS), "none", metavar="METHOD")
    load_format: str = option(
        "auto, safetensors, gguf or dummy (random weights).",
        choice("auto", "safetensors", "gguf", "dummy"),
        "auto",
        metavar="FORMAT",
    )
    model_impl: str = option(
        "auto, native or transformers.", choice("auto", "native", "transformers"), "auto", metavar="IMPL"
    )
    attention_backend: str = option("auto, cpu or triton.", choice("auto", "cpu", "triton"), "auto", metavar="NAME")
    lora: tuple[str, ...] | None = option("LoRA adapter, PATH or NAME=PATH.", many(name), metavar="PATH", repeats=True)
    threads: int | None = option("CPU threads (default: what this process may use).", whole(1), metavar="N")
    enforce_eager: bool = switch("No CUDA graphs.", off="--no-enforce-eager")
    batch_invariant: bool | None = switch(
        "A row's bits do not depend on its neighbours (default: on a CPU yes, on a GPU no).",
        None,
        off="--no-batch-invariant",
    )


@dataclass(frozen=True, slots=True)
class DataConfig:
    """Data"""

    skip: int = option("Leave out the first N rows.", whole(0), 0, metavar="N")
    limit: int | None = option("Then take N rows at most.", whole(0), metavar="N")
    shard: Shard | None = option("Then take the rows with row_id % N = I; or slurm.", values.shard, metavar="I/N")
    overwrite: bool = switch("Discard an output that belongs to another job.", off="--no-overwrite")
    resume: bool = switch("Go on where the same job stopped.", True, off="--no-resume")
    retry_errors: bool = switch("Run the rows again that failed.", off="--no-retry-errors")
    allow_errors: Allowance = option(
        "Failed rows that still make exit code 0: N or P%.", values.allowance, Allowance(rows=0), metavar="N|P%"
    )
    max_errors: Allowance | None = option(
        "Stop the job when more rows have failed: N or P%.", values.allowance, metavar="N|P%"
    )
    flush_interval: float = option("Seconds until a finished row is safe on disk.", number(above=0), 5.0, metavar="S")
    report: Path | None = option("Write report.json here too.", lambda value: Path(name(value)), metavar="FILE")


@dataclass(frozen=True, slots=True)
class DisplayConfig:
    """Display"""

    progress: str = option(
        "auto, rich, plain, json or none.", choice("auto", "rich", "plain", "json", "none"), "auto", metavar="MODE"
    )
    quiet: bool = switch("Only errors.", off="--no-quiet")
    log_interval: float = option("Seconds between progress lines.", number(above=0), 10.0, metavar="S")
    metrics_file: Path | None = option(
        "Keep Prometheus metrics in this file.", lambda value: Path(name(value)), metavar="FILE"
    )
    metrics_port: int | None = option("Serve Prometheus metrics on this port.", whole(0, 65535), metavar="PORT")
