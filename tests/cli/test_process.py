"""What only a process of its own shows: signals, pipes that break, start-up."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest


def wait_for(condition, *, timeout_s=60):
    end_s = time.monotonic() + timeout_s
    while time.monotonic() < end_s:
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it never came")


def lines_of(count):
    """Long rows: a pipe's first MiB is read before the job starts."""
    return "".join(json.dumps({"prompt": f"p{i} " + 200_000 * "x"}) + "\n" for i in range(count))


def feed(process, count):
    process.stdin.write(lines_of(count))
    process.stdin.flush()


def num_journalled(tmp_path):
    return sum(path.stat().st_size for path in (tmp_path / "out.jsonl.offgen" / "journal").glob("*.journal"))


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_flushes_what_finished_and_says_how_to_resume(start, offgen, tmp_path, name):
    command = ("run", "-", "-o", "out.jsonl", "--model", "echo", "--flush-interval", "60")
    job = start(*command, stdin=subprocess.PIPE)
    feed(job, 8)
    wait_for(lambda: (tmp_path / "out.jsonl.offgen" / "run.json").exists())
    time.sleep(1)
    job.send_signal(getattr(signal, name))
    assert job.wait(timeout=30) == 128 + getattr(signal, name)
    stderr = job.stderr.read()
    assert f"stopped: by {name}; 8 rows are finished and are safe on disk" in stderr
    assert "offgen run - -o out.jsonl" in stderr
    assert "Traceback" not in stderr
    assert num_journalled(tmp_path) > 0
    assert not (tmp_path / "out.jsonl").exists()
    offgen(*command, stdin=lines_of(10), check=0)
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["completion"].split()[0] for row in rows] == [f"p{i}" for i in range(10)]


def test_a_second_signal_ends_at_once(tmp_path):
    code = (
        "import os, signal, time\n"
        "from offgen.job.interrupts import Interrupts\n"
        "with Interrupts() as interrupts, interrupts.calling(lambda: None):\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    time.sleep(0.2)\n"
        "    print('still here', flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    time.sleep(5)\n"
        "    print('too late', flush=True)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert run.stdout == "still here\n"
    assert run.returncode == 130


def test_a_stopped_command_does_not_wait_for_what_was_interrupted(tmp_path):
    code = (
        "import sys, threading, time\n"
        "from offgen.cli import app, main\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"  # as a library that was interrupted leaves behind
        "app.run_command_line = lambda argv: print('said') or 143\n"
        "sys.exit(main())\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (run.returncode, run.stdout) == (143, "said\n")


def test_a_reader_that_goes_away_ends_the_job_quietly(start, prompts):
    prompts(20_000)
    job = start("run", "in.jsonl", "-o", "-", "--model", "echo", "--quiet")
    assert json.loads(job.stdout.readline())["k"] == 0
    job.stdout.close()
    assert job.wait(timeout=60) == 141
    assert job.stderr.read() == ""


@pytest.mark.parametrize("command", [["--help"], ["run", "--help"], ["--version"]])
def test_help_loads_nothing_heavy(command):
    code = (
        f"import sys; from offgen.cli import main; code = main({command!r}); heavy = set(sys.modules) & "
        "{'torch', 'transformers', 'triton', 'datasets', 'ray', 'numba', 'pyarrow', 'numpy', 'rich', 'jinja2'}; "
        "sys.exit(f'{code} {heavy}' if code or heavy else 0)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert "offgen" in run.stdout


def test_no_terminal_and_no_term_variable_are_no_trouble(shell, prompts):
    prompts(3)
    run = shell("run", "in.jsonl", "-o", "out.parquet", "--model", "echo", "--log-interval", "0.1")
    assert run.returncode == 0
    assert "\x1b" not in run.stderr
    report = shell("report", "out.parquet")
    assert report.returncode == 0
    assert "3 rows" in report.stdout


def test_a_running_job_keeps_a_report_now_and_then(monkeypatch, tmp_path, offgen):
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"prompt": f"p{i}"}) + "\n" for i in range(40)))
    monkeypatch.setattr("offgen.job.closing.GLANCE_INTERVAL_S", 0.0)
    monkeypatch.setattr("offgen.job.closing.Closing._keep", lambda self, report: None)
    offgen("run", "in.jsonl", "-o", "out.jsonl", "--model", "echo", check=0)
    report = json.loads(offgen("report", "out.jsonl", "--json", check=0).stdout)
    assert report["status"] == "running"
    assert report["rows"] == 40
