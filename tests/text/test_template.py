"""Templates render as in transformers, and none can hold up a job."""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from offgen.errors import JobError, UsageError
from offgen.text.template import Fault, TemplateProcess


@pytest.fixture(scope="module")
def process() -> Iterator[TemplateProcess]:
    with contextlib.closing(TemplateProcess()) as process:
        yield process


def one(process: TemplateProcess, source: str, **context: Any) -> str | Fault:
    return process.load("user", source, {}).render([context])[0]


def fault(process: TemplateProcess, source: str, **context: Any) -> str:
    result = one(process, source, **context)
    assert isinstance(result, Fault), result
    return result.message


def test_a_template_reads_its_row(process: TemplateProcess) -> None:
    assert one(process, "{{ a }} & {{ b.c[0] | tojson }}", a="x", b={"c": [{"é": "<"}]}) == 'x & {"é": "<"}'
    assert one(process, "{{ day.year }}: {{ day }}", day=date(2024, 1, 2)) == "2024: 2024-01-02"
    assert one(process, "{% for i in range(3) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}") == "02"
    assert one(process, "line\n") == "line"


RUNAWAYS = [
    "{% for i in range(10**9) %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% macro again(n) %}{% for i in range(9) %}{{ again(n) }}{% endfor %}{% endmacro %}{{ again(1) }}",
    "{{ 'a' * 10**10 }}",
    "{% set ns = namespace(s='abc') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}",
    "{{ 'x' | center(10**10) }}",
    "{{ '%10000000000d' % 1 }}",
    "{{ '{:>10000000000}'.format(1) }}",
    "{{ ('a' * 10**6).replace('a', 'b' * 10**6) }}",
    "{{ lipsum(n=10**6) }}",
    "{{ (1, 2) * 10**10 }}",
    "{% for i in range(20000) %}{{ 'x' * 1000 }}{% endfor %}",
    "{{ 'é' * 6 * 10**6 }}",
]


SAMPLE = RUNAWAYS[:2] + RUNAWAYS[3:5]


@pytest.mark.parametrize(
    "source", [source if source in SAMPLE else pytest.param(source, marks=pytest.mark.slow) for source in RUNAWAYS]
)
def test_a_template_that_runs_away_is_stopped_and_the_next_row_renders(process: TemplateProcess, source: str) -> None:
    template = process.load("user", "{% if bad %}" + source + "{% else %}fine{% endif %}", {})
    started = time.process_time() + sum(os.times()[2:4])
    first, second, third = template.render([{"bad": False}, {"bad": True}, {"bad": False}])
    assert (first, third) == ("fine", "fine")
    assert isinstance(second, Fault)
    assert time.process_time() + sum(os.times()[2:4]) - started < 6


def test_one_long_operation_brings_down_the_process_but_not_the_job(process: TemplateProcess) -> None:
    template = process.load("user", "{% if bad %}{{ (3 ** (10**8)) % 7 }}{% else %}fine{% endif %}", {})
    results = template.render([{"bad": False}, {"bad": True}, {"bad": False}, {"bad": True}])
    assert results[0] == results[2] == "fine"
    assert isinstance(results[1], Fault)
    assert isinstance(results[3], Fault)


def test_ten_megabytes_are_the_limit(process: TemplateProcess) -> None:
    assert one(process, "{{ 'a' * n }}", n=9_999_999) == "a" * 9_999_999
    assert "10 MB" in fault(process, "{{ 'a' * n }}", n=10_000_001)
    assert "10 MB" in fault(process, "{{ 'é' * n }}", n=5_000_001)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ missing }}", "'missing' is undefined"),
        ("{{ a.b }}", "no attribute 'b'"),
        ("{{ none }}", "null"),
        ("{{ raise_exception('by hand') }}", "by hand"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ [].append(1) }}", "unsafe"),
        ("{% include '/etc/passwd' %}", "no loader"),
    ],
)
def test_faults_say_what_is_wrong(process: TemplateProcess, source: str, words: str) -> None:
    assert words in fault(process, source, a={}, none=None)


def test_a_null_may_be_asked_for_but_not_printed(process: TemplateProcess) -> None:
    assert one(process, "{{ a or 'nothing' }}{% if a %}!{% endif %}", a=None) == "nothing"


def test_a_template_that_does_not_parse_is_a_usage_error(process: TemplateProcess) -> None:
    with pytest.raises(UsageError, match="line 2"):
        process.load("user", "x\n{% if %}", {})


def test_names_say_what_a_template_needs_and_what_it_can_do_without(process: TemplateProcess) -> None:
    source = "{% set x = 1 %}{{ a }}{{ x }}{% if b is defined %}{{ b }}{% endif %}{{ c | default('') }}{{ range(2) }}"
    source += "{% for d in e %}{{ d }}{{ loop.index }}{% endfor %}{% if f is not defined %}{% endif %}"
    template = process.load("user", source, {})
    assert template.names == {"a", "b", "c", "e", "f"}
    assert template.optional == {"c", "f"}


def test_nothing_is_left_running() -> None:
    process = TemplateProcess()
    assert process.load("user", "{{ a }}", {}).render([{"a": 1}]) == ["1"]
    running = process._running
    assert running is not None
    process.close()
    assert running.poll() is not None


def test_after_close_nothing_is_rendered_and_nothing_is_started_again() -> None:
    process = TemplateProcess()
    template = process.load("user", "x", {})
    process.close()
    with pytest.raises(JobError):
        template.render([{}])
    assert process._running is None


def test_a_process_that_lost_its_parent_ends() -> None:
    process = TemplateProcess()
    template = process.load("user", "x", {})
    running = process._running
    assert running is not None and running.stdin is not None
    running.stdin.close()
    assert running.wait(10) == 0
    with pytest.raises(JobError, match="ended by itself"):
        template.render([{}])


def test_rows_with_strange_text_come_back_whole(process: TemplateProcess) -> None:
    text = "\x00\ud800 😀\r\n\u2028"
    assert one(process, "{{ a }}", a=text) == text


def test_values_of_other_libraries_arrive_as_plain_ones(process: TemplateProcess) -> None:
    class Other:
        def __str__(self) -> str:
            return "other"

    values = [
        pd.Timestamp("2024-01-02"),
        np.int64(3),
        np.array([1, 2]),
        Decimal("1.50"),
        Other(),
        {"a": (np.float32(0.5),)},
    ]
    expected = "2024-01-02 00:00:00|3|[1, 2]|1.50|other|{'a': [0.5]}"
    assert one(process, "{{ values | join('|') }}", values=values) == expected


CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "hi"}],
    [
        {"role": "system", "content": " s "},
        {"role": "user", "content": "<b>é</b>"},
        {"role": "assistant", "content": ""},
    ],
    [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
    [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1.5, "y": [True, None]}}}]}],
]
CHAT_TEMPLATES = [
    "{{ bos_token }}{% for m in messages %}{{ m['role'] }}: {{ m['content'] | trim }}\n{% endfor %}",
    """{%- set ns = namespace(found=false) -%}
    {% for m in messages %}
        {%- if loop.first %}{% set ns.found = true %}{% endif %}
        {% if m.content is defined %}{{ m.content }}{% else %}{{ m.tool_calls | tojson(indent=2) }}{% endif %}

    {% endfor %}
    {% if ns.found and add_generation_prompt %}{% generation %}A:{% endgeneration %}{% endif %}
    """,
    "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m }}{% endfor %}{{ tools is none }}",
    "{{ undefined_name }}{{ messages[0].nothing }}{{ dict(a=1)['a'] }}{{ documents }}{{ none }}",
]


@pytest.mark.parametrize("source", CHAT_TEMPLATES)
def test_chat_templates_render_as_in_transformers(process: TemplateProcess, source: str) -> None:
    variables = {"bos_token": "<s>"}
    contexts = [{"messages": chat, "tools": None, "documents": None, "add_generation_prompt": True} for chat in CHATS]
    found = process.load("chat", source, variables).render(contexts)
    for text, chat in zip(found, CHATS, strict=True):
        expected, _ = render_jinja_template([chat], chat_template=source, add_generation_prompt=True, **variables)
        assert text == expected[0]


def test_a_folder_with_jinja2_in_it_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jinja2.py").write_text("raise SystemExit(5)")
    monkeypatch.chdir(tmp_path)
    with contextlib.closing(TemplateProcess()) as process:
        assert one(process, "x") == "x"


def test_a_process_whose_parent_has_gone_ends_without_a_word() -> None:
    command = [sys.executable, "-m", "offgen.text.template_process"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdin is not None and child.stdout is not None and child.stderr is not None
        child.stdout.close()
        body = pickle.dumps(("load", "user", "x", {}))
        child.stdin.write(len(body).to_bytes(8, "little") + body)
        child.stdin.close()
        assert child.stderr.read() == b""
