"""`offgen verify`: is every input row there exactly once, in files that are as they were written?"""

from __future__ import annotations

import json
from typing import Annotated

import typer


def verify(
    output: Annotated[str, typer.Argument(metavar="OUTPUT", help="What `offgen run` was given with -o.")],
    inputs: Annotated[
        list[str] | None, typer.Argument(metavar="[INPUT]...", help="What it was made of; compared row by row.")
    ] = None,
    id_column: Annotated[
        str | None, typer.Option("--id-column", metavar="NAME", help="Column that names rows in messages.")
    ] = None,
    input_format: Annotated[
        str | None, typer.Option("--input-format", metavar="FORMAT", help="Format of INPUT, if its name does not tell.")
    ] = None,
    subset: Annotated[str | None, typer.Option("--subset", metavar="NAME", help="Of an hf:// dataset.")] = None,
    split: Annotated[str | None, typer.Option("--split", metavar="NAME", help="Of an hf:// dataset.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON.")] = False,
) -> int:
    """Check that an output has every input row exactly once, and that its files are whole and unchanged.

    Exit code 0 if all is well, 1 if not. OUTPUT may be a folder, a single file, or the parent of shards.
    """
    from offgen.cli.console import complain
    from offgen.verify import verify_output

    verdict = verify_output(
        output, inputs or (), id_column=id_column, input_format=input_format, subset=subset, split=split
    )
    if as_json:
        found = {"rows": verdict.num_rows, "errors": verdict.num_errors, "files": verdict.num_files}
        typer.echo(json.dumps({"ok": verdict.is_sound, **found, "problems": verdict.problems}, ensure_ascii=False))
    else:
        for problem in verdict.problems:
            complain(problem)
        if verdict.is_sound:
            typer.echo(f"{output}: {verdict.num_rows:,} rows in {verdict.num_files} files, all well")
    return 0 if verdict.is_sound else 1
