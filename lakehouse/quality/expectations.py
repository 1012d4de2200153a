"""The expectations of suites: each has a name, a severity, and reports the keys of failing rows.

There are two kinds. A condition on a row is a Spark expression; one pass over the table evaluates all
conditions of a suite. A query takes a pass of its own, for checks across rows: duplicate keys, rows without a
counterpart in another table, the age of the newest row. Only failing expectations are read again, for
examples. The severity is `fail`, which closes a gate and makes the command exit with 1, or `warn`, which is
only shown.
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
"""The view that Great Expectations creates for queries, and does not drop."""

_LEVELS = {"fail": FailureSeverity.CRITICAL, "warn": FailureSeverity.WARNING}
_UNMET = "table.rows_that_do_not_meet"
_FOUND = "unexpected_rows_query.row_count"


class _RowsThatDoNotMeet(TableMetricProvider):
    """A metric: the number of rows that do not meet a condition. All such metrics take a single pass."""

    metric_name = _UNMET
    value_keys = ("condition",)

    @metric_partial(
        engine=SparkDFExecutionEngine,
        partial_fn_type=MetricPartialFunctionTypes.AGGREGATE_FN,
        domain_type=MetricDomainTypes.TABLE,
    )
    def _spark(
        cls,  # noqa: N805 - GX requires this
        execution_engine: SparkDFExecutionEngine,  # noqa: ARG002
        metric_domain_kwargs: dict[str, Any],
        metric_value_kwargs: dict[str, Any],
        metrics: dict[str, Any],  # noqa: ARG002
        runtime_configuration: dict[str, Any],  # noqa: ARG002
    ) -> tuple[Column, dict[str, Any], dict[str, Any]]:
        return F.count_if(~F.expr(metric_value_kwargs["condition"])), metric_domain_kwargs, {}


class ExpectRowsToMeet(BatchExpectation):
    """Every row meets a condition. As in an SQL CHECK constraint, null counts as met.

    `key` has the columns that identify failing rows.
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
    """A query on the table, which it names `{batch}`, returns no row; returned rows show the problem.

    A gate uses `step` and `near` after the expectation has held once; see `no_rows`.
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
    """The newest time in a column is recent; the observed value is that time."""

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
    """Return the counts that the Data Docs pages need in a result."""
    percent = 100 * unexpected / max(rows, 1)
    return {"element_count": rows, "unexpected_count": unexpected, "unexpected_percent": percent}


def _examples(rows: DataFrame) -> list[str]:
    """Return the first rows as JSON."""
    return [json.dumps(one, ensure_ascii=False) for one in _plain(rows)]


def _plain(rows: DataFrame) -> list[dict[str, Any]]:
    """Return the first rows as dictionaries that can be serialized as JSON."""
    found = QueryResult(rows.schema, rows.limit(EXAMPLES).collect(), truncated=False)
    return [dict(zip(rows.columns, row, strict=True)) for row in plain_rows(found)]


def read_example(text: str) -> dict[str, Any]:
    """Return a failing row's columns from its JSON in a result."""
    example: dict[str, Any] = json.loads(text)
    return example


def make_suite(table: str, *expectations: Expectation) -> ExpectationSuite:
    """Return the suite of a table, `layer.name`."""
    return ExpectationSuite(name=table, expectations=list(expectations))


def rows(key: Sequence[str], name: str, condition: str, *, severity: Severity = "fail") -> ExpectRowsToMeet:
    """Expect every row to meet a condition in Spark SQL; null counts as met."""
    return ExpectRowsToMeet(key=list(key), condition=condition, description=name, severity=_LEVELS[severity])


def required(key: Sequence[str], columns: Iterable[str]) -> ExpectRowsToMeet:
    """Expect no nulls in these columns."""
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
    """Expect a query in Spark SQL to return no row.

    In the query, `{batch}` is the table, `layer_name` another table at a consistent version,
    `gold_name_changes` a gold table's change feed up to its version, and `limits` one row of settings: see
    `lakehouse.quality.subjects`.

    Without a `step`, a gate checks the whole table again after every change. A step is a query that returns a
    row whenever the expectation held before and no longer does. In it, `{batch}` is the rows whose keys have
    changed since the last check, and `gold_name_changes` the changes since then. Other tables may have new
    rows, and gold rows new values, but no row was removed. If the step returns a row, the whole table is
    checked, because the row may still be right. `near` limits the rows of another table that the step reads,
    by view, to (column, first, last): the column is between two Spark SQL expressions over a row of the
    batch. All three are timestamps or longs.
    """
    return ExpectNoRows(
        unexpected_rows_query=query,
        description=name,
        severity=_LEVELS[severity],
        step=step,
        near=None if near is None else {view: list(between) for view, between in near.items()},
    )


def fresh(column: str) -> ExpectFresh:
    """Expect a column's newest time (UTC) to be at most `LAKEHOUSE_EXPECT_FRESH_S` seconds old.

    An empty table is not fresh. The severity is `warn`.
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
