"""What a suite is made of: expectations with a name, a severity, and the key of the rows that break them.

There are three kinds, by cost. A condition on a row is a Spark expression; one pass over the table counts all
of a suite's. A query is a pass of its own, for what a single row cannot say: duplicate keys, rows without a
counterpart in another table, the age of the newest row. Only what fails is looked at again, for examples. A
severity is `fail`, which closes a gate and makes the command exit with 1, or `warn`, which is only shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from great_expectations import ExpectationSuite
from great_expectations.expectations import Expectation

from lakehouse.quality.internals import ExpectFresh, ExpectNoRows, ExpectRowsToMeet
from lakehouse.quality.report import Severity

LEVELS: Mapping[Severity, Any] = {"fail": "critical", "warn": "warning"}
"""The names of severities for Great Expectations, which makes members of an enumeration of them."""


def make_suite(table: str, *expectations: Expectation) -> ExpectationSuite:
    """Return the suite of a table, `layer.name`."""
    return ExpectationSuite(name=table, expectations=list(expectations))


def rows(key: Sequence[str], name: str, condition: str, *, severity: Severity = "fail") -> ExpectRowsToMeet:
    """Expect a condition, in Spark SQL, of every row; null counts as met."""
    return ExpectRowsToMeet(key=list(key), condition=condition, description=name, severity=LEVELS[severity])


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
        severity=LEVELS[severity],
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
        severity=LEVELS["warn"],
    )
