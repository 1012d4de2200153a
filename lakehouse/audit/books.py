"""The books: every row of bronze is in exactly one of silver and the dead letters that are not replayed.

A replayed dead letter is also in silver; a resent one is not, but the record in its place is. Letters closed
from the beginning, such as duplicates, are counted by themselves. Rows that an unfinished micro-batch of
silver has written only have to come from bronze. Records that retention has taken from bronze are left out.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakehouse import tables
from lakehouse.audit.report import Check, Compared
from lakehouse.layers.identities import letters_up_to
from lakehouse.ops import retained
from lakehouse.progress import cuts
from lakehouse.records.dead_letters import OPEN, REPLAYED, RESENT, STATUSES
from lakehouse.records.identity import CLOSED
from lakehouse.records.validation import COORDINATES
from lakehouse.stream import Source, Stream
from lakehouse.tables import Lake

_STATUSES = STATUSES
_MORE = (RESENT, *CLOSED)
_ELSEWHERE = tuple(status for status in STATUSES if status != REPLAYED)


def check_books(lake: Lake, stream: Stream, source: Source) -> list[Check]:
    """Compare bronze, silver and the dead letters of a source, record by record."""
    spark, query = lake.spark, f"silver.{source.table}"
    bronze_path = lake.path("bronze", source.table)
    # The position is read before the tables, so what it calls finished is in them.
    position = cuts.position_of(spark, query, lake.path("silver", source.table), bronze_path)
    finished = cuts.read_up_to(spark, bronze_path, position)
    version = tables.version_of(spark, lake.path("silver", source.table))
    silver = tables.read_version(spark, lake.path("silver", source.table), version)
    dead = letters_up_to(lake.read("silver", "dead_letters").where(F.col("job") == query), version)
    taken = retained.taken_of(lake, "bronze", source.table)
    books = _books(*map(taken.filter_kept, (finished, silver, dead))).persist()
    try:
        wrong = books.select(*COORDINATES, _what().alias("what")).where("what IS NOT NULL")
        unknown = books.where("bronze = 0").join(
            tables.read(spark, bronze_path), list(COORDINATES), "left_anti"
        )
        strange = unknown.select(*COORDINATES, F.lit("not in bronze").alias("what"))
        sums = books.agg(
            *(F.sum(name).alias(name) for name in ("bronze", "silver", *_STATUSES)),
            F.count_if(F.col("bronze") == 0).alias("in_flight"),
        ).first()
        totals = {} if sums is None else {name: value or 0 for name, value in sums.asDict().items()}
        note = (
            "bronze {bronze:,}; silver {silver:,}, of these {replayed:,} replayed; dead letters {open:,} "
            "open, {discarded:,} discarded{closed}; {in_flight:,} of an unfinished micro-batch"
        ).format(**totals, closed="".join(f", {totals[one]:,} {one}" for one in _MORE if totals[one]))
        subject = Compared(stream.name, "books", f"bronze.{source.table} = {query} + dead letters")
        return [subject.compared(totals["bronze"], [wrong, strange], [note, *taken.notes()])]
    finally:
        books.unpersist()


def _books(finished: DataFrame, silver: DataFrame, dead: DataFrame) -> DataFrame:
    """Return one row per record: how often it is in bronze, in silver, and in the dead letters by status."""
    none = F.lit(0)
    places = ("bronze", "silver", *_STATUSES)

    def of(rows: DataFrame, *counted: str) -> DataFrame:
        marks = [(F.lit(1) if name in counted else none).alias(name) for name in places]
        return rows.select(*COORDINATES, *marks)

    by_status = dead.select(
        *COORDINATES,
        none.alias("bronze"),
        none.alias("silver"),
        *((F.col("status") == status).cast("int").alias(status) for status in _STATUSES),
    )
    rows = of(finished, "bronze").unionByName(of(silver, "silver")).unionByName(by_status)
    return rows.groupBy(*COORDINATES).agg(*(F.sum(name).alias(name) for name in places))


def _what() -> Column:
    letters = reduce(Column.__add__, map(F.col, _STATUSES))

    def times(count: Column, where: str) -> Column:
        return F.when(count > 1, F.concat(count.cast("string"), F.lit(f" times in {where}")))

    return F.coalesce(
        times(F.col("bronze"), "bronze"),
        times(F.col("silver"), "silver"),
        times(letters, "the dead letters"),
        F.when((F.col("silver") == 0) & (letters == 0), F.lit("neither in silver nor a dead letter")),
        *(
            F.when(
                (F.col("silver") == 1) & (F.col(status) == 1),
                F.lit(f"both in silver and {'an' if status == OPEN else 'a'} {status} dead letter"),
            )
            for status in _ELSEWHERE
        ),
        F.when((F.col("silver") == 0) & (F.col("replayed") == 1), F.lit("replayed, but not in silver")),
    )
