"""Evolve a table's schema to match the schema that the code declares.

Columns are matched by name, in any order. A struct's field is written as `card.id`, a field of an array's
elements as `reasons.element.rule`, and a field of a map's values as `partitions.value.total`. Comments and
nullability are not compared.

    the code declares                        what happens
    a column that the table lacks            the column is added in place, null in existing rows
    a wider type                             the column is widened in place
    a narrower type                          writers are refused, and readers accept the wider type
    any other type                           refused
    no such column                           a user's column is kept; if a stream once declared the column,
                                             or it is a struct's field, writers are refused and readers
                                             ignore it

A user's column is null in new rows and keeps its values in existing rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from enum import Enum

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StructType,
)

from lakehouse.common.errors import TableError, first_line
from lakehouse.common.events import Kind, note

_ATTEMPTS = 5
_PAUSE_S = 0.5

_INTEGERS: tuple[type[DataType], ...] = (ByteType, ShortType, IntegerType, LongType)
_DIGITS = {ByteType: 10, ShortType: 10, IntegerType: 10, LongType: 20}


@dataclass(frozen=True)
class Added:
    """A column to add, after the column `after` in the same struct, or first if `after` is None."""

    column: str
    type: str
    after: str | None

    def clause(self) -> str:
        """Return the clause for ALTER TABLE."""
        place = "FIRST" if self.after is None else f"AFTER `{self.after}`"
        return f"ADD COLUMNS ({_quoted(self.column)} {self.type} {place})"


@dataclass(frozen=True)
class Widened:
    """A column whose type is widened."""

    column: str
    type: str

    def clause(self) -> str:
        """Return the clause for ALTER TABLE."""
        return f"ALTER COLUMN {_quoted(self.column)} TYPE {self.type}"


@dataclass(frozen=True)
class SchemaChanges:
    """The differences between a table's schema and the declared schema.

    `missing` lists the table's columns that are not declared. `narrowed` lists columns that are declared with
    a narrower type, and `other` lists columns that are declared with an unrelated type. Both lists include
    the actual and the declared type. `carried` lists a user's columns.
    """

    added: tuple[Added, ...] = ()
    widened: tuple[Widened, ...] = ()
    missing: tuple[str, ...] = ()
    other: tuple[str, ...] = ()
    narrowed: tuple[str, ...] = ()
    carried: tuple[str, ...] = ()

    @property
    def are_none(self) -> bool:
        """True if there is nothing to change and nothing to refuse."""
        return replace(self, carried=()) == SchemaChanges()

    def carrying(self, ours: Collection[str]) -> SchemaChanges:
        """Move users' columns from `missing` to `carried`. `ours` are the columns that a stream declared.

        A name that begins with an underscore belongs to a column that a micro-batch adds for its own use.
        """
        theirs = [one for one in self.missing if not ("." in one or one[0] == "_" or one in ours)]
        missing = tuple(one for one in self.missing if one not in theirs)
        return replace(self, missing=missing, carried=(*self.carried, *theirs))

    def __add__(self, more: SchemaChanges) -> SchemaChanges:
        return SchemaChanges(
            self.added + more.added,
            self.widened + more.widened,
            self.missing + more.missing,
            self.other + more.other,
            self.narrowed + more.narrowed,
            self.carried + more.carried,
        )


class Refused(Enum):
    """The differences to refuse for a writer or a reader. A reader accepts extra columns and wider types."""

    TO_A_WRITER = ("missing", "narrowed", "other")
    TO_A_READER = ("other",)

    def of(self, changes: SchemaChanges) -> list[str]:
        """Return the columns in `changes` that are refused."""
        return [column for kind in self.value for column in getattr(changes, kind)]


def bring_up_to_date(
    spark: SparkSession,
    path: str,
    name: str,
    differing: Callable[[], SchemaChanges],
    *,
    refused: Refused,
    way_out: Callable[[], str],
) -> None:
    """Add and widen a Delta table's columns to match the declaration. A rerun changes nothing.

    Another job might do the same at the same time, so `differing` is called again before each attempt.
    `way_out` returns how to fix refused columns.
    """
    for left in reversed(range(_ATTEMPTS)):
        found = differing()
        if columns := refused.of(found):
            raise TableError(
                f"{name} has columns that differ from the stream's declaration: {', '.join(columns)}. "
                f"Columns are not removed, renamed or given a different type in place. {way_out()}"
            )
        clauses = [*(one.clause() for one in found.added), *(one.clause() for one in found.widened)]
        if found.widened:
            clauses.insert(0, "SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
        if not clauses:
            return
        try:
            for clause in clauses:
                alter(spark, path, clause)
                note(Kind.SCHEMA_CHANGE, f"{name}: {clause}", layer=name.partition(".")[0], table=name)
        except PySparkException as error:
            if not left:
                raise TableError(
                    f"{name} at {path} could not be altered to match the stream's declaration: "
                    f"{first_line(error)}"
                ) from error
            time.sleep(_PAUSE_S)


def alter(spark: SparkSession, path: str, clause: str) -> None:
    """Run an ALTER TABLE clause on a Delta table."""
    location = path.replace("`", "``")
    spark.sql(f"ALTER TABLE delta.`{location}` {clause}")


def compare(standing: StructType, declared: StructType, parent: str = "") -> SchemaChanges:
    """Return the changes from the existing schema to the declared schema."""
    prefix = f"{parent}." if parent else ""
    types = {column.name: column.dataType for column in standing}
    changes = SchemaChanges(
        missing=tuple(prefix + name for name in standing.names if name not in declared.names)
    )
    before: str | None = None
    for column in declared:
        if column.name in types:
            changes += _of_type(prefix + column.name, types[column.name], column.dataType)
        else:
            type_ = column.dataType.simpleString()
            changes += SchemaChanges(added=(Added(prefix + column.name, type_, before),))
        before = column.name
    return changes


def _of_type(column: str, was: DataType, declared: DataType) -> SchemaChanges:
    if isinstance(was, StructType) and isinstance(declared, StructType):
        return compare(was, declared, column)
    if isinstance(was, ArrayType) and isinstance(declared, ArrayType):
        return _of_type(f"{column}.element", was.elementType, declared.elementType)
    if isinstance(was, MapType) and isinstance(declared, MapType):
        keys = _of_type(f"{column}.key", was.keyType, declared.keyType)
        return keys + _of_type(f"{column}.value", was.valueType, declared.valueType)
    if was == declared:
        return SchemaChanges()
    if _holds(declared, was):
        return SchemaChanges(widened=(Widened(column, declared.simpleString()),))
    difference = (f"{column} ({was.simpleString()}, declared as {declared.simpleString()})",)
    return SchemaChanges(narrowed=difference) if _holds(was, declared) else SchemaChanges(other=difference)


def _holds(wide: DataType, narrow: DataType) -> bool:
    """Return whether Delta can widen the narrow type to the wide type, which can store all its values."""
    kind = type(narrow)
    if isinstance(wide, DecimalType) and kind in _DIGITS:
        return wide.precision - wide.scale >= _DIGITS[kind]
    if isinstance(wide, DecimalType) and isinstance(narrow, DecimalType):
        more_digits = wide.precision - wide.scale >= narrow.precision - narrow.scale
        return more_digits and wide.scale >= narrow.scale
    if isinstance(wide, DoubleType):
        return kind in (FloatType, ByteType, ShortType, IntegerType)
    if type(wide) in _INTEGERS and kind in _INTEGERS:
        return _INTEGERS.index(type(wide)) > _INTEGERS.index(kind)
    return False


def _quoted(column: str) -> str:
    return ".".join(f"`{part}`" for part in column.split("."))
