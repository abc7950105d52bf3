#!/bin/sh
# JSON lines from one program to another: data on stdout, talk on stderr.
set -eu
cd "$(dirname "$0")"
head -n 4 prompts.jsonl |
    offgen run - -o - --model "${MODEL:-smollm2-135m-instruct}" --max-tokens "${MAX_TOKENS:-32}" --quiet |
    python3 -c 'import json, sys
for line in sys.stdin:
    row = json.loads(line)
    print(row["id"], "->", row["completion"])'
