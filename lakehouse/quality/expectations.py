"""What a suite is made of: expectations with a name, a severity, and the key of the rows that break them.

There are three kinds, by cost. A condition on a row is a Spark expression; one pass over the table counts all
of a suite's. A query is a pass of its own, for what a single row cannot say: duplicate keys, rows without a
counterpart in another table, the age of the newest row. Only what fails is looked at again, for examples. A
severity is `fail`, which closes a gate and makes the command exit with 1, or `warn`, which is only shown.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from great_expectations import ExpectationSuite
from great_expectations.core.metric_domain_types import MetricDomainTypes
from great_expectations.core.metric_function_types import MetricPartialFunctionTypes
from great_expectations.execution_engine import SparkDFExecutionEngine
from great_expectations.expectations import UnexpectedRowsExpectation
from great_expectations.expectations.expectation import BatchExpectation, Expectation
from great_expectations.expectations.metadata_types import FailureSeverity
from great_expectations.expectations.metrics.metric_provider import metric_partial
from great_expectations.expectations.metrics.table_metric_provider import TableMetricProvider
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakehouse.render import QueryResult, plain_rows
from lakehouse.stream import Severity

EXAMPLES = 5
BATCH_VIEW = "tmp_view"
"""Great Expectations' name for the rows of a query; it leaves the view behind."""

_LEVELS = {"fail": FailureSeverity.CRITICAL, "warn": FailureSeverity.WARNING}
_UNMET = "table.rows_that_do_not_meet"
_FOUND = "unexpected_rows_query.row_count"


class _RowsThatDoNotMeet(TableMetricProvider):
    """The metric of a condition on rows; Great Expectations finds it by name and runs all in one pass."""

    metric_name = _UNMET
    value_keys = ("condition",)

    @metric_partial(
        engine=SparkDFExecutionEngine,
        partial_fn_type=MetricPartialFunctionTypes.AGGREGATE_FN,
        domain_type=MetricDomainTypes.TABLE,
    )
    def _spark(
        cls,  # noqa: N805 - what GX asks for
        execution_engine: SparkDFExecutionEngine,  # noqa: ARG002
        metric_domain_kwargs: dict[str, Any],
        metric_value_kwargs: dict[str, Any],
        metrics: dict[str, Any],  # noqa: ARG002
        runtime_configuration: dict[str, Any],  # noqa: ARG002
    ) -> tuple[Column, dict[str, Any], dict[str, Any]]:
        return F.count_if(~F.expr(metric_value_kwargs["condition"])), metric_domain_kwargs, {}


class ExpectRowsToMeet(BatchExpectation):
    """Every row meets a condition. As in a CHECK of SQL, null counts as met.

    `key` are the columns that identify the rows that break it.
    """

    key: list[str]
    condition: str

    metric_dependencies: ClassVar[tuple[str, ...]] = ("table.row_count", _UNMET)
    domain_keys: ClassVar[tuple[str, ...]] = ("batch_id", "row_condition", "condition_parser")
    success_keys: ClassVar[tuple[str, ...]] = ("condition",)

    def _validate(
        self, metrics: dict[str, Any], runtime_configuration: Any = None, execution_engine: Any = None
    ) -> Any:
        del runtime_configuration
        found = _counts(metrics["table.row_count"], metrics[_UNMET])
        if metrics[_UNMET]:
            unmet = _batch(execution_engine).where(~F.expr(self.condition))
            found["partial_unexpected_list"] = _examples(unmet.select(*self.key))
        return {"success": not metrics[_UNMET], "result": found}


class ExpectNoRows(UnexpectedRowsExpectation):
    """A query on the table, `{batch}` in it, finds no row; the rows it finds say what is wrong.

    A gate uses `step` and `near` once it has held; see `no_rows`.
    """

    step: str | None = None
    near: dict[str, list[str]] | None = None

    metric_dependencies: ClassVar[tuple[str, ...]] = (_FOUND,)

    def _validate(
        self, metrics: dict[str, Any], runtime_configuration: Any = None, execution_engine: Any = None
    ) -> Any:
        del runtime_configuration
        found: dict[str, Any] = {"observed_value": metrics[_FOUND]}
        if metrics[_FOUND]:
            batch = _batch(execution_engine)
            found |= _counts(batch.count(), metrics[_FOUND])
            batch.createOrReplaceTempView(BATCH_VIEW)
            query = str(self.unexpected_rows_query).format(batch=BATCH_VIEW)
            found["partial_unexpected_list"] = _examples(execution_engine.spark.sql(query))
        return {"success": not metrics[_FOUND], "result": found}


class ExpectFresh(ExpectNoRows):
    """The newest time of a column is recent; that time is what is observed."""

    newest: str

    def _validate(
        self, metrics: dict[str, Any], runtime_configuration: Any = None, execution_engine: Any = None
    ) -> Any:
        found = super()._validate(metrics, runtime_configuration, execution_engine)
        (newest,) = _plain(_batch(execution_engine).agg(F.max(self.newest).alias("newest")))
        at = newest["newest"]
        found["result"]["observed_value"] = "no row has a time" if at is None else f"newest: {at}"
        return found


def _batch(engine: SparkDFExecutionEngine) -> DataFrame:
    frame: DataFrame = engine.get_compute_domain({}, domain_type=MetricDomainTypes.TABLE)[0]
    return frame


def _counts(rows: int, unexpected: int) -> dict[str, Any]:
    """Return the counts that Great Expectations' pages need in a result."""
    percent = 100 * unexpected / max(rows, 1)
    return {"element_count": rows, "unexpected_count": unexpected, "unexpected_percent": percent}


def _examples(rows: DataFrame) -> list[str]:
    """Return the first rows as JSON."""
    return [json.dumps(one, ensure_ascii=False) for one in _plain(rows)]


def _plain(rows: DataFrame) -> list[dict[str, Any]]:
    """Return the first rows as values for JSON, by column."""
    found = QueryResult(rows.schema, rows.limit(EXAMPLES).collect(), truncated=False)
    return [dict(zip(rows.columns, row, strict=True)) for row in plain_rows(found)]


def read_example(text: str) -> dict[str, Any]:
    """Return the columns of a row that breaks an expectation, from its result."""
    example: dict[str, Any] = json.loads(text)
    return example


def make_suite(table: str, *expectations: Expectation) -> ExpectationSuite:
    """Return the suite of a table, `layer.name`."""
    return ExpectationSuite(name=table, expectations=list(expectations))


def rows(key: Sequence[str], name: str, condition: str, *, severity: Severity = "fail") -> ExpectRowsToMeet:
    """Expect a condition, in Spark SQL, of every row; null counts as met."""
    return ExpectRowsToMeet(key=list(key), condition=condition, description=name, severity=_LEVELS[severity])


def required(key: Sequence[str], columns: Iterable[str]) -> ExpectRowsToMeet:
    """Expect values in all of these columns."""
    return rows(key, "required columns have values", " AND ".join(f"`{one}` IS NOT NULL" for one in columns))


def unique(key: Sequence[str]) -> ExpectNoRows:
    """Expect no duplicate key."""
    names = ", ".join(f"`{name}`" for name in key)
    query = f"SELECT {names}, count(*) AS rows FROM {{batch}} GROUP BY {names} HAVING count(*) > 1"  # noqa: S608
    return no_rows("keys are unique", query, step=query)


def no_rows(
    name: str,
    query: str,
    *,
    severity: Severity = "fail",
    step: str | None = None,
    near: Mapping[str, tuple[str, str, str]] | None = None,
) -> ExpectNoRows:
    """Expect that a query, in Spark SQL, finds no row.

    `{batch}` stands for the table, `layer_name` for another table as of a version that matches,
    `gold_name_changes` for a gold table's change feed up to its version, and `limits` for one row of
    settings: see `lakehouse.quality.subjects`.

    A gate looks at the whole table again whenever it has changed, unless there is a `step`: a query that
    finds a row whenever the expectation has held and no longer does. In it, `{batch}` stands for the rows
    whose keys have changed since, and `gold_name_changes` for the changes since. Other tables may have new
    rows but have lost none, and those of gold may have changed under their keys. A row that the step finds
    may still be right: the whole table decides. `near` says which rows of another table a step must see
    beside a row of the batch, by view: those whose column lies between two expressions over the row, in Spark
    SQL, all timestamps or longs.
    """
    return ExpectNoRows(
        unexpected_rows_query=query,
        description=name,
        severity=_LEVELS[severity],
        step=step,
        near=None if near is None else {view: list(between) for view, between in near.items()},
    )


def fresh(column: str) -> ExpectFresh:
    """Expect that a column's newest time, in UTC, is at most `LAKEHOUSE_EXPECT_FRESH_S` old.

    An empty table is not fresh either.
    """
    query = (
        f"SELECT max(`{column}`) AS newest FROM {{batch}} "  # noqa: S608 - the name of a column
        f"HAVING coalesce(max(`{column}`) < (SELECT fresh_since FROM limits), true)"
    )
    return ExpectFresh(
        unexpected_rows_query=query,
        newest=column,
        description="the newest row is recent",
        severity=_LEVELS["warn"],
    )
