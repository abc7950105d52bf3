"""A Jinja environment in which a template reads its row and nothing else.

Chat templates see what transformers gives them; a user's template is strict: a name that is not there, or a null that
would be printed as `None`, is an error. Imports jinja2; meant for the template process.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace


class _Generation(Extension):
    """`{% generation %}` marks what an assistant says, for training; here it is plain text."""

    tags = {"generation"}  # noqa: RUF012  (jinja2's own interface)

    def parse(self, parser: Any) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        body: list[nodes.Node] = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return body


class _Namespace(Namespace):
    """A namespace without names that begin with an underscore, as in transformers."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        for name in dict(*rest, **kwargs):
            _check_name(name)
        Namespace.__init__(self, *rest, **kwargs)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Operators are calls, so that none is worked out while the template is compiled: `3 ** 10 ** 8` is its row's."""

    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)


def chat_environment() -> jinja2.Environment:
    """As transformers makes it for chat templates."""
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    return _furnish(environment)


def user_environment() -> jinja2.Environment:
    """For `--template`."""
    environment = _Sandbox(undefined=jinja2.StrictUndefined, finalize=_no_null, extensions=[loopcontrols])
    return _furnish(environment)


def required_names(environment: jinja2.Environment, source: str) -> tuple[set[str], set[str]]:
    """Names that a template takes from outside: all of them, and those it can do without (`is defined`, `default`)."""
    tree = environment.parse(source)
    names = find_undeclared_variables(tree) - environment.globals.keys()
    needed = {node.name for node in _unguarded(tree) if isinstance(node, nodes.Name)}
    return names, names - needed


def _furnish(environment: jinja2.Environment) -> jinja2.Environment:
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda text: datetime.now().strftime(text)
    environment.globals["namespace"] = _Namespace
    return environment


def _unguarded(node: nodes.Node) -> Iterator[nodes.Node]:
    """All nodes under this one but names that are asked whether they are there."""
    is_guard = isinstance(node, nodes.Test) and node.name in ("defined", "undefined")
    is_guard = is_guard or (isinstance(node, nodes.Filter) and node.name in ("default", "d"))
    for child in node.iter_child_nodes():
        if not (is_guard and isinstance(child, nodes.Name)):
            yield child
            yield from _unguarded(child)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _no_null(value: Any) -> Any:
    if value is None:
        raise jinja2.TemplateError("a null would be printed as None (write {{ column or '' }} if it may be empty)")
    return value


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Without HTML escapes, unlike Jinja's own."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys, default=_json_value
    )


def _json_value(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else str(value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.TemplateRuntimeError(f"a namespace cannot hold {name!r}: it begins with an underscore")
