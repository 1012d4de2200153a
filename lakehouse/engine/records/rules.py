"""Check SQL rules before a run: each rule must be a deterministic condition on one row's columns."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType, TimestampType

from lakehouse.common.errors import SettingsError, first_line
from lakehouse.streams.column_types import SPARK_TYPES
from lakehouse.streams.definition import Rule, Source

_ANALYSES: tuple[Callable[[DataFrame, Column], DataFrame], ...] = (
    lambda row, condition: row.where(condition),  # refuses aggregates, windows and non-boolean types
    lambda row, condition: row.agg(F.count_if(condition)),  # refuses nondeterministic conditions
    lambda row, condition: row.select(F.exists(F.array(F.lit(1)), lambda _: condition)),  # refuses subqueries
)


def checked_rules(source: Source) -> tuple[Rule, ...]:
    """Check a source's rules, and return them.

    Raises SettingsError, naming the rule's key, for an SQL condition that is not a deterministic expression
    on the row's columns and `event_time`.
    """
    rules = source.rules()
    in_sql = [rule for rule in rules if rule.key]
    if in_sql:
        columns = [StructField(field.column, SPARK_TYPES[field.type]) for field in source.contract.fields]
        schema = StructType([*columns, StructField("event_time", TimestampType())])
        row = SparkSession.active().createDataFrame([], schema)
        for rule in in_sql:
            _check(rule, row)
    return rules


def _check(rule: Rule, row: DataFrame) -> None:
    for analysed in _ANALYSES:
        try:
            _ = analysed(row, rule.violated).schema, row.select(rule.message).schema
        except PySparkException as error:
            raise SettingsError(
                f"{rule.key} is not a condition on the columns of one row ({', '.join(row.columns)}) that "
                f"always gives the same result: {first_line(error)}"
            ) from None
