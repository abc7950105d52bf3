"""Renders Jinja templates in a process of their own, so that one that runs away can be stopped.

Knows how to ask and how to start again; what a template may do is sandbox.py's.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offgen.errors import JobError, UsageError

_PORTABLE_MODULES = frozenset({"builtins", "datetime", "decimal", "uuid", "zoneinfo"})
# How the process ends when a template brings it down: by its time, its memory, or the machine's memory.
_STOPPED = frozenset({-signal.SIGXCPU, -signal.SIGSEGV, -signal.SIGKILL})


@dataclass(frozen=True, slots=True)
class Fault:
    """A template that went wrong on one row, in words."""

    message: str


class Template:
    """One template in the process that all templates of a job share.

    names     variables it takes from outside
    optional  those of them that it can do without
    """

    def __init__(self, process: TemplateProcess, name: str, answer: Mapping[str, Sequence[str]]) -> None:
        self._process = process
        self._name = name
        self.names = frozenset(answer["names"])
        self.optional = frozenset(answer["optional"])

    def render(self, contexts: Sequence[Mapping[str, Any]]) -> list[str | Fault]:
        """The text of each context, or what went wrong with it."""
        return list(self._process.render(self._name, contexts))


class TemplateProcess:
    """Starts the process when it is first needed, and again whenever a template brought it down, until `close`.

    One thread may render while another closes: its rows then end in a JobError, not in a template's error.
    """

    def __init__(self) -> None:
        self._running: subprocess.Popen[bytes] | None = None
        self._is_closed = False
        self._loads: list[tuple[str, str, Mapping[str, Any]]] = []

    def load(self, name: str, source: str, variables: Mapping[str, Any]) -> Template:
        """name: `chat` or `user`, which says in what environment it runs. Raises UsageError if it is no template."""
        answer = self._load(name, source, variables)
        if isinstance(answer, Fault):
            what = "the model's chat template" if name == "chat" else "--template"
            raise UsageError(f"{what} is not valid: {answer.message}")
        self._loads.append((name, source, variables))
        return Template(self, name, answer)

    def render(self, name: str, contexts: Sequence[Mapping[str, Any]]) -> Iterator[str | Fault]:
        done = 0
        while done < len(contexts):
            self._send(("render", name, [portable(context) for context in contexts[done:]]))
            while done < len(contexts):
                answer = self._receive()
                done += 1
                if answer is None:
                    yield Fault("the template takes too long, or too much memory")
                    break
                yield answer

    def close(self) -> None:
        self._is_closed = True
        self._end()

    def _end(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            _end(running)

    def _load(self, name: str, source: str, variables: Mapping[str, Any]) -> Any:
        self._send(("load", name, source, dict(variables)))
        answer = self._receive()
        return Fault("it takes too long to read") if answer is None else answer

    def _send(self, task: Any) -> None:
        """Start the process if need be, and give it the task."""
        if self._is_closed:
            raise JobError("templates are no longer rendered: the job is ending")
        if self._running is None:
            self._running = _start()
            weakref.finalize(self, _end, self._running)
            for one in self._loads:
                self._load(*one)
        body = pickle.dumps(task)
        assert self._running.stdin is not None
        try:
            self._running.stdin.write(len(body).to_bytes(8, "little") + body)
            self._running.stdin.flush()
        except (OSError, ValueError):  # it has ended: `_receive` says how
            return

    def _receive(self) -> Any:
        """The next answer: a value, a Fault, or None if the process has died of the task."""
        running = self._running
        if running is None or running.stdout is None:
            raise JobError("templates are no longer rendered: the job is ending")
        try:
            head = running.stdout.read(8)
            body = running.stdout.read(int.from_bytes(head, "little")) if len(head) == 8 else b""
        except (OSError, ValueError):  # closed by another thread
            body = b""
        if not body:
            code = running.wait()
            self._end()
            if self._is_closed or code not in _STOPPED:
                raise JobError(f"the process that renders templates ended by itself (code {code})")
            return None
        is_good, value = json.loads(body)
        return value if is_good else Fault(value)


def portable(value: Any) -> Any:
    """A row's values in types of the standard library: the process must not have to import pandas to read a date."""
    if isinstance(value, Mapping):
        return {key: portable(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [portable(one) for one in value]
    if type(value).__module__ in _PORTABLE_MODULES:
        return value
    for name in ("to_pydatetime", "to_pytimedelta", "tolist"):  # pandas, numpy
        convert = getattr(value, name, None)
        if convert is not None:
            return convert()
    return str(value)


def _start() -> subprocess.Popen[bytes]:
    package = Path(__file__).resolve().parents[2]
    paths = [path for path in (*sys.path, str(package)) if path]
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "offgen.text.template_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):  # it is gone already
                pipe.close()
    process.kill()
    process.wait()
