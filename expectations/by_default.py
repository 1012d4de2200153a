"""The default suite for a table that has no suite, derived from its stream's declaration."""

from __future__ import annotations

from great_expectations import ExpectationSuite
from great_expectations.expectations import Expectation

from expectations.bronze.common import landed
from expectations.gold.windows import aligned
from expectations.silver.common import accepted
from lakehouse.operations.quality.subjects import Subject
from lakehouse.streams.definition import MergedTable, Source
from lakehouse.streams.suites import fresh, make_suite, required, unique


def suite(subject: Subject) -> ExpectationSuite:
    """Return the default suite for a table that a stream declares."""
    declared = subject.declared
    if isinstance(declared, Source):
        return make_suite(subject.name, *(landed() if subject.spec.layer == "bronze" else accepted(declared)))
    if declared is None:
        raise TypeError(f"no stream declares {subject.name}")
    recent = [] if subject.time is None else [fresh(subject.time, within="24h")]
    return make_suite(subject.name, *_merged(declared), *recent)


def _merged(table: MergedTable) -> list[Expectation]:
    """Expect unique keys without nulls and, for tumbling windows, aligned windows."""
    found: list[Expectation] = [unique(table.keys), required(table.keys, table.keys)]
    if table.window is not None and {"window_start", "window_end"} <= set(table.schema.names):
        found += aligned(table.keys, table.window)
    return found
