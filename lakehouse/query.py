"""Spark SQL over the lake: bronze., silver., gold. and ops. tables by name."""

from __future__ import annotations

from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from lakehouse import bronze, gold, silver, tables
from lakehouse.answers import Answer
from lakehouse.data_losses import DATA_LOSSES
from lakehouse.dead_letters import DEAD_LETTERS
from lakehouse.errors import QueryError
from lakehouse.quality.results import GATES, RESULTS
from lakehouse.settings import Settings
from lakehouse.streams import STREAMS
from lakehouse.tables import TableSpec


def specs(settings: Settings) -> tuple[TableSpec, ...]:
    """Return every table of the lake, whether it has been made yet or not."""
    sources = [source for stream in STREAMS for source in stream.sources]
    merged = [table for stream in STREAMS for table in stream.tables]
    return (
        *(bronze.spec(source) for source in sources),
        *(silver.spec(source, settings) for source in sources),
        DEAD_LETTERS,
        *(gold.spec(table, settings) for table in merged),
        DATA_LOSSES,
        RESULTS,
        GATES,
    )


def register(spark: SparkSession, settings: Settings, *, statement: str = "") -> list[str]:
    """Make the lake's tables known to the session by name and return the names of those that exist.

    Of a statement that names tables only these are made known: each takes a moment.
    """
    all_specs = specs(settings)
    named = [spec for spec in all_specs if spec.name in statement.lower()]
    found = []
    for spec in named or all_specs:
        path = tables.path_of(settings.lake, spec.layer, spec.name)
        if tables.exists(spark, path):
            tables.register(spark, spec, path)
            found.append(spec.qualified_name)
    return found


def ask(spark: SparkSession, statement: str, *, limit: int) -> Answer:
    """Run a SQL statement and return at most `limit` rows.

    One that corrects a table is run again where a layer that is running has written to it in the meantime.
    Raises QueryError with Spark's explanation where the statement is refused or fails.
    """
    # PySpark would print a refusal itself before it raises it, as JSON with a stack trace.
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
    try:
        frame = tables.again_on_conflict(lambda: spark.sql(statement))
        rows = frame.limit(limit + 1).collect()
    except PySparkException as error:
        raise QueryError(str(error).strip().splitlines()[0]) from None
    return Answer(frame.schema, rows[:limit], truncated=len(rows) > limit)
