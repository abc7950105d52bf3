"""Idle threads must not hold processors: waiting is bounded before torch loads, and the user's own choice wins."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = "import os; from offgen.engine import open_engine; print(os.environ.get('GOMP_SPINCOUNT'))"


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [({}, "2000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")],
)
def test_spinning_is_bounded_unless_the_user_chose(chosen: dict[str, str], expected: str) -> None:
    kept = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run(
        [sys.executable, "-c", CODE], env={**kept, **chosen}, stdout=subprocess.PIPE, text=True, check=True
    )
    assert done.stdout.strip() == expected
