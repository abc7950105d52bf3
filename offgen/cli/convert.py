"""`offgen convert`: one dataset format into another."""

from __future__ import annotations

from typing import Annotated

import typer


def convert(
    src: Annotated[str, typer.Argument(metavar="SRC", help="Any INPUT of `offgen run`; `-` is JSONL on stdin.")],
    dst: Annotated[
        str,
        typer.Argument(
            metavar="DST",
            help="A file (.parquet .jsonl .arrow .csv, text also .gz .bz2 .zst .xz), a folder (no suffix: a dataset as "
            "`datasets.load_from_disk` reads it), or `-` for JSONL on stdout.",
        ),
    ],
    input_format: Annotated[
        str | None, typer.Option(help="parquet, jsonl, json, arrow, csv or openai-batch, whatever the suffix says.")
    ] = None,
    output_format: Annotated[
        str | None,
        typer.Option(
            help="parquet, jsonl, arrow, csv, hf-dataset; openai-requests, openai-results, openai-batch (results if "
            "there are completions, else requests); messages (a chat per row)."
        ),
    ] = None,
    subset: Annotated[str | None, typer.Option(help="Of a dataset on the hub.")] = None,
    split: Annotated[str | None, typer.Option(help="Of a dataset.")] = None,
    skip: Annotated[int, typer.Option(min=0, help="Leave out the first rows.")] = 0,
    limit: Annotated[int | None, typer.Option(min=0, help="Take so many rows at most.")] = None,
    columns: Annotated[str | None, typer.Option(metavar="A,B", help="Take these columns only.")] = None,
    drop_columns: Annotated[str | None, typer.Option(metavar="A,B", help="Leave out these columns.")] = None,
    model: Annotated[str | None, typer.Option(help="The model that OpenAI batch lines name.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace DST if it exists.")] = False,
    skip_bad_rows: Annotated[
        bool, typer.Option("--skip-bad-rows", help="Leave out rows that cannot be read, and say how many.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing but errors.")] = False,
) -> None:
    """Turn one dataset format into another, streaming. DST appears whole, by rename, or not at all."""
    from offgen.cli.console import say
    from offgen.convert import ConvertOptions
    from offgen.convert import convert as convert_dataset

    options = ConvertOptions(
        input_format=input_format,
        output_format=output_format,
        subset=subset,
        split=split,
        skip=skip,
        limit=limit,
        columns=tuple(columns.split(",")) if columns else (),
        drop_columns=tuple(drop_columns.split(",")) if drop_columns else (),
        model=model,
        overwrite=overwrite,
        skip_bad_rows=skip_bad_rows,
    )
    done = convert_dataset(src, dst, options)
    if not quiet:
        left_out = f", {done.num_bad_rows:,} bad rows left out" if done.num_bad_rows else ""
        say(f"{dst}: {done.num_rows:,} rows{left_out}")
