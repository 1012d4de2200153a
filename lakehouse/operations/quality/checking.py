"""Run a suite on a table. Each expectation's result includes the keys of some failing rows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from importlib import import_module
from typing import Any

import great_expectations as gx
from great_expectations import ExpectationSuite, RunIdentifier, ValidationDefinition
from great_expectations.data_context import AbstractDataContext
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from lakehouse.common.errors import TableError, first_line
from lakehouse.operations.quality.report import Finding, TableReport
from lakehouse.operations.quality.subjects import PinnedTables, Subject
from lakehouse.storage.spark.query_errors import error_line
from lakehouse.streams.definition import OWN_SUITES, Severity
from lakehouse.streams.suite_internals import (
    BATCH_VIEW,
    EXAMPLES,
    ExpectNoRows,
    make_plain,
    read_example,
    results_of,
    without_progress,
)
from lakehouse.streams.suites import LEVELS

_BY_DEFAULT = f"{OWN_SUITES}.by_default"
_RESULT_FORMAT = {
    "result_format": "SUMMARY",
    "partial_unexpected_count": EXAMPLES,
    "return_unexpected_index_query": False,
}


def suite_of(subject: Subject) -> ExpectationSuite | None:
    """Return a table's suite, or None if it has none. Tables of streams have at least the default suite.

    Raises TableError if the suite's module does not return an ExpectationSuite.
    """
    name = f"{subject.suites}.{subject.spec.layer}.{subject.spec.name}"
    try:
        made = import_module(name).suite()
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise
        made = None if subject.declared is None else import_module(_BY_DEFAULT).suite(subject)
    if made is not None and not isinstance(made, ExpectationSuite):
        raise TableError(f"{name}.suite() did not return an ExpectationSuite")
    return made


def make_context(directory: str | None = None) -> AbstractDataContext:
    """Return a Great Expectations context in memory, or in a directory that keeps results and Data Docs."""
    if directory is None:
        context: AbstractDataContext = gx.get_context(mode="ephemeral")
    else:
        context = gx.get_context(mode="file", project_root_dir=directory)
        make_plain(context)
    without_progress(context)
    return context


def check(
    subject: Subject,
    suite: ExpectationSuite,
    pinned: PinnedTables,
    context: AbstractDataContext,
    *,
    since: datetime | None = None,
) -> TableReport:
    """Run a suite on a pinned table. With `since` (UTC), only rows at or after that time are checked.

    The rows are read only once. An unreadable table yields a failed finding.
    """
    began = time.monotonic()
    queries = [one.unexpected_rows_query for one in suite.expectations if isinstance(one, ExpectNoRows)]
    try:
        with (
            pinned.executing(),
            pinned.shown("\n".join(map(str, queries)), since),
            _kept(pinned.rows(subject, since)) as frame,
        ):
            rows = frame.count()
            definition = _definition(subject.name, suite, context)
            run = RunIdentifier(run_name=f"version-{pinned.versions[subject.name]}", run_time=pinned.now)
            done = definition.run(
                batch_parameters={"dataframe": frame}, result_format=_RESULT_FORMAT, run_id=run
            )
            findings = tuple(map(_finding, done.results))
    except (PySparkException, Py4JJavaError) as error:  # for example, a missing file
        rows, findings = 0, (_unreadable(error),)
    return TableReport(subject.name, pinned.versions[subject.name], rows, findings, time.monotonic() - began)


@contextmanager
def _kept(frame: DataFrame) -> Iterator[DataFrame]:
    """Cache the rows during the block, and drop Great Expectations' view afterwards."""
    frame.persist()
    try:
        yield frame
    finally:
        frame.unpersist()
        frame.sparkSession.catalog.dropTempView(BATCH_VIEW)


def _unreadable(error: Exception) -> Finding:
    return Finding(
        "the table can be read", "fail", success=False, observed="", unexpected=0, error=error_line(error)
    )


def write_pages(context: AbstractDataContext, at: datetime) -> None:
    """Write the Data Docs for the checks at the given time (UTC), and the index. Older pages are kept."""
    context.build_data_docs(resource_identifiers=results_of(context, at))


def only_failing(suite: ExpectationSuite) -> ExpectationSuite:
    """Return the suite without its expectations of severity `warn`."""
    kept = [one for one in suite.expectations if one.severity == LEVELS["fail"]]
    return ExpectationSuite(name=suite.name, expectations=kept)


def _definition(name: str, suite: ExpectationSuite, context: AbstractDataContext) -> ValidationDefinition:
    source = context.data_sources.add_or_update_spark("lake", persist=False)
    asset = source.add_dataframe_asset(name)
    batch = asset.add_batch_definition_whole_dataframe("all")
    kept = context.suites.add_or_update(suite)
    return context.validation_definitions.add_or_update(
        ValidationDefinition(name=name, data=batch, suite=kept)
    )


def _finding(result: Any) -> Finding:
    config = result.expectation_config
    name = str(config.description or config.type)
    severity: Severity = "warn" if config.severity == LEVELS["warn"] else "fail"
    error = _error_of(result.exception_info)
    if error is not None:
        return Finding(name, severity, success=False, observed="", unexpected=0, error=error)
    found = result.result
    unexpected = int(found.get("unexpected_count") or 0)
    examples = tuple(map(read_example, found.get("partial_unexpected_list") or ()))
    return Finding(name, severity, bool(result.success), _observed(found, unexpected), unexpected, examples)


def _observed(found: Mapping[str, Any], unexpected: int) -> str:
    """Return the observed value if it is a string, or the number of failing rows otherwise."""
    said = found.get("observed_value")
    if isinstance(said, str):
        return said
    if said is None:
        return f"{unexpected:,} of {found['element_count']:,} rows"
    return f"{unexpected:,} row{'s' * (unexpected != 1)}"


def _error_of(info: Any) -> str | None:
    """Return the first line of an expectation's error, or None if it was evaluated without errors.

    Great Expectations reports either one exception or one exception per metric.
    """
    kinds: Sequence[Any] = [info] if "raised_exception" in (info or {}) else list((info or {}).values())
    messages = [str(one.get("exception_message")) for one in kinds if one.get("raised_exception")]
    return next((first_line(text) for text in messages if text.strip()), None)
