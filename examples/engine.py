"""The engine from Python: texts, token ids or messages in, completions out as they finish."""

import sys

from offgen import Engine, SamplingParams

engine = Engine(sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m-instruct", max_num_seqs=8)
prompts = ["Name three colours.", [{"role": "user", "content": "And three shapes, please."}]]
for completion in engine.generate(prompts, SamplingParams(max_tokens=24)):
    print(completion.row.row_id, completion.finish_reason, repr(completion.text))
