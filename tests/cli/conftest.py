from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass
class Finished:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def offgen(tmp_path, monkeypatch, capfd):
    """Runs a command line in this process, in a folder of its own: a new process would import everything again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERM", "dumb")

    def run(*args, stdin=None, check=None):
        from offgen.cli import main

        if stdin is not None:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        capfd.readouterr()
        code = main([str(arg) for arg in args])
        finished = Finished(code, *capfd.readouterr())
        if check is not None:
            assert finished.returncode == check, finished.stderr
        return finished

    return run


@pytest.fixture
def shell(tmp_path):
    """Runs the command as a shell does."""

    def run(*args, **options):
        return subprocess.run(
            [sys.executable, "-m", "offgen", *map(str, args)],
            cwd=tmp_path,
            env=command_environment(),
            capture_output=True,
            text=True,
            timeout=120,
            **options,
        )

    return run


@pytest.fixture
def start(tmp_path):
    """Starts the command and leaves it running."""
    running = []

    def begin(*args, **options):
        process = subprocess.Popen(
            [sys.executable, "-m", "offgen", *map(str, args)],
            cwd=tmp_path,
            env=command_environment(),
            text=True,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
        )
        running.append(process)
        return process

    yield begin
    for process in running:
        process.kill()
        process.wait()


def command_environment(**more):
    path = os.pathsep.join([str(ROOT), str(ROOT / "kernels"), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TERM": "dumb", "HF_HUB_OFFLINE": "1", **more}


@pytest.fixture
def prompts(tmp_path):
    """A JSONL file of so many prompts."""

    def make(count, name="in.jsonl", **columns):
        path = tmp_path / name
        rows = [{"prompt": f"prompt {i}", "k": i, **columns} for i in range(count)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return make


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """A random chat model that loads and answers at once."""
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    from tests.cli.tiny_chat import save_tiny_chat_model

    return save_tiny_chat_model(tmp_path_factory.mktemp("tiny-chat"))
