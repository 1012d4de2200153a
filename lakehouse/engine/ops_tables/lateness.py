"""ops.lateness: each silver table's allowed lateness, and the first offsets that it applies to.

Grain: one row per change to a table's allowed lateness; key: table_id, number. The allowed lateness is how
far behind the front a record's event time may be. The initial value is a table property, so `before` is null
in the first row for a table. If a partition has no entry in `begins`, the row applies to all records in that
partition.

Silver's commits refer to the current row by its number. A change is first written here, and then recorded in
a separate commit, before the first record that it applies to:

    silver.metrics_events lateness              1795723989203000   the number of the row
    silver.metrics_events allowed_lateness_s              604800   the setting at that time

Every later commit requires that number, so a process that uses any other row cannot commit. A row to which no
commit refers was written by a process that was then killed, and is ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StructType

from lakehouse.common.errors import TableError
from lakehouse.storage import tables
from lakehouse.storage.spark.offset_ranges import OffsetRange, within
from lakehouse.storage.tables import Lake, Move, TableSpec, described
from lakehouse.storage.tables.specs import EPOCH

SETTING = "allowed_lateness_s"

_BEGINS = StructType().add("topic", "string").add("partition", "integer").add("first", "long")
SCHEMA = described(
    ("table_id", "string", "Delta's id of the silver table."),
    ("number", "long", "When the row was written, in microseconds since 1970; commits name this number."),
    ("before", "long", "The number of the previous row; null in the table's first row."),
    ("table", "string", "The table, as layer.name."),
    ("seconds", "long", "The allowed lateness; null if it is unlimited."),
    ("begins", ArrayType(_BEGINS), "For each partition, the first offset that the row applies to."),
)
LATENESS = TableSpec(
    "ops",
    "lateness",
    SCHEMA,
    stats=("table_id", "number"),
    comment="One row per change to a silver table's allowed lateness.",
)


@dataclass(frozen=True)
class Allowance:
    """An allowed lateness in seconds (None: unlimited), and the first offset to which it applies.

    `begins` contains the first offset for each partition. If it lacks a partition, the allowed lateness
    applies to all records in that partition. `number` is None for the initial value.
    """

    seconds: int | None
    begins: Mapping[tuple[str, int], int] = field(default_factory=dict)
    number: int | None = None

    def is_for(self) -> Column:
        """Return whether the allowance covers a record, as determined by its partition and offset."""
        return ~within([OffsetRange(*place, 0, first - 1) for place, first in sorted(self.begins.items())])


@dataclass(frozen=True)
class Lateness:
    """The allowances of a silver table over time, oldest first, and the last recorded setting, if any."""

    table: str
    allowances: tuple[Allowance, ...]
    setting: int | None

    @property
    def now(self) -> Allowance:
        """The current allowance."""
        return self.allowances[-1]

    @property
    def expected(self) -> Move:
        """The move with which a commit requires that the current number has not changed."""
        return Move(_number(self.table), self.now.number, self.now.number)

    def since(self, number: int | None) -> tuple[Allowance, ...]:
        """Return the allowances from this number on, or all allowances if the number is not found."""
        places = [place for place, one in enumerate(self.allowances) if one.number == number]
        return self.allowances[places[0] :] if places else self.allowances

    def watermark(self, front: Column, *, or_s: int | None = 0) -> Column:
        """Return each record's watermark (UTC) under its allowance, or null if the record cannot be late.

        `front` is the greatest event time before the record landed, UTC. `or_s` is the minimum allowed
        lateness, in seconds; None means unlimited.
        """
        marks = [
            (one.is_for(), _mark(front, most([one, Allowance(or_s)]))) for one in reversed(self.allowances)
        ]
        first, *others = marks
        return reduce(lambda column, one: column.when(*one), others, F.when(*first))


def most(allowances: Iterable[Allowance]) -> int | None:
    """Return the longest allowed lateness in seconds, or None if any of them is unlimited."""
    seconds = [one.seconds for one in allowances]
    known = [one for one in seconds if one is not None]
    return max(known) if len(known) == len(seconds) else None


def read(lake: Lake, table: str) -> Lateness:
    """Return the allowed lateness of a silver table; `table` is layer.name.

    Raises TableError if the table has no initial value, or if its commits refer to a row that is missing from
    ops.lateness.
    """
    found = tables.snapshot(lake.spark, lake.path(*table.split(".")))
    noted = tables.transactions_in(lake.spark, found)
    made_with = tables.properties_of(found).get(f"lakehouse.{SETTING}")
    if made_with is None:
        raise TableError(
            f"{table} has no property lakehouse.{SETTING}, so the {SETTING} with which the table was "
            "created is unknown. Set the property to the original number of seconds (ALTER TABLE … SET "
            "TBLPROPERTIES)"
        )
    number = noted.get(_number(table))
    later = [] if number is None else _chain(lake, table, tables.id_of(found), number)
    return Lateness(table, (Allowance(int(made_with)), *later), noted.get(_setting(table)))


def number_in(noted: Mapping[str, int], table: str) -> int | None:
    """Return the number of the allowance to which a table's commits refer, or None for the initial value."""
    return noted.get(_number(table))


def setting_in(noted: Mapping[str, int], properties: Mapping[str, str], table: str) -> int:
    """Return the allowed lateness, in seconds, as configured when the table's last allowance was recorded."""
    return noted.get(_setting(table), int(properties.get(f"lakehouse.{SETTING}", "0")))


def change(
    lake: Lake,
    known: Lateness,
    seconds: int | None,
    setting: int,
    judged: Sequence[OffsetRange],
    *,
    now: datetime,
) -> Lateness:
    """Change the allowed lateness for records after the `judged` offset ranges, and return the new lateness.

    `seconds` is None for no limit. `setting` is the currently configured allowed lateness, in seconds.
    Raises PositionError if another process has changed the allowed lateness.
    """
    spark, path = lake.spark, lake.path(*known.table.split("."))
    begins = {(one.topic, one.partition): one.last + 1 for one in judged}
    number = max((now - EPOCH) // timedelta(microseconds=1), (known.now.number or 0) + 1)
    row = (
        tables.table_id(spark, path),
        number,
        known.now.number,
        known.table,
        seconds,
        [(topic, partition, first) for (topic, partition), first in sorted(begins.items())],
    )
    tables.append(spark.createDataFrame([row], SCHEMA), lake.ensure(LATENESS))
    moves = [Move(_number(known.table), known.now.number, number)]
    if known.setting != setting:
        moves.append(Move(_setting(known.table), known.setting, setting))
    tables.note(spark, path, moves)
    return Lateness(known.table, (*known.allowances, Allowance(seconds, begins, number)), setting)


def _chain(lake: Lake, table: str, table_id: str, number: int) -> list[Allowance]:
    """Return the allowances up to this number, oldest first."""
    rows = lake.read_or_empty(LATENESS).where(F.col("table_id") == table_id).collect()
    by_number, found = {row.number: row for row in rows}, list[Allowance]()
    wanted: int | None = number
    while wanted is not None:
        if wanted not in by_number:
            raise TableError(
                f"{LATENESS.qualified_name} has no row {wanted}, to which {table} refers, so its allowed "
                "lateness is unknown. Restore ops.lateness from a backup"
            )
        row = by_number[wanted]
        begins = {(one.topic, one.partition): one.first for one in row.begins}
        found.append(Allowance(row.seconds, begins, row.number))
        wanted = row.before
    return found[::-1]


def _mark(front: Column, seconds: int | None) -> Column:
    if seconds is None:
        return F.lit(None).cast("timestamp")
    return F.timestamp_micros(F.unix_micros(front) - F.lit(seconds * 1_000_000).cast("long"))


def _number(table: str) -> str:
    return f"{table} lateness"


def _setting(table: str) -> str:
    return f"{table} {SETTING}"
