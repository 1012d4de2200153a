"""What a suite is made of: expectations with a name, a severity and the key of the rows that break them.

Three kinds, by what they cost. A condition on a row is a Spark expression; all of a suite's are counted in
one pass over the table. A query is a pass of its own, for what one row cannot say: keys that are there twice,
rows without their counterpart in another table, the age of the newest one. Only what fails is looked at once
more, for examples. A severity is `fail`, which closes a gate and makes the command end with 1, or `warn`,
which is only shown.
"""

from __future__ import annotations

import html
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

from lakehouse.quality.report import Severity
from lakehouse.render import Answer, plain_rows

EXAMPLES = 5
BATCH_VIEW = "tmp_view"
"""What Great Expectations calls the rows of a query; it leaves the view behind."""

_LEVELS = {"fail": FailureSeverity.CRITICAL, "warn": FailureSeverity.WARNING}
_UNMET = "table.rows_that_do_not_meet"
_FOUND = "unexpected_rows_query.row_count"


class _RowsThatDoNotMeet(TableMetricProvider):
    """The metric of a condition on a row; Great Expectations finds it by name and puts all into one pass."""

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
    """Every row meets a condition, as of a CHECK in SQL: one that is null is met.

    `key` are the columns that name the rows that do not.
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
    """A query over the table, `{batch}` in it, finds no row; what it finds says what is wrong.

    `step` and `near` are what a gate goes by once it has held, see `no_rows`.
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


def _batch(engine: SparkDFExecutionEngine) -> DataFrame:
    frame: DataFrame = engine.get_compute_domain({}, domain_type=MetricDomainTypes.TABLE)[0]
    return frame


def _counts(rows: int, unexpected: int) -> dict[str, Any]:
    """Return what the pages of Great Expectations ask of a result."""
    percent = 100 * unexpected / max(rows, 1)
    return {"element_count": rows, "unexpected_count": unexpected, "unexpected_percent": percent}


def _examples(rows: DataFrame) -> list[str]:
    """Return the first rows as JSON in HTML: the pages of Great Expectations print what they get as it is."""
    found = Answer(rows.schema, rows.limit(EXAMPLES).collect(), truncated=False)
    examples = (dict(zip(rows.columns, row, strict=True)) for row in plain_rows(found))
    return [html.escape(json.dumps(one, ensure_ascii=False)) for one in examples]


def read_example(text: str) -> dict[str, Any]:
    """Return the columns of a row that breaks an expectation, as they stand in its result."""
    example: dict[str, Any] = json.loads(html.unescape(text))
    return example


def make_suite(table: str, *expectations: Expectation) -> ExpectationSuite:
    """Return the suite of a table, `layer.name`."""
    return ExpectationSuite(name=table, expectations=list(expectations))


def rows(key: Sequence[str], name: str, condition: str, *, severity: Severity = "fail") -> ExpectRowsToMeet:
    """Expect a condition, in Spark SQL, of every row; null is met."""
    return ExpectRowsToMeet(key=list(key), condition=condition, description=name, severity=_LEVELS[severity])


def required(key: Sequence[str], columns: Iterable[str]) -> ExpectRowsToMeet:
    """Expect values in all of these columns."""
    return rows(key, "what is required is there", " AND ".join(f"`{one}` IS NOT NULL" for one in columns))


def unique(key: Sequence[str]) -> ExpectNoRows:
    """Expect no key twice."""
    names = ", ".join(key)
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
    """Expect that a query, in Spark SQL, finds nothing.

    `{batch}` stands for the table, `layer_name` for another one as of a version that belongs to it,
    `gold_name_changes` for a gold table's change feed up to its version, and `limits` for one row of what
    can be set: see `lakehouse.quality.subjects`.

    A gate looks at the whole table again whenever it has changed, unless there is a `step`: a query that
    finds a row wherever the expectation has held and does not hold any more. In it `{batch}` stands for the
    rows whose keys are among those that have changed since, and `gold_name_changes` for the changes since;
    the other tables may have got rows but lost none, and those of gold may have changed under their keys.
    What it finds may be right after all: the whole table says so. `near` says which rows of another table a
    step has to see beside a row of the batch, by its view: those of which a column lies between two
    expressions over the row, in Spark SQL, all timestamps or longs.
    """
    return ExpectNoRows(
        unexpected_rows_query=query,
        description=name,
        severity=_LEVELS[severity],
        step=step,
        near=None if near is None else {view: list(between) for view, between in near.items()},
    )


def fresh(column: str) -> ExpectNoRows:
    """Expect a row of lately, by a column with a UTC time; an empty table is not fresh either."""
    query = (
        f"SELECT max({column}) AS newest FROM {{batch}} "  # noqa: S608 - the name of a column
        f"HAVING coalesce(max({column}) < (SELECT fresh_since FROM limits), true)"
    )
    return no_rows("there are rows of lately", query, severity="warn")
