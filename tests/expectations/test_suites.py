"""Every suite holds for a good table, and each of its expectations fails for a bad one."""

from __future__ import annotations

import pytest

from lakehouse.operations.quality.changes import without_step
from lakehouse.operations.quality.checking import only_failing
from tests.expectations import (
    bronze_cases,
    calls_cases,
    letters_cases,
    metrics_cases,
    sales_cases,
    silver_cases,
    transactions_cases,
)
from tests.expectations.lakes import TABLES, Case
from tests.expectations.validator import Validator, names_of, steps_of, suite_of

CASES: dict[str, Case] = {
    **bronze_cases.CASES,
    **silver_cases.CASES,
    **letters_cases.CASES,
    **metrics_cases.CASES,
    **calls_cases.CASES,
    **sales_cases.CASES,
    **transactions_cases.CASES,
}
LIKE_ANOTHER = {
    *("bronze.transactions", "bronze.sales_events", "bronze.call_metrics", "bronze.call_analytics"),
    *("silver.metrics_events", "silver.sales_events", "silver.call_metrics"),
    "gold.metrics_summary_10m",
}
"""Tables whose suites resemble that of another stream; make soak checks these, too."""
STEPS = [
    pytest.param(
        table, name, id=f"{table}: {name}", marks=() if table == "gold.metrics_1m" else pytest.mark.soak
    )
    for table, case in CASES.items()
    for name in case.bad
    if table.startswith("gold.") and name in steps_of(table)
]
QUICK = [table for table in CASES if table not in LIKE_ANOTHER]
FIRST = {name: table for table in reversed(QUICK) for name in CASES[table].bad}
"""For each name of an expectation, the first table that has one; make soak checks the others, too."""
BAD = [
    pytest.param(
        table, name, id=f"{table}: {name}", marks=() if FIRST.get(name) == table else pytest.mark.soak
    )
    for table, case in CASES.items()
    for name in case.bad
]


def test_every_table_has_a_suite() -> None:
    assert [suite_of(table).name for table in TABLES] == list(TABLES)
    assert CASES.keys() == set(TABLES)


def test_every_expectation_has_a_name_of_its_own_and_a_bad_table() -> None:
    assert {table: sorted(names_of(table)) for table in CASES} == {
        table: sorted(case.bad) for table, case in CASES.items()
    }


@pytest.mark.parametrize(
    "table", [pytest.param(one, marks=() if one in QUICK else pytest.mark.soak) for one in CASES]
)
def test_a_good_table_meets_every_expectation(validator: Validator, table: str) -> None:
    assert validator.failures(table, CASES[table].good) == set()


@pytest.mark.parametrize(("table", "name"), BAD)
def test_a_bad_table_breaks_its_expectation(validator: Validator, table: str, name: str) -> None:
    case = CASES[table]
    lake = {**case.good, **case.bad[name]}
    assert validator.failures(table, lake, only=name) == {name}


@pytest.mark.parametrize(("table", "name"), STEPS)
def test_a_step_finds_what_the_whole_table_would_show(validator: Validator, table: str, name: str) -> None:
    case = CASES[table]
    assert validator.finds(table, name, {**case.good, **case.bad[name]})


@pytest.mark.parametrize("table", [table for table in TABLES if table.startswith("gold.")])
def test_a_gate_need_not_look_at_whole_tables_of_gold(table: str) -> None:
    assert without_step(only_failing(suite_of(table))).expectations == []
