"""Help pages: plain text, options in their groups. Drawn without rich: they must appear at once, in any terminal."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


class PlainCommand(TyperCommand):
    """A command whose options are listed by group."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                name, text = record
                if parameter.param_type_name == "argument":
                    record = (name.split(" <")[0], text)  # its type says nothing: they are all text
                panel = getattr(parameter, "rich_help_panel", None) or (
                    "Arguments" if parameter.param_type_name == "argument" else "Options"
                )
                groups.setdefault(panel, []).append(record)
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)
