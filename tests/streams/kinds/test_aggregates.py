"""Aggregates that are declared in SQL: rows, messages, dead letters and corrections."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from lakehouse.common.errors import SettingsError
from lakehouse.streams.declared import built
from lakehouse.streams.definition import Stream
from lakehouse.testing import Case, Record, SameGold, declared
from tests.support.pipeline import utc
from tests.support.processes import ROOT

NOON_S = 1_772_366_400  # 2026-03-01, 12:00 UTC
NOW = "2026-03-01T12:30:00Z"
ORDERS: dict[str, Any] = {
    "kind": "sql",
    "topic": "shop-orders",
    "event_time": "at",
    "event_time_unit": "s",
    "fields": [
        "country",
        {"name": "amount", "type": "decimal"},
        {"name": "qty", "type": "long"},
        {"name": "kwh", "type": "double", "required": False},
        {"name": "status"},
        {"name": "paid", "type": "boolean", "required": False},
    ],
    "tables": [
        {
            "by": "country",
            "length": "1h",
            "where": "status <> 'cancelled'",
            "select": {"net": {"sql": "amount * qty", "type": "decimal"}},
            "aggregates": {
                "orders": "count(*)",
                "revenue": "sum(net)",
                "mean": "avg(net)",
                "least": "min(net)",
                "most": "max(qty)",
                "all_paid": "bool_and(paid)",
                "any_paid": "bool_or(paid)",
                "paid_orders": "count_if(paid)",
                "with_kwh": "count(kwh)",
                "kwh_mean": "avg(kwh)",
                "kwh_deviation": "stddev(kwh)",
                "kwh_p50": "approx_percentile(kwh, 0.5)",
                "first_status": "first(status)",
                "last_status": "last(status)",
                "statuses": "count_distinct(status)",
                "some": "collect_set(status, 2)",
                "latest": "max(event_time)",
            },
        },
        {
            "by": ["country", "size"],
            "select": {"size": {"sql": "if(qty > 10, 'large', 'small')"}},
            "gold_table": "orders_by_size",
            "aggregates": {"orders": "count(*)", "amounts": "sum(amount)", "pieces": "sum(qty)"},
        },
    ],
}


def orders(**changes: Any) -> Stream:
    return built("orders", {**ORDERS, **changes})


def order(country: str, amount: float | str, qty: int, status: str, at_s: int = 0, **more: Any) -> str:
    values = {"country": country, "qty": qty, "status": status, "at": NOON_S + at_s, **more}
    return f'{{"amount":{amount},{json.dumps(values)[1:]}'


def test_rows_are_aggregated_as_their_tables_declare(case: Case) -> None:
    outcome = case(
        orders(),
        [
            order("DE", "10.10", 2, "new", 60, kwh=1.5, paid=True),
            order("DE", 1, 20, "sent", 30),
            order("DE", 99, 1, "cancelled", 5),
            order("FR", "0.5", 1, "new", -3600),
        ],
        now=NOW,
        dead=[],
        gold={
            "orders_1h": [
                {
                    "country": "DE",
                    "window_start": utc("2026-03-01T12:00:00"),
                    "window_end": utc("2026-03-01T13:00:00"),
                    "orders": 2,
                    "revenue": Decimal("40.2"),
                    "mean": Decimal("20.1"),
                    "least": Decimal(20),
                    "most": 20,
                    "all_paid": True,
                    "any_paid": True,
                    "paid_orders": 1,
                    "with_kwh": 1,
                    "kwh_mean": 1.5,
                    "kwh_deviation": None,
                    "kwh_p50": 1.5,
                    "first_status": "sent",
                    "last_status": "new",
                    "statuses": 2,
                    "some": ["new", "sent"],
                    "latest": utc("2026-03-01T12:01:00"),
                },
                {"country": "FR", "window_start": utc("2026-03-01T11:00:00"), "revenue": Decimal("0.5")},
            ],
            "orders_by_size": [
                {
                    "country": "DE",
                    "size": "large",
                    "orders": 1,
                    "amounts": Decimal(1),
                    "pieces": Decimal(20),
                    "last_event_time": utc("2026-03-01T12:00:30"),
                },
                {"country": "DE", "size": "small", "orders": 2, "amounts": Decimal("109.1")},
                {"country": "FR", "size": "small", "orders": 1},
            ],
        },
    )
    outcome.then(
        [
            order("DE", 3, 1, "new", 90, kwh=4.5, paid=False),
            order("DE", 1, 1, "billed", 10, kwh=3, paid=None),
            order("IT", 1, 1, "cancelled"),
        ],
        gold={
            "orders_1h": [
                {
                    "country": "DE",
                    "orders": 4,
                    "revenue": Decimal("44.2"),
                    "mean": Decimal("11.05"),
                    "least": Decimal(1),
                    "all_paid": False,
                    "any_paid": True,
                    "paid_orders": 1,
                    "with_kwh": 3,
                    "kwh_mean": 3.0,
                    "kwh_deviation": 1.5,
                    "kwh_p50": 3.0,
                    "first_status": "billed",
                    "last_status": "new",
                    "statuses": 3,
                    "some": ["billed", "new"],
                    "latest": utc("2026-03-01T12:01:30"),
                },
                {"country": "FR", "orders": 1, "all_paid": None, "kwh_mean": None, "kwh_p50": None},
            ],
            "orders_by_size": [
                {"country": "DE", "size": "large", "orders": 1},
                {"country": "DE", "size": "small", "orders": 4},
                {"country": "FR", "size": "small", "orders": 1},
                {"country": "IT", "size": "small", "orders": 1},
            ],
        },
        sent={
            "orders-1h": [
                {
                    "key": "DE",
                    "value": {
                        "country": "DE",
                        "windowStart": NOON_S * 1000,
                        "windowEnd": (NOON_S + 3600) * 1000,
                        "orders": 4,
                        "revenue": Decimal("44.2"),
                        "mean": Decimal("11.05"),
                        "least": 1,
                        "most": 20,
                        "allPaid": False,
                        "anyPaid": True,
                        "paidOrders": 1,
                        "withKwh": 3,
                        "kwhMean": Decimal("3.0"),
                        "kwhDeviation": Decimal("1.5"),
                        "kwhP50": Decimal("3.0"),
                        "firstStatus": "billed",
                        "lastStatus": "new",
                        "statuses": 3,
                        "some": ["billed", "new"],
                        "latest": (NOON_S + 90) * 1000,
                    },
                }
            ],
        },
    )


def test_an_expression_without_a_value_makes_a_dead_letter(case: Case) -> None:
    stream = orders(
        tables=[
            {
                "by": "grade",
                "select": {
                    "grade": {"sql": "nullif(status, 'none')"},
                    "share": {"sql": "try_divide(amount, qty)", "type": "long"},
                },
                "aggregates": {"shares": "sum(share)"},
            }
        ]
    )
    case(
        stream,
        [
            order("DE", 8, 2, "a"),
            order("DE", 8, 0, "a"),
            order("DE", "1e28", 1, "a"),
            order("DE", 8, 2, "none"),
        ],
        now=NOW,
        gold=[{"grade": "a", "shares": Decimal(4)}],
        dead=[
            {
                "record": 2,
                "rule": "not_computable",
                "column": "share",
                "message": (
                    "share (try_divide(amount, qty)) must be a 64-bit integer, not "
                    "10000000000000000000000000000"
                ),
            },
            {
                "record": 3,
                "rule": "not_computable",
                "column": "grade",
                "message": "grade (nullif(status, 'none')) must be a string, not null",
            },
        ],
    )


def test_a_double_that_is_not_a_number_makes_a_dead_letter(case: Case) -> None:
    tables = [
        {
            "by": "country",
            "select": {"root": {"sql": "sqrt(kwh)", "type": "double"}},
            "aggregates": {"mean": "avg(root)", "middle": "approx_percentile(root, 0.5)"},
        },
        {
            "by": "country",
            "length": "1h",
            "select": {"power": {"sql": "pow(10, kwh)", "type": "double"}},
            "aggregates": {"most": "max(power)"},
        },
    ]
    case(
        orders(tables=tables),
        [order("FR", 1, 1, "new", kwh=-4), order("DE", 1, 1, "new", kwh=4)],
        [order("DE", 1, 1, "new", kwh=999)],
        now=NOW,
        gold={
            "orders_by_country": [{"country": "DE", "mean": 2.0, "middle": 2.0}],
            "orders_1h": [{"country": "DE", "most": 1e4}],
        },
        dead=[
            {"record": 0, "message": "root (sqrt(kwh)) must be a number from -1e+140 to 1e+140, not NaN"},
            {
                "record": 2,
                "message": "power (pow(10, kwh)) must be a number from -1e+140 to 1e+140, not Infinity",
            },
        ],
    )


def test_empty_text_and_zeros_of_either_sign_are_single_values(case: Case) -> None:
    stream = orders(
        tables=[
            {
                "by": "country",
                "select": {"word": {"sql": "trim(status)"}, "zero": {"sql": "kwh * 0", "type": "double"}},
                "aggregates": {"words": "count_distinct(word)", "zeros": "count_distinct(zero)"},
            }
        ]
    )
    case(
        stream,
        [order("DE", 1, 1, " ", kwh=-1), order("DE", 1, 1, "  ", kwh=1), order("DE", 1, 1, "a")],
        now=NOW,
        gold=[{"country": "DE", "words": 2, "zeros": 1}],
    )


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"where": "status"}, "tables[0].where is not a condition on the columns of one row"),
        (
            {"select": {"age": {"sql": "event_time - timestamp'2026-01-01'", "type": "long"}}},
            "tables[0].select.age is not a condition on the columns of one row (country, amount, qty, kwh",
        ),
        (
            {"where": "statu = 'a'"},
            "with name `statu` cannot be resolved. Did you mean one of the following?",
        ),
    ],
)
def test_unusable_expressions_are_refused_at_the_start_without_a_stack_trace(
    case: Case, capfd: pytest.CaptureFixture[str], table: dict[str, Any], message: str
) -> None:
    declared = {"by": "country", "aggregates": {"n": "count(*)"}, **table}
    with pytest.raises(SettingsError) as caught:
        case(orders(tables=[declared]), [order("DE", 8, 2, "true")], now=NOW)
    assert message in str(caught.value)
    assert "Exception" not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    "table",
    [{"where": "amount / qty > 1"}, {"select": {"share": {"sql": "amount / qty", "type": "decimal"}}}],
)
def test_an_expression_that_fails_stops_silver_and_never_gold(case: Case, table: dict[str, Any]) -> None:
    stream = orders(tables=[{"by": "country", "aggregates": {"n": "count(*)"}, **table}])
    outcome = case(stream, [order("DE", 8, 2, "a")], now=NOW, gold=[{"country": "DE", "n": 1}])
    records = outcome.folding.numbered(stream.sources[0], [Record(order("DE", 8, 0, "a").encode())])

    with pytest.raises(PySparkException, match="DIVIDE_BY_ZERO"):
        outcome.folding.judge({"orders": records}, landed_at=outcome.clock)


@pytest.mark.soak
def test_a_total_that_does_not_fit_comes_back_into_range(case: Case) -> None:
    sums = {"revenue": "sum(amount)", "mean": "avg(amount)"}
    outcome = case(
        orders(tables=[{"by": "country", "aggregates": sums}]),
        [order("DE", "6e28", 1, "new"), order("DE", "6e28", 1, "new"), order("FR", 1, 1, "new")],
        [order("DE", 1, 1, "new")],
        now=NOW,
        gold=[{"country": "DE", "revenue": None, "mean": None}, {"country": "FR", "revenue": Decimal(1)}],
    )
    revenue, mean = "60000000000000000000000000001", "15000000000000000000000000000.25"
    outcome.then(
        [order("DE", "-6e28", 1, "new")],
        gold=[{"country": "DE", "revenue": Decimal(revenue), "mean": Decimal(mean)}, {"country": "FR"}],
    )


def test_corrections_and_deletions_take_values_back(case: Case) -> None:
    tables = [
        {
            "by": "country",
            "select": {"net": {"sql": "amount * qty", "type": "decimal"}},
            "aggregates": {
                "revenue": "sum(net)",
                "least": "min(net)",
                "mean": "avg(kwh)",
                "is": "first(status)",
            },
        }
    ]
    outcome = case(
        orders(unique_by="id", sequence_by="v", deleted_if="status=gone", tables=tables),
        [
            order("DE", 10, 1, "new", 1, id="a", v=1, kwh=9),
            order("DE", 20, 1, "sent", 2, id="b", v=1, kwh=1),
            order("FR", 5, 11, "new", 3, id="c", v=1),
        ],
        now=NOW,
        gold=[{"country": "DE", "least": Decimal(10)}, {"country": "FR", "revenue": Decimal(55)}],
    )
    outcome.then(
        [order("DE", 15, 2, "new", 1, id="a", v=2, kwh=2), order("FR", 5, 11, "gone", 3, id="c", v=2)],
        gold=[{"country": "DE", "revenue": Decimal(50), "least": Decimal(20), "mean": 1.5, "is": "new"}],
    )


@pytest.mark.soak
def test_neither_order_nor_cuts_show(assert_same_gold: SameGold) -> None:
    statuses = ("new", "sent", "cancelled", "billed", "back")
    records = [
        order(
            ("DE", "FR")[number % 2],
            ("6e28", "-6e28", "0.000000001", "7.25")[number * 7 % 4],
            number % 23 - 3,
            statuses[number * 3 % 5],
            number * 211 % 5000,
            kwh=None if number % 5 == 0 else (number * 37 % 101) / 8,
            paid=(None, True, False)[number % 3],
        )
        for number in range(120)
    ]
    assert_same_gold(orders(), records, now=NOW, ways=3)


@pytest.mark.soak
def test_crashes_do_not_affect_the_rows_of_a_lake(assert_same_gold: SameGold, tmp_path: Path) -> None:
    records = [
        order(
            ("DE", "FR")[number % 2],
            ("0.000000001", "7.25")[number % 2],
            number % 23,
            ("new", "cancelled", "sent")[number % 3],
            number * 211 % 5000 - 5000,
            kwh=None if number % 5 == 0 else number / 8,
        )
        for number in range(60)
    ]
    assert_same_gold(orders(), records, now=NOW, lake=tmp_path)


@pytest.mark.soak
def test_the_estimate_of_distinct_values_does_not_depend_on_order(assert_same_gold: SameGold) -> None:
    stream = orders(tables=[{"by": "country", "aggregates": {"statuses": "count_distinct(status)"}}])
    records = [order("DE", 1, 1, f"s{number}") for number in range(6000)]
    assert_same_gold(stream, records, now=NOW, ways=3, seed=11)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"aggregates": {}}, "tables[0].aggregates: expected at least one aggregate"),
        ({"aggregates": {"n": "count"}}, "tables[0].aggregates.n: 'count' is not FUNCTION(COLUMN)"),
        ({"aggregates": {"n": "sum(amount * qty)"}}, "declare it as a column in `select`"),
        ({"aggregates": {"n": "sun(amount)"}}, "sun(amount): no aggregate 'sun': did you mean sum?"),
        ({"aggregates": {"n": "sum(amont)"}}, "no column 'amont': did you mean amount?"),
        ({"aggregates": {"n": "sum(kwh)"}}, "kwh is a double; only the sum of decimals and whole numbers"),
        ({"aggregates": {"n": "avg(status)"}}, "status is a string; expected a number"),
        ({"aggregates": {"n": "median(kwh)"}}, "use approx_percentile(COLUMN, 0.5)"),
        ({"aggregates": {"n": "collect_list(status)"}}, "use collect_set(COLUMN, 10)"),
        ({"aggregates": {"n": "collect_set(status)"}}, "expected collect_set(status, 10)"),
        ({"aggregates": {"n": "collect_set(status, 101)"}}, "the limit must be from 1 to 100"),
        ({"aggregates": {"n": "approx_percentile(kwh, 95)"}}, "the rank must be between 0 and 1"),
        ({"aggregates": {"country": "count(*)"}}, "tables[0].aggregates.country: the name country is taken"),
        ({"select": {"qty": {"sql": "1"}}}, "tables[0].select.qty: the name qty is taken"),
        ({"select": {"day": {"sql": "current_date()"}}}, "current_date is not allowed in an expression"),
        ({"where": "rand() < 0.5"}, "tables[0].where: rand is not allowed in an expression"),
        ({"where": "event_time < timestamp'today UTC'"}, "tables[0].where: 'today UTC' is not allowed"),
        (
            {"select": {"Qty2": {"sql": "1"}, "qty2": {"sql": "2"}}},
            "the name qty2 is taken; choose another",
        ),
        ({"aggregates": {"the_n": "count(*)", "theN": "count(qty)"}}, "messages already have a value theN"),
        (
            {"length": "1h", "aggregates": {"windowStart": "min(event_time)"}},
            "tables[0].aggregates.windowStart: messages already have a value windowStart",
        ),
        ({"by": "recomputed"}, "field recomputed: this kind already has a column recomputed"),
        (
            {"by": {"name": "window_start", "type": "long"}, "length": "1h"},
            "tables[0].length: assign the field with the column window_start to another column",
        ),
        ({"by": "kwh"}, "field kwh is part of the key but optional"),
        ({"by": "amount"}, "tables[0].by: amount is a decimal(38,9); expected a string or a whole number"),
    ],
)
def test_an_invalid_table_is_refused_with_the_name_of_the_key(table: dict[str, Any], message: str) -> None:
    declared = {"by": "country", "aggregates": {"n": "count(*)"}, **table}
    with pytest.raises(SettingsError) as caught:
        orders(tables=[declared])
    assert str(caught.value).startswith("streams.orders: tables[0]")
    assert message in str(caught.value)


def test_a_field_is_declared_alike_in_every_table() -> None:
    shops = [{"name": "shop", "type": "long"}, "shop"]
    with pytest.raises(SettingsError, match=r"tables\[1\]\.by: an earlier table declares field shop differ"):
        orders(tables=[{"by": shop, "aggregates": {"n": "count(*)"}} for shop in shops])


def test_a_key_can_be_named_by_its_column_and_a_string_by_its_expression() -> None:
    named = {"name": "shop.country", "column": "country"}
    table = {"by": ["country", "size"], "select": {"size": "if(true, 'large', 'small')"}}

    made = orders(fields=[named], tables=[{**table, "length": "1h", "aggregates": {"orders": "count(*)"}}])

    assert [(one.name, one.column) for one in made.sources[0].contract.fields] == [
        ("shop.country", "country")
    ]
    assert made.gold[0].keys == ("country", "size", "window_start")
    assert [one.dataType.simpleString() for one in made.gold[0].schema][:2] == ["string", "string"]


def test_the_example_of_arrays_text_and_a_table_without_a_key_in_the_docs(case: Case) -> None:
    page = (ROOT / "docs" / "streams-sql.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```toml\n(\[streams\.parcels\].*?)```", page, re.DOTALL)
    depot = [{"key": "size", "value": "L"}, {"key": "depot", "value": "B"}]

    case(
        declared(example)["parcels"],
        [
            {"tags": depot, "items": [{"qty": 2}, {"qty": 3}], "weight": "1.5"},
            {"tags": depot, "items": [], "weight": "n/a"},
            {"tags": [], "items": [], "weight": "4.5"},
        ],
        gold={
            "parcels_by_depot": [{"depot": "B", "parcels": 2, "pieces": Decimal(5)}],
            "parcels_by_every": [{"every": "parcel", "parcels": 2, "mean_weight": 1.5}],
        },
        dead=[{"record": 2, "rule": "not_computable", "column": "depot"}],
    )
