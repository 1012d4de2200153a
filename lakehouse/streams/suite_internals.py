"""The only module that uses undocumented parts of Great Expectations (docs/internals.md).

It defines the expectation types that `lakehouse.streams.suites` instantiates, and renders Data Docs as plain
pages. Great Expectations' own pages load scripts and styles from seven hosts, and render a table's values as
markup. This module embeds the pages' content in our own page, where values are text. The page's
Content-Security-Policy prevents the browser from loading or running anything.
"""

from __future__ import annotations

import json
from datetime import datetime
from html import escape
from typing import Any, ClassVar

from great_expectations.core.metric_domain_types import MetricDomainTypes
from great_expectations.core.metric_function_types import MetricPartialFunctionTypes
from great_expectations.data_context import AbstractDataContext
from great_expectations.data_context.types.base import ProgressBarsConfig
from great_expectations.execution_engine import SparkDFExecutionEngine
from great_expectations.expectations import UnexpectedRowsExpectation
from great_expectations.expectations.expectation import BatchExpectation
from great_expectations.expectations.metrics.metric_provider import metric_partial
from great_expectations.expectations.metrics.table_metric_provider import TableMetricProvider
from great_expectations.render.view import DefaultJinjaPageView
from jinja2 import ChoiceLoader, PackageLoader, pass_context
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakehouse.common.rows_as_text import QueryResult, plain_rows

EXAMPLES = 5
BATCH_VIEW = "tmp_view"
"""The view that Great Expectations creates for the table that a query checks, and never drops."""

_SITE = "local_site"
_VIEW = {"module_name": __name__, "class_name": "Page"}
_UNMET = "table.rows_that_do_not_meet"
_FOUND = "unexpected_rows_query.row_count"


class _RowsThatDoNotMeet(TableMetricProvider):
    """A metric: the number of rows that do not meet a condition. One pass computes all such metrics."""

    metric_name = _UNMET
    value_keys = ("condition",)

    @metric_partial(
        engine=SparkDFExecutionEngine,
        partial_fn_type=MetricPartialFunctionTypes.AGGREGATE_FN,
        domain_type=MetricDomainTypes.TABLE,
    )
    def _spark(
        cls,  # noqa: N805 - required by GX
        execution_engine: SparkDFExecutionEngine,  # noqa: ARG002
        metric_domain_kwargs: dict[str, Any],
        metric_value_kwargs: dict[str, Any],
        metrics: dict[str, Any],  # noqa: ARG002
        runtime_configuration: dict[str, Any],  # noqa: ARG002
    ) -> tuple[Column, dict[str, Any], dict[str, Any]]:
        return F.count_if(~F.expr(metric_value_kwargs["condition"])), metric_domain_kwargs, {}


class ExpectRowsToMeet(BatchExpectation):
    """Expects every row to meet a condition. As in an SQL CHECK constraint, null counts as met.

    `key` lists the columns that identify failing rows.
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
    """Expects a query on the table, which is called `{batch}` in the query, to return no rows.

    Returned rows show the problem. A gate uses `step` and `near` once the expectation has been met; see
    `no_rows`.
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
    """Expects the newest time in a column to be recent. Reports this time as the observed value."""

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
    """Return the first failing rows as JSON."""
    return [json.dumps(one, ensure_ascii=False) for one in _plain(rows)]


def _plain(rows: DataFrame) -> list[dict[str, Any]]:
    """Return the first failing rows as dictionaries that can be serialized as JSON."""
    found = QueryResult(rows.schema, rows.limit(EXAMPLES).collect(), truncated=False)
    return [dict(zip(rows.columns, row, strict=True)) for row in plain_rows(found)]


def read_example(text: str) -> dict[str, Any]:
    """Parse the JSON of a failing row, as stored in a result, into its columns."""
    example: dict[str, Any] = json.loads(text)
    return example


class Page(DefaultJinjaPageView):
    """A page or the index. Our templates replace those of Great Expectations that have the same names."""

    def __init__(self, **directories: Any) -> None:
        super().__init__(**directories)
        theirs = self.env.loader
        assert theirs is not None  # noqa: S101 - the constructor has just set it
        self.env.loader = ChoiceLoader([PackageLoader("lakehouse.operations.quality", "page"), theirs])

    @pass_context
    def render_content_block(self, jinja_context: Any, content_block: Any, *rest: Any, **options: Any) -> Any:
        """Return a part of a page as HTML. Plain strings, such as a table's values, are escaped."""
        parts = content_block if isinstance(content_block, list) else [content_block]
        text = [escape(part, quote=False) if isinstance(part, str) else part for part in parts]
        block = text if isinstance(content_block, list) else text[0]
        return super().render_content_block(jinja_context, block, *rest, **options)


def make_plain(context: AbstractDataContext) -> None:
    """Make a context write its Data Docs as plain pages."""
    sections = {name: {"view": _VIEW} for name in ("expectations", "validations", "profiling")}
    index = {"class_name": "DefaultSiteIndexBuilder", "view": _VIEW}
    sites: Any = context.variables.data_docs_sites
    site: Any = {
        **sites[_SITE],
        "site_index_builder": index,
        "site_section_builders": sections,
    }
    context.update_data_docs_site(_SITE, site)


def without_progress(context: AbstractDataContext) -> None:
    """Turn off a context's progress bars on the terminal."""
    context.variables.progress_bars = ProgressBarsConfig(globally=False)


def results_of(context: AbstractDataContext, at: datetime) -> list[Any]:
    """Return the identifiers of the results and suites of the run that began at `at` (UTC)."""
    store: Any = context.validation_results_store
    runs = [key for key in store.list_keys() if key.run_id.run_time == at]
    return [*runs, *(key.expectation_suite_identifier for key in runs)]
