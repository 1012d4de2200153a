"""Tests of suites: a lake's tables become views, and Great Expectations reports what fails."""

from __future__ import annotations

from great_expectations import ExpectationSuite, ValidationDefinition
from pyspark.sql import SparkSession

from lakehouse.operations.quality import checking
from lakehouse.operations.quality.checking import make_context
from lakehouse.operations.quality.subjects import subjects
from lakehouse.streams.suite_internals import BATCH_VIEW, ExpectNoRows
from tests.expectations.lakes import Row, TinyLake, frame
from tests.support.streams import STREAMS


def suite_of(table: str) -> ExpectationSuite:
    """Return the suite of a table, `layer.name`."""
    (suite,) = (checking.suite_of(one) for one in subjects(STREAMS) if one.name == table)
    assert suite is not None
    return suite


def names_of(table: str) -> list[str]:
    """Return the names of a suite's expectations."""
    return [str(one.description) for one in suite_of(table).expectations]


def steps_of(table: str) -> dict[str, str]:
    """Return the steps of a suite's expectations by name."""
    asked = [one for one in suite_of(table).expectations if isinstance(one, ExpectNoRows) and one.step]
    return {str(one.description): str(one.step) for one in asked}


class Validator:
    """A runner of suites in one context; a view is kept if the next lake has the same rows."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._context = make_context()
        self._source = self._context.data_sources.add_or_update_spark("lake", persist=False)
        self._definitions: dict[str, ValidationDefinition] = {}
        self._views: dict[str, list[Row]] = {}

    def failures(self, table: str, lake: TinyLake, only: str | None = None) -> set[str]:
        """Return the names of the expectations that a table fails in a lake; `only` checks just one."""
        own = self._show(table, lake)
        batch = {"dataframe": self._spark.table(own)}
        results = (
            self._definition(table, only).run(batch_parameters=batch, result_format="BOOLEAN_ONLY").results
        )
        raised = [result.exception_info for result in results if _has_raised(result.exception_info)]
        assert not raised, raised
        return {
            str(result.expectation_config.description)
            for result in results
            if result.expectation_config and not result.success
        }

    def finds(self, table: str, name: str, lake: TinyLake) -> bool:
        """Return whether an expectation's step finds a row if all of the table's rows have changed."""
        own = self._show(table, lake)
        return not self._spark.sql(steps_of(table)[name].format(batch=own)).isEmpty()

    def _show(self, table: str, lake: TinyLake) -> str:
        """Create the lake's views, and return the name of the table's view."""
        for view, rows in lake.items():
            if self._views.get(view) != list(rows):
                frame(self._spark, view, rows).createOrReplaceTempView(view)
                self._views[view] = list(rows)
        return table.replace(".", "_", 1)

    def drop_views(self) -> None:
        for view in (*self._views, BATCH_VIEW):
            self._spark.catalog.dropTempView(view)

    def _definition(self, table: str, only: str | None) -> ValidationDefinition:
        name = table if only is None else f"{table}: {only}"
        if name not in self._definitions:
            batch = self._source.add_dataframe_asset(name).add_batch_definition_whole_dataframe("all")
            expectations = [one for one in suite_of(table).expectations if only in {None, one.description}]
            suite = self._context.suites.add(ExpectationSuite(name=name, expectations=expectations))
            self._definitions[name] = ValidationDefinition(name=name, data=batch, suite=suite)
        return self._definitions[name]


def _has_raised(info: dict[str, object]) -> bool:
    """Return whether an expectation, or one of its metrics, has raised an error."""
    parts = [info, *(part for part in info.values() if isinstance(part, dict))]
    return any(part.get("raised_exception") for part in parts)
