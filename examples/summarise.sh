#!/bin/sh
# A dataset in, a dataset out: Parquet with all input columns and the completions beside them.
# The same command again goes on where it stopped.
set -eu
cd "$(dirname "$0")"
offgen run prompts.jsonl -o "${OUT:-../out}/completions.parquet" \
    --model "${MODEL:-smollm2-135m-instruct}" --max-tokens "${MAX_TOKENS:-64}"
offgen report "${OUT:-../out}/completions.parquet"
