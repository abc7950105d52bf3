"""What makes a dataclass field an option of the command line and of a job file. Knows no option by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import Field, dataclass, field, fields
from typing import Any

from offgen.config import values

_METADATA_KEY = "option"


@dataclass(frozen=True, slots=True)
class Option:
    """How one field is asked for.

    off     for a switch: the flag that sets it to False
    """

    name: str
    help: str
    parse: values.Parser
    metavar: str | None
    flag: str
    short: str | None
    off: str | None
    repeats: bool
    is_switch: bool
    default: Any

    @property
    def keys(self) -> dict[str, bool | None]:
        """The names a job file may use for it: its own (None), and those of a switch's two flags (what they set)."""
        found: dict[str, bool | None] = {self.name: None, self.flag.removeprefix("--").replace("-", "_"): None}
        if self.off is not None:
            found[self.off.removeprefix("--").replace("-", "_")] = False
        return found


def option(
    help: str,
    parse: values.Parser,
    default: Any = None,
    *,
    metavar: str | None = None,
    flag: str | None = None,
    short: str | None = None,
    repeats: bool = False,
) -> Any:
    """A dataclass field that takes a value. Unset leaves `default`."""
    metadata = {"help": help, "parse": parse, "metavar": metavar, "flag": flag, "short": short, "repeats": repeats}
    return field(default=default, metadata={_METADATA_KEY: metadata})


def switch(help: str, default: bool | None = False, *, flag: str | None = None, off: str | None = None) -> Any:
    """A dataclass field that is true or false; `off` is the flag that turns it off."""
    metadata = {"help": help, "parse": values.switch, "flag": flag, "off": off, "is_switch": True}
    return field(default=default, metadata={_METADATA_KEY: metadata})


def options_of(group: type) -> Iterator[Option]:
    """The options of one group, in the order its fields are written."""
    for one in fields(group):
        yield _as_option(one)


def _as_option(one: Field[Any]) -> Option:
    metadata = one.metadata[_METADATA_KEY]
    return Option(
        name=one.name,
        help=metadata["help"],
        parse=metadata["parse"],
        metavar=metadata.get("metavar"),
        flag=metadata.get("flag") or "--" + one.name.replace("_", "-"),
        short=metadata.get("short"),
        off=metadata.get("off"),
        repeats=metadata.get("repeats", False),
        is_switch=metadata.get("is_switch", False),
        default=one.default,
    )
