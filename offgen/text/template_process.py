"""The process in which templates run: `python -m offgen.text.template_process`, driven by template.py.

A template is somebody's program. Here it cannot hold up a job: a second of processor time ends it by a signal, two more
by the kernel, and memory is limited; the parent sees the end of the pipe and starts another process. Processor time,
because on a busy machine a second of wall time says nothing about a template. Ends when its input does.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any, BinaryIO

import jinja2

from offgen.text.sandbox import chat_environment, required_names, user_environment

LIMIT_S = 1.0
MAX_BYTES = 10_000_000
_HARD_LIMIT_S = 2  # beyond LIMIT_S: a single operation in C does not see the signal
_MEMORY_BYTES = 768 << 20  # beyond what the process takes at its start


class _TooLong(BaseException):
    """Not an Exception, so that no template and no filter catches it."""


class TemplateFault(Exception):
    """A template went wrong on its row."""


def main() -> None:
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # nothing but answers goes to the parent
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # sent to the whole group; the parent decides when to end
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    signal.signal(signal.SIGPROF, _stop)
    templates: dict[str, jinja2.Template] = {}
    globals_: dict[str, Mapping[str, Any]] = {}
    _limit_memory()
    while (task := _read(source)) is not None:
        if task[0] == "load":
            _, name, text, variables = task
            globals_[name] = variables
            _write(sink, _guarded(lambda name=name, text=text: _load(templates, name, text)))
        else:
            _, name, contexts = task
            for context in contexts:
                whole = {**globals_[name], **context}
                _write(sink, _guarded(lambda name=name, whole=whole: _render(templates[name], whole)))


def _load(templates: dict[str, jinja2.Template], name: str, text: str) -> dict[str, list[str]]:
    environment = chat_environment() if name == "chat" else user_environment()
    templates[name] = environment.from_string(text)
    names, optional = required_names(environment, text)
    return {"names": sorted(names), "optional": sorted(optional)}


def _render(template: jinja2.Template, context: Mapping[str, Any]) -> str:
    pieces, size = [], 0
    for piece in template.generate(context):
        size += len(piece)
        if size <= MAX_BYTES:
            pieces.append(piece)
        else:
            raise TemplateFault(f"the template makes more than {MAX_BYTES // 1_000_000} MB of text")
    text = "".join(pieces)
    if 4 * size > MAX_BYTES and len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise TemplateFault(f"the template makes more than {MAX_BYTES // 1_000_000} MB of text")
    return text


def _guarded(work: Any) -> tuple[bool, Any]:
    """(True, result), or (False, message)."""
    _limit_time()
    try:
        signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
        try:
            return True, work()
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    except _TooLong:
        return False, f"the template runs longer than {LIMIT_S:g} s"
    except MemoryError:
        return False, "the template takes too much memory"
    except RecursionError:
        return False, "the template calls itself too often"
    except jinja2.TemplateSyntaxError as error:
        return False, f"line {error.lineno}: {error.message}"
    except (jinja2.TemplateError, TemplateFault) as error:
        return False, str(error) or type(error).__name__
    except Exception as error:
        return False, f"{type(error).__name__}: {error}"


def _stop(_signal: int, _frame: Any) -> None:
    raise _TooLong


def _limit_time() -> None:
    used = int(time.process_time() + LIMIT_S) + 1
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    limit = used + _HARD_LIMIT_S
    resource.setrlimit(resource.RLIMIT_CPU, (limit if most < 0 else min(limit, most), most))


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123  (not a path of the user's)
            taken = int(file.read().split()[0]) * resource.getpagesize()
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (taken + _MEMORY_BYTES, most))
    except (OSError, ValueError):
        pass  # not Linux: the size of the text is still checked


def _read(source: BinaryIO) -> Any:
    head = source.read(8)
    return pickle.loads(source.read(int.from_bytes(head, "little"))) if len(head) == 8 else None


def _write(sink: Any, answer: tuple[bool, Any]) -> None:
    body = json.dumps(answer).encode("ascii")
    view = memoryview(len(body).to_bytes(8, "little") + body)
    while view:
        view = view[sink.write(view) :]


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:  # the parent has gone and has no use for the answer
        os._exit(1)
