"""Each example runs, on the echo model or on a tiny one: the files are what users copy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"


@pytest.fixture
def run(tmp_path):
    """Runs a command in the examples' folder, with `offgen` on the path, outputs elsewhere, and the echo model."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    command = bin_folder / "offgen"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m offgen "$@"\n')
    command.chmod(0o755)

    def begin(*args, **environment):
        (tmp_path / "out").mkdir(exist_ok=True)
        return subprocess.run(
            [str(arg) for arg in args],
            cwd=EXAMPLES,
            env={
                **os.environ,
                "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
                "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "kernels")]),
                "OUT": str(tmp_path / "out"),
                "MODEL": "echo",
                "OMP_NUM_THREADS": "1",
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=240,
        )

    return begin


def prompts():
    return [json.loads(line) for line in (EXAMPLES / "prompts.jsonl").read_text().splitlines()]


def test_the_prompts_are_many_and_named():
    rows = prompts()
    assert len(rows) >= 24
    assert len({row["id"] for row in rows}) == len(rows)
    assert all(row["prompt"].strip() for row in rows)


def test_summarise(run):
    done = run("./summarise.sh")
    assert done.returncode == 0, done.stderr
    assert f"{len(prompts())} rows" in done.stdout


def test_pipe(run):
    done = run("./pipe.sh")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == f"capital -> {prompts()[0]['prompt']}"
    assert done.stderr == ""


def test_the_job_file(run, tmp_path):
    done = run("offgen", "run", "--config", "job.toml", "--model", "echo", "-o", f"{tmp_path}/out/folder/")
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "out" / "folder").glob("part-*.parquet"))) == 3


def test_the_makefile(run, tmp_path):
    target = tmp_path / "out" / "made.parquet"
    assert run("make", "-f", "Makefile", target).returncode == 0
    assert target.exists()
    assert "up to date" in run("make", "-f", "Makefile", target).stdout


def test_the_slurm_array(run, tmp_path):
    for task in range(4):
        done = run(
            "bash", "array.slurm", EXAMPLES=str(EXAMPLES), SLURM_ARRAY_TASK_ID=str(task), SLURM_ARRAY_TASK_MIN="0",
            SLURM_ARRAY_TASK_COUNT="4",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    report = run("offgen", "report", tmp_path / "out" / "array", "--json")
    assert json.loads(report.stdout)["rows"] == len(prompts())


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory):
    from tests.cli.tiny_chat import save_tiny_chat_model

    return str(save_tiny_chat_model(tmp_path_factory.mktemp("tiny")))


def test_template(run, tiny_model, tmp_path):
    done = run("./template.sh", MODEL=tiny_model, MAX_TOKENS="4")
    assert done.returncode in (0, 3), done.stderr
    rows = [json.loads(line) for line in (tmp_path / "out" / "samples.jsonl").read_text().splitlines()]
    assert [(row["row_id"], row["sample_index"]) for row in rows] == [(i, j) for i in range(4) for j in range(2)]


def test_engine(run, tiny_model):
    done = run(sys.executable, "engine.py", tiny_model)
    assert done.returncode == 0, done.stderr
    assert sorted(line.split()[0] for line in done.stdout.splitlines()) == ["0", "1"]


def test_show(run, tmp_path):
    run("./summarise.sh")
    done = run(sys.executable, "show.py", tmp_path / "out" / "completions.parquet")
    assert done.returncode == 0, done.stderr
    assert "capital" in done.stdout.lower()
