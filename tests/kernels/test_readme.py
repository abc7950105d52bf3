"""The example in kernels/README.md runs as it stands, with nothing but the kernels on the path."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

KERNELS = Path(__file__).parents[2] / "kernels"


def test_the_readmes_example_runs(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", (KERNELS / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    script = tmp_path / "example.py"
    script.write_text(code, encoding="utf-8")
    run = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(KERNELS)}
    )
    assert run.stdout.strip() == "torch.Size([2, 4, 64])", run.stderr[-2000:]
