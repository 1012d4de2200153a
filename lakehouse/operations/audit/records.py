"""Check `records`: every bronze record is a silver row or a dead letter, as a new validation decides.

A record is either in silver or a dead letter that has not been replayed, never both. The record of a replayed
dead letter is also in silver, and a record that a replay moved to silver still has its dead letter. The
record of a resent dead letter is not in silver, but the record that replaced it is. For the comparison,
bronze is revalidated. Silver rows are compared in every column, and dead letters by status. Rows from an
unfinished silver micro-batch only need a record in bronze. Records that retention has deleted from bronze are
skipped.

If only a part is audited, the records that landed since a time, files of earlier landings are not read, but
for the records with the same ids.
"""

from __future__ import annotations

from datetime import datetime
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakehouse.engine.layers.letters import without_leaving
from lakehouse.engine.layers.silver import spec
from lakehouse.engine.ops_tables import retained
from lakehouse.engine.progress import cuts
from lakehouse.engine.records.dead_letters import OPEN, REPLAYED, RESENT, STATUSES
from lakehouse.engine.records.identity import CLOSED
from lakehouse.operations.audit.report import Check, Compared
from lakehouse.operations.repair.revalidating import differing
from lakehouse.storage import tables
from lakehouse.storage.tables import Lake
from lakehouse.streams.contract import COORDINATES
from lakehouse.streams.definition import Source, Stream

_MORE = (RESENT, *CLOSED)
_ELSEWHERE = tuple(status for status in STATUSES if status != REPLAYED)


def check_records(lake: Lake, stream: Stream, source: Source, since: datetime | None = None) -> list[Check]:
    """Revalidate a source's bronze records, and compare the results with silver and the dead letters.

    With `since` (UTC), only records that landed then or later are compared.
    """
    spark, query = lake.spark, f"silver.{source.table}"
    bronze_path = lake.path("bronze", source.table)
    # Read the position before the tables. The tables then contain all rows up to the position.
    position = cuts.position_of(spark, query, lake.path("silver", source.table), bronze_path)
    finished = cuts.read_up_to(spark, bronze_path, position)
    clean, dead_path = lake.path("silver", source.table), lake.path("silver", "dead_letters")
    version = tables.version_of(spark, clean)
    silver = tables.read_version(spark, clean, version)
    of_query = tables.read(spark, dead_path).where(F.col("job") == query)
    dead = without_leaving(of_query, query, version, bronze=bronze_path, clean=clean, dead=dead_path)
    taken = retained.taken_of(lake, "bronze", source.table)
    in_part = landed_since(since)
    books = _books(*(taken.filter_kept(rows.where(in_part)) for rows in (finished, silver, dead))).persist()
    try:
        wrong = books.select(*COORDINATES, _what().alias("what")).where("what IS NOT NULL")
        unknown = books.where("bronze = 0").join(
            tables.read(spark, bronze_path).where(in_part), list(COORDINATES), "left_anti"
        )
        strange = unknown.select(*COORDINATES, F.lit("not in bronze").alias("what"))
        named = wrong.select(*COORDINATES).union(strange.select(*COORDINATES))
        sums = books.agg(
            *(F.sum(name).alias(name) for name in ("bronze", "silver", *STATUSES)),
            F.count_if(F.col("bronze") == 0).alias("in_flight"),
            F.count_if((F.col("let_in") > 0) & (F.col(OPEN) > 0)).alias("to_be_closed"),
        ).first()
        totals = {} if sums is None else {name: value or 0 for name, value in sums.asDict().items()}
        open_rows = totals.pop("to_be_closed", 0)
        to_close = [f"{open_rows:,} dead letters of replayed records are still open"] if open_rows else []
        note = (
            "bronze {bronze:,}; silver {silver:,}, of these {replayed:,} replayed; dead letters {open:,} "
            "open, {discarded:,} discarded{closed}; {in_flight:,} in an unfinished micro-batch"
        ).format(**totals, closed="".join(f", {totals[one]:,} {one}" for one in _MORE if totals[one]))
        about = f"bronze.{source.table} = {query} + dead letters{part_of(since)}"
        subject = Compared(stream.name, "records", about)
        notes = [note, *to_close, *taken.notes(), *_other_ids(lake, source)]
        other = differing(lake, stream, source, since).join(named, list(COORDINATES), "left_anti")
        return [subject.compared(totals["bronze"], [wrong, strange, other], notes)]
    finally:
        books.unpersist()


def landed_since(since: datetime | None) -> Column:
    """Return the condition that a record landed at a time (UTC) or later; None means any record."""
    return F.lit(True) if since is None else F.col("ingested_at") >= F.lit(since)


def part_of(since: datetime | None) -> str:
    """Return the end of a check's subject that says which records are compared, or "" if all are."""
    return "" if since is None else f", landed since {since:%F %T} UTC"


def _other_ids(lake: Lake, source: Source) -> list[str]:
    """Return a note if silver was built with different id settings, or an empty list otherwise."""
    made = spec(source)
    told = f"{made.qualified_name} was built with different id settings: run `lakehouse rebuild silver`"
    return [told] if lake.is_made_otherwise(made) else []


def _books(finished: DataFrame, silver: DataFrame, dead: DataFrame) -> DataFrame:
    """Return one row per record: how often it is in bronze, in silver, and in the dead letters by status."""
    places = ("bronze", "silver", "let_in", *STATUSES)

    def of(rows: DataFrame, **counts: Column) -> DataFrame:
        marks = (counts.get(name, F.lit(0)).cast("int").alias(name) for name in places)
        return rows.select(*COORDINATES, *marks)

    of_silver = of(silver, silver=F.lit(1), let_in=F.col("admitted").isNotNull())
    by_status = of(dead, **{status: F.col("status") == status for status in STATUSES})
    rows = of(finished, bronze=F.lit(1)).union(of_silver).union(by_status)
    return rows.groupBy(*COORDINATES).agg(*(F.sum(name).alias(name) for name in places))


def _what() -> Column:
    letters = reduce(Column.__add__, map(F.col, STATUSES))
    # A killed replay leaves open dead letters for records that are in silver; the next replay closes them.
    is_left = {OPEN: F.col("let_in") > 0}

    def times(count: Column, where: str) -> Column:
        return F.when(count > 1, F.concat(count.cast("string"), F.lit(f" times in {where}")))

    return F.coalesce(
        times(F.col("bronze"), "bronze"),
        times(F.col("silver"), "silver"),
        times(letters, "the dead letters"),
        F.when((F.col("silver") == 0) & (letters == 0), F.lit("neither in silver nor a dead letter")),
        *(
            F.when(
                (F.col("silver") == 1) & (F.col(status) == 1) & ~is_left.get(status, F.lit(False)),
                F.lit(f"both in silver and {'an' if status == OPEN else 'a'} {status} dead letter"),
            )
            for status in _ELSEWHERE
        ),
        F.when((F.col("silver") == 0) & (F.col("replayed") == 1), F.lit("replayed, but not in silver")),
        F.when(
            (F.col("bronze") == 1) & (F.col("let_in") == 1) & (letters == 0),
            F.lit("replayed, but its dead letter is missing"),
        ),
    )
