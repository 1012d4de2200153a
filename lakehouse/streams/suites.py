"""The expectations that a suite can contain. Each has a name and a severity, and reports failing rows' keys.

There are two kinds of expectations. A condition on a row is a Spark expression; one pass over the table
evaluates all conditions in a suite. A query checks several rows together, in a separate pass: for duplicate
keys, for rows without a counterpart in another table, or for the age of the newest row. The table is read
again only for failing expectations, to collect examples. If an expectation of severity `fail` is not met, a
gate closes and the command exits with status 1. An unmet expectation of severity `warn` is only shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from great_expectations import ExpectationSuite
from great_expectations.expectations import Expectation

from lakehouse.common.quantities import parse_duration_s
from lakehouse.streams.definition import Severity
from lakehouse.streams.suite_internals import ExpectFresh, ExpectNoRows, ExpectRowsToMeet

__all__ = ["fresh", "make_suite", "no_rows", "required", "rows", "unique"]

LEVELS: Mapping[Severity, Any] = {"fail": "critical", "warn": "warning"}
"""Great Expectations' names for the severities; it converts them to enumeration members."""


def make_suite(table: str, *expectations: Expectation) -> ExpectationSuite:
    """Return the suite for a table, given as `layer.name`."""
    return ExpectationSuite(name=table, expectations=list(expectations))


def rows(key: Sequence[str], name: str, condition: str, *, severity: Severity = "fail") -> ExpectRowsToMeet:
    """Expect every row to meet a Spark SQL condition. A null result counts as met."""
    return ExpectRowsToMeet(key=list(key), condition=condition, description=name, severity=LEVELS[severity])


def required(key: Sequence[str], columns: Iterable[str]) -> ExpectRowsToMeet:
    """Expect no nulls in these columns."""
    return rows(key, "required columns have values", " AND ".join(f"`{one}` IS NOT NULL" for one in columns))


def unique(key: Sequence[str]) -> ExpectNoRows:
    """Expect keys to be unique."""
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
    """Expect a query in Spark SQL to return no rows.

    In the query, `{batch}` is the table, `layer_name` another table at a consistent version,
    `gold_name_changes` a gold table's change feed up to its version, and `limits` one row with settings and
    the time of the check: see `lakehouse.operations.quality.subjects`.

    Without a `step`, a gate checks the whole table again after every change. A step is a query that returns a
    row whenever the expectation was met before but no longer is. In the step, `{batch}` contains the rows
    whose keys have changed since the last check, and `gold_name_changes` contains the changes since then.
    Since then, other tables can have received new rows, and gold rows new values, but no row was removed. If
    the step returns a row, the whole table is checked, because the row could still be correct. `near` limits
    the rows that the step reads from another table. It maps the table's view to (column, first, last). The
    column must be between `first` and `last`, which are Spark SQL expressions over a row of the batch. The
    column and both expressions are timestamps or longs.
    """
    return ExpectNoRows(
        unexpected_rows_query=query,
        description=name,
        severity=LEVELS[severity],
        step=step,
        near=None if near is None else {view: list(between) for view, between in near.items()},
    )


def fresh(column: str, *, within: str) -> ExpectFresh:
    """Expect the newest time (UTC) in a column to be no older than `within`, a duration such as 90m or 7d.

    An empty table is not fresh. The severity is `warn`. Raises ValueError if `within` is not a duration.
    """
    since = f"SELECT timestampadd(SECOND, -{parse_duration_s(within)}, now) FROM limits"  # noqa: S608 - a number
    query = (
        f"SELECT max(`{column}`) AS newest FROM {{batch}} "  # noqa: S608 - the name of a column
        f"HAVING coalesce(max(`{column}`) < ({since}), true)"
    )
    return ExpectFresh(
        unexpected_rows_query=query,
        newest=column,
        description="the newest row is recent",
        severity=LEVELS["warn"],
    )
