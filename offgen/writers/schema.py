"""The columns of an output: which input columns pass through, under which names, and where ours stand.

Knows types; knows no file. Input columns keep name and type; a clash is refused before anything is written.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from offgen import columns
from offgen.errors import UsageError
from offgen.writers.options import OutputOptions
from offgen.writers.own_columns import NUM_JOURNAL_FIELDS, output_columns, output_fields

LATE_SUFFIX = "_input"  # what a JSONL key gets that first appears late and has the name of an own column


class OutputSchema:
    """Made once from the options and the input's schema as known up front. Raises UsageError where they clash."""

    def __init__(self, options: OutputOptions, input_schema: pa.Schema) -> None:
        self._options = options
        self.own_fields = output_fields(options)
        self._own_names = {field.name for field in self.own_fields}
        names = input_schema.names
        self._check_names(names)
        self.input_names = [name for name in names if self._is_kept(name)]
        self._check_clash()
        kept = [input_schema.field(name) for name in self.input_names]
        self.pass_through = pa.schema([field.with_nullable(True) for field in kept], metadata=_metadata(input_schema))

    def _check_names(self, names: Sequence[str]) -> None:
        known = ", ".join(f"`{name}`" for name in names)
        for option, asked in (("--columns", self._options.columns), ("--drop-columns", self._options.drop_columns)):
            unknown = [name for name in asked or () if name not in names]
            if unknown:
                raise UsageError(f"{option}: the input has no column `{unknown[0]}`", hint=f"its columns are {known}")
        twice = sorted({name for name in names if names.count(name) > 1 and self._is_kept(name)})
        if twice:
            raise UsageError(
                f"the input has two columns `{twice[0]}`", hint=f"--drop-columns {twice[0]}, or rename one of them"
            )

    def _check_clash(self) -> None:
        clashes = [name for name in self.input_names if name in self._own_names]
        if clashes:
            shown = ", ".join(f"`{name}`" for name in clashes)
            raise UsageError(
                f"the input already has {'columns' if len(clashes) > 1 else 'a column'} {shown}, which the output adds",
                hint=f"--column-prefix out_ names ours `out_{clashes[0].removeprefix(self._options.column_prefix)}`,"
                f" or --drop-columns {','.join(clashes)}",
            )

    def _is_kept(self, name: str) -> bool:
        wanted = self._options.columns
        return (wanted is None or name in wanted) and name not in self._options.drop_columns

    def selected(self, schema: pa.Schema) -> tuple[list[int], pa.Schema]:
        """Which columns of a reader's batch are kept, and their schema under the output's names."""
        places = [place for place, name in enumerate(schema.names) if self._is_kept(name)]
        fields = [schema.field(place) for place in places]
        taken = {field.name for field in fields} | self._own_names
        renamed = [self._with_free_name(field, taken) for field in fields]
        return places, pa.schema(renamed)

    def _with_free_name(self, field: pa.Field, taken: set[str]) -> pa.Field:
        if field.name not in self._own_names:
            return field
        name = field.name + LATE_SUFFIX
        while name in taken:
            name += "_"
        return field.with_name(name)

    def widened(self, schemas: Sequence[pa.Schema]) -> pa.Schema:
        """The pass-through schema that holds the input's and all of `schemas`; the same for any order of them."""
        wide = columns.unify_all([self.pass_through, *schemas])
        fields = [self._storable(field) for field in _ordered(wide, self.pass_through)]
        return pa.schema(fields, metadata=self.pass_through.metadata)

    def _storable(self, field: pa.Field) -> pa.Field:
        """A late column of empty objects becomes JSON text: Parquet has no place for a struct of nothing."""
        known = self.pass_through.get_field_index(field.name)
        is_known = known >= 0 and self.pass_through.field(known).type.equals(field.type)
        return field if is_known or not _holds_empty_struct(field.type) else columns.json_text_field(field.name)

    def full(self, pass_through: pa.Schema) -> pa.Schema:
        """The output's schema: pass-through columns, then ours."""
        return pa.schema([*pass_through, *self.own_fields], metadata=pass_through.metadata)

    def from_journal(self, batch: pa.RecordBatch, pass_through: pa.Schema) -> pa.RecordBatch:
        """A journal's batch as output rows."""
        theirs = pa.RecordBatch.from_arrays(
            batch.columns[NUM_JOURNAL_FIELDS:], schema=pa.schema(list(batch.schema)[NUM_JOURNAL_FIELDS:])
        )
        if not len(theirs.schema):  # a batch without columns forgets how many rows it has
            theirs_columns = [pa.nulls(batch.num_rows, field.type) for field in pass_through]
        else:
            theirs_columns = columns.conform(theirs, pass_through).columns
        return pa.RecordBatch.from_arrays(
            [*theirs_columns, *output_columns(batch, self._options)], schema=self.full(pass_through)
        )

    def conform(self, batch: pa.RecordBatch, pass_through: pa.Schema) -> pa.RecordBatch:
        """Output rows of a narrower schema under a wider one."""
        return columns.conform(batch, self.full(pass_through))

    def theirs(self, full: pa.Schema) -> pa.Schema | None:
        """The pass-through part of a shard's schema; None if our columns are not these."""
        count = len(full) - len(self.own_fields)
        ours = [field.remove_metadata() for field in list(full)[max(count, 0) :]]
        if count < 0 or ours != self.own_fields:
            return None
        return pa.schema(list(full)[:count], metadata=self.pass_through.metadata)

    def own(self, rows: pa.RecordBatch | pa.Table, name: str) -> Any:
        """An own column of output rows by its plain name."""
        return rows.column(self._options.column_prefix + name)

    def has_own(self, name: str) -> bool:
        return self._options.column_prefix + name in self._own_names


def _holds_empty_struct(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind) and kind.num_fields == 0:
        return True
    return any(_holds_empty_struct(kind.field(place).type) for place in range(kind.num_fields))


def _metadata(schema: pa.Schema) -> dict[bytes, bytes] | None:
    """What of the input's metadata still holds of the output: the datasets library's features, not pandas' index."""
    kept = {key: value for key, value in (schema.metadata or {}).items() if key == b"huggingface"}
    return kept or None


def _ordered(wide: pa.Schema, known: pa.Schema) -> pa.Schema:
    """Known columns in their order, then the late ones by name, so that the order rows finished in does not show."""
    late = sorted(name for name in wide.names if name not in known.names)
    fields = [_ordered_field(wide.field(name), known.field(name)) for name in known.names]
    return pa.schema([*fields, *(_ordered_field(wide.field(name), None) for name in late)])


def _ordered_field(wide: pa.Field, known: pa.Field | None) -> pa.Field:
    return wide.with_type(_ordered_type(wide.type, None if known is None else known.type))


def _ordered_type(wide: pa.DataType, known: pa.DataType | None) -> pa.DataType:
    if known is not None and wide.equals(known):
        return wide
    if pa.types.is_struct(wide):
        before = [field.name for field in known] if known is not None and pa.types.is_struct(known) else []
        if len({field.name for field in wide}) != wide.num_fields:
            return wide
        names = [*before, *sorted(field.name for field in wide if field.name not in before)]
        inner = {name: known.field(name).type for name in before} if known is not None else {}
        return pa.struct(
            [wide.field(name).with_type(_ordered_type(wide.field(name).type, inner.get(name))) for name in names]
        )
    for is_kind, make in ((pa.types.is_list, pa.list_), (pa.types.is_large_list, pa.large_list)):
        if is_kind(wide):
            element = known.value_type if known is not None and is_kind(known) else None
            return make(wide.value_field.with_type(_ordered_type(wide.value_type, element)))
    return wide


def schema_text(schema: pa.Schema) -> str:
    """A schema as text for JSON; `schema_from_text` gives it back."""
    return base64.b64encode(schema.serialize()).decode("ascii")


def schema_from_text(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
