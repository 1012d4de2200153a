"""How late the records of a silver table may be, and from which record on: ops.lateness.

Grain: one row per change of it; key: table_id, number. `seconds` is how far a record may be behind the
watermark's front and be accepted, null for however far, as in a backfill. `begins` has, for each partition,
the first offset for which that holds; of a partition that is not named, all records. `before` is the number
of the row that it follows, null for what the table was made with, which is one of its properties.

The commits of silver say which row holds now. A change is noted here first, then in a commit of its own,
before the first record that it is for:

    silver.metrics_events lateness              1795723989203000   the number of the row
    silver.metrics_events allowed_lateness_s              604800   what it was under the settings

Every later commit expects that number, so a process that goes by another one is refused. A row that no commit
names was left by a process that was killed, and counts for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import reduce
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StructType

from lakehouse import tables
from lakehouse.errors import TableError
from lakehouse.records.offsets import OffsetRange
from lakehouse.tables import Lake, Move, TableSpec, described
from lakehouse.tables.specs import EPOCH

SETTING = "allowed_lateness_s"

_BEGINS = StructType().add("topic", "string").add("partition", "integer").add("first", "long")
SCHEMA = described(
    ("table_id", "string", "Delta's id of the silver table."),
    ("number", "long", "By which the table's commits name the row; when it was noted, in microseconds."),
    ("before", "long", "The number of the row that this one follows; null: the first one."),
    ("table", "string", "The table, as layer.name."),
    ("seconds", "long", "How late a record may be; null: however late."),
    ("begins", ArrayType(_BEGINS), "The first offset of each partition for which that holds."),
)
LATENESS = TableSpec(
    "ops",
    "lateness",
    SCHEMA,
    stats=("table_id", "number"),
    comment="One row per change of how late the records of a silver table may be.",
)


@dataclass(frozen=True)
class Allowance:
    """How late a record may be (seconds, null: however late), and the first offset of each partition for it.

    Of a partition that is not in `begins`, it is for every record. `number` is null for the table's first.
    """

    seconds: int | None
    begins: Mapping[tuple[str, int], int] = field(default_factory=dict)
    number: int | None = None

    def is_for(self) -> Column:
        """Select the records, by their coordinates, that are not before it."""
        is_named = [
            ((F.col("topic") == topic) & (F.col("partition") == partition), F.col("offset") >= first)
            for (topic, partition), first in sorted(self.begins.items())
        ]
        if not is_named:
            return F.lit(True)
        first, *others = is_named
        chosen = reduce(lambda column, one: column.when(*one), others, F.when(*first))
        return chosen.otherwise(F.lit(True))


@dataclass(frozen=True)
class Lateness:
    """Every allowance of a silver table, the first one first, and what its commits say of the last."""

    table: str
    allowances: tuple[Allowance, ...]
    setting: int | None

    @property
    def now(self) -> Allowance:
        """The one that holds now."""
        return self.allowances[-1]

    @property
    def expected(self) -> Move:
        """What a commit of rows expects; it changes nothing."""
        return Move(_number(self.table), self.now.number, self.now.number)

    def since(self, number: int | None) -> tuple[Allowance, ...]:
        """Return the allowance with this number, and those after it."""
        places = [place for place, one in enumerate(self.allowances) if one.number == number]
        return self.allowances[places[0] :] if places else self.allowances

    def watermark(self, front: Column, *, or_s: int | None = 0) -> Column:
        """Return the watermark for each record, each by its own allowance; null where it cannot be late.

        `front` is that before the record landed, UTC. `or_s`: it may be as late as that in any case; null:
        however late.
        """
        marks = [
            (one.is_for(), _mark(front, most([one, Allowance(or_s)]))) for one in reversed(self.allowances)
        ]
        first, *others = marks
        return reduce(lambda column, one: column.when(*one), others, F.when(*first))


def most(allowances: Iterable[Allowance]) -> int | None:
    """Return the most seconds that one of some allowances gives; null: however many."""
    seconds = [one.seconds for one in allowances]
    known = [one for one in seconds if one is not None]
    return max(known) if len(known) == len(seconds) else None


def read(lake: Lake, table: str) -> Lateness:
    """Return the lateness of a silver table, `layer.name`, as of now.

    Raises TableError where the table does not say what it was made with, or names a row that is not there.
    """
    found = tables.snapshot(lake.spark, lake.path(*table.split(".")))
    noted = tables.transactions_in(lake.spark, found)
    made_with = tables.properties_of(found).get(f"lakehouse.{SETTING}")
    if made_with is None:
        raise TableError(
            f"{table} does not say under which {SETTING} it was made: its property lakehouse.{SETTING} is "
            "gone. Set it again, to the seconds that it was (ALTER TABLE … SET TBLPROPERTIES)"
        )
    number = noted.get(_number(table))
    later = [] if number is None else _chain(lake, table, tables.id_of(found), number)
    return Lateness(table, (Allowance(int(made_with)), *later), noted.get(_setting(table)))


def number_in(noted: Mapping[str, int], table: str) -> int | None:
    """Return the number of the allowance that a table's commits name; null for the one it was made with."""
    return noted.get(_number(table))


def setting_in(noted: Mapping[str, int], properties: Mapping[str, str], table: str) -> int:
    """Return what LAKEHOUSE_ALLOWED_LATENESS_S was when the table's last allowance was noted."""
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
    """Note that records that are not among the `judged` ones may be so late; return the new lateness.

    `setting` is what the settings say. Raises PositionError if another process has noted something else.
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
    """Return the allowances that lead to the one with this number, the first one first."""
    rows = lake.read_or_empty(LATENESS).where(F.col("table_id") == table_id).collect()
    by_number, found = {row.number: row for row in rows}, list[Allowance]()
    wanted: int | None = number
    while wanted is not None:
        if wanted not in by_number:
            raise TableError(
                f"{LATENESS.qualified_name} has no row {wanted}, which {table} names: how late its records "
                "may be is not known. Put the table back from a backup"
            )
        row = by_number[wanted]
        found.append(Allowance(row.seconds, _begins(row.begins), row.number))
        wanted = row.before
    return found[::-1]


def _begins(noted: Iterable[Any]) -> dict[tuple[str, int], int]:
    return {(one.topic, one.partition): one.first for one in noted}


def _mark(front: Column, seconds: int | None) -> Column:
    if seconds is None:
        return F.lit(None).cast("timestamp")
    return F.timestamp_micros(F.unix_micros(front) - F.lit(seconds * 1_000_000).cast("long"))


def _number(table: str) -> str:
    return f"{table} lateness"


def _setting(table: str) -> str:
    return f"{table} {SETTING}"
