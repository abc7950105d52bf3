#!/bin/sh
# A prompt made of several columns, by a Jinja template from a file, with a system message; two samples of each row.
set -eu
cd "$(dirname "$0")"
offgen run prompts.jsonl -o "${OUT:-../out}/samples.jsonl" --model "${MODEL:-smollm2-135m-instruct}" \
    --template @question.j2 --system "You answer in one short paragraph." --limit 4 \
    --n 2 --temperature 0.8 --top-p 0.95 --seed 7 --max-tokens "${MAX_TOKENS:-32}"
