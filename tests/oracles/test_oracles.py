"""Tests of the oracles, with rows that were worked out by hand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from tests.oracles.calls import CallEvent, call_records
from tests.oracles.json_text import payload_meaning, payload_text
from tests.oracles.judging import CONTRACTS, Judged, judge_record
from tests.oracles.metrics import Metric, metrics_summary_10m
from tests.oracles.sales import Sale, product_sales, sales_notifications
from tests.oracles.transactions import Transaction, user_transactions_5m

SECOND = 1_000_000
T0 = 1_767_268_800 * SECOND  # 2026-01-01T12:00:00Z
NINES = "9" * 29 + "." + "9" * 9


def judged(table: str, value: bytes | None, key: bytes | None = None) -> Judged:
    return judge_record(CONTRACTS[table], value, T0 // 1000, T0, None, key=key)


def sold(*values: int | str | None, product: str = "pen", partition: int = 0) -> list[Sale]:
    """Return sales of one product in one partition, in order, one second apart; None is a tombstone."""
    return [
        Sale(
            product,
            None if value is None else Decimal(value),
            event_time_us=T0 + number * SECOND,
            partition=partition,
            offset=number,
        )
        for number, value in enumerate(values)
    ]


def by(rows: Iterable[dict[str, Any]], *columns: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row[column] for column in columns) for row in rows)


# Judging.


@pytest.mark.parametrize(
    ("number", "value"),
    [
        ("0", "0"),
        ("-0.0", "0"),
        ("12.50", "12.5"),
        ("0.000000001", "0.000000001"),
        ("1.0000000000000", "1"),
        (NINES, NINES),
        ("-" + NINES, "-" + NINES),
        ("1e3", "1000"),
        ("1E-9", "0.000000001"),
        ("1.1e0", "1.1"),
        ("1e28", "1" + "0" * 28),
        ("12345678901234567890123456789.1234567890", "12345678901234567890123456789.123456789"),
    ],
)
def test_a_decimal_is_the_number_that_was_written(number: str, value: str) -> None:
    verdict = judged("sales_events", f'{{"product":"pen","value":{number}}}'.encode())

    assert verdict.reasons == frozenset()
    assert verdict.columns == {"product": "pen", "value": Decimal(value)}
    assert not verdict.columns["value"].is_signed() or value.startswith("-")


@pytest.mark.parametrize(
    ("number", "rule"),
    [
        ("0.0000000001", "beyond_decimal"),
        ("1" + "0" * 29, "beyond_decimal"),
        ("1e29", "beyond_decimal"),
        ("1e-10", "beyond_decimal"),
        ("1e999", "beyond_decimal"),
        ("9" * 400, "beyond_decimal"),
        ('"12"', "wrong_type"),
        ("true", "wrong_type"),
        ("null", "null_field"),
    ],
)
def test_a_decimal_that_cannot_be_kept_is_refused(number: str, rule: str) -> None:
    verdict = judged("sales_events", f'{{"product":"pen","value":{number}}}'.encode())

    assert verdict.reasons == {(rule, "value")}


@pytest.mark.parametrize(
    ("amount", "reasons"),
    [
        ("0.000000001", set()),
        ("0", {("not_positive", "amount")}),
        ("-0.0", {("not_positive", "amount")}),
        ("-5", {("not_positive", "amount")}),
        ("-1e40", {("beyond_decimal", "amount")}),
        ('"5"', {("wrong_type", "amount")}),
        ("NaN", {("not_json", None)}),
    ],
)
def test_only_a_positive_amount_is_a_transaction(amount: str, reasons: set[tuple[str, str | None]]) -> None:
    verdict = judged("transactions", f'{{"userId":"u","amount":{amount}}}'.encode())

    assert verdict.reasons == reasons


@pytest.mark.parametrize(
    ("key", "reasons"),
    [
        ("größe".encode(), set()),
        (None, {("key_null", "product")}),
        (b"", {("key_empty", "product")}),
        (b"\xff", {("key_not_utf8", "product")}),
    ],
)
def test_a_sale_without_a_value_is_a_tombstone_of_its_key(
    key: bytes | None, reasons: set[tuple[str, str | None]]
) -> None:
    verdict = judged("sales_events", None, key)

    assert verdict.reasons == reasons
    if not reasons:
        assert verdict.columns == {"product": "größe", "value": None}
        assert verdict.event_time_us == T0


def test_a_record_of_another_stream_without_a_value_is_refused() -> None:
    assert judged("transactions", None, b"u").reasons == {("value_null", None)}


def test_a_late_tombstone_without_a_key_has_both_reasons() -> None:
    verdict = judge_record(CONTRACTS["sales_events"], None, T0 // 1000, T0, T0 + 1)

    assert verdict.reasons == {("key_null", "product"), ("late", "event_time")}


@pytest.mark.parametrize(
    ("payload", "kept"),
    [
        ("null", None),
        ('"busy"', "busy"),
        ('""', ""),
        ('"12"', '"12"'),
        ('"true"', '"true"'),
        ('"null"', '"null"'),
        ('"{}"', '"{}"'),
        ('"NaN"', "NaN"),
        ("12.5", "12.5"),
        ("false", "false"),
        ('{ "a" : [1, "ü", null] }', '{"a":[1,"ü",null]}'),
    ],
)
def test_a_payload_is_kept_as_text_that_can_be_turned_back(payload: str, kept: str | None) -> None:
    record = f'{{"user1":"a","user2":"b","analytics":{payload}}}'.encode()

    assert judged("call_analytics", record).columns["analytics"] == kept


def test_payloads_are_compared_by_what_they_say() -> None:
    assert payload_meaning('{"a":1,"b":[1.50]}') == payload_meaning('{ "b":[15e-1], "a":1.0 }')
    assert payload_meaning("1") != payload_meaning("true")
    assert payload_meaning(payload_text("1")) != payload_meaning("1")
    assert payload_meaning("plain") == payload_meaning("plain") != payload_meaning('"plain"')
    assert payload_meaning(None) is payload_meaning("null") is None


# Sales.

SEED = (("product2", 1000), ("product1", 1500), ("product1", 1000), ("product2", 1300), ("product5", 1000))


def test_the_seed_example_notifies_of_two_products() -> None:
    sales = [
        Sale(product, Decimal(value), event_time_us=T0 + offset, offset=offset)
        for offset, (product, value) in enumerate(SEED)
    ]

    assert by(sales_notifications(sales), "product", "value", "crossing") == [
        ("product1", 2500, 1),
        ("product2", 2300, 1),
    ]
    assert by(product_sales(sales), "product", "total", "count", "last_event_time") == [
        ("product1", 2500, 2, T0 + 2),
        ("product2", 2300, 2, T0 + 3),
        ("product5", 1000, 1, T0 + 4),
    ]


def test_totals_follow_the_offsets_whatever_the_order_of_arrival() -> None:
    sales = sold(1500, 500, -1000, 999, 1, 700)

    assert by(sales_notifications(reversed(sales)), "offset", "value", "crossing") == [
        (1, 2000, 1),
        (4, 2000, 2),
    ]
    assert by(sales_notifications(sales, every_update=True), "offset", "value", "crossing") == [
        (1, 2000, 1),
        (4, 2000, 2),
        (5, 2700, 2),
    ]
    assert by(sales_notifications(sales, threshold=Decimal(2600)), "offset", "value") == [(5, 2700)]


def test_a_tombstone_starts_from_zero_and_the_crossings_go_on_counting() -> None:
    sales = sold(2500, None, 1999, 1, None)

    assert by(sales_notifications(sales), "offset", "value", "crossing") == [(0, 2500, 1), (3, 2000, 2)]
    assert by(product_sales(sales), "product", "total", "count", "last_event_time") == [("pen", 0, 0, None)]


def test_a_tombstone_ends_what_is_older_in_every_partition() -> None:
    """By time, these are 300 and 70, then the tombstone and 1, then 5."""
    sales = [*sold(300, None, 5), *sold(70, 1, partition=1)]

    assert by(product_sales(sales), "total", "count", "last_event_time") == [(6, 2, T0 + 2 * SECOND)]


def test_a_total_crosses_by_the_sales_of_all_partitions() -> None:
    """By time, these are 1000 and 900, then 99 and 1."""
    sales = [*sold(1000, 99), *sold(900, 1, partition=1)]

    assert by(sales_notifications(sales), "partition", "offset", "value") == [(1, 1, 2000)]


def test_a_partition_keeps_the_order_of_its_offsets_whatever_the_times() -> None:
    early = replace(sold(None)[0], event_time_us=T0 - SECOND, offset=2)
    sales = [*sold(1500, 400), early, *sold(70, partition=1)]

    assert by(product_sales(sales), "total", "count") == [(0, 0)]


def test_totals_are_exact_at_both_ends() -> None:
    sales = sold("9e27", "0.000000001", "-0.000000002")

    assert by(product_sales(sales), "total") == [(Decimal("8" + "9" * 27 + ".999999999"),)]


# Transactions and summaries.


def test_a_transaction_on_the_edge_belongs_to_the_window_that_begins_there() -> None:
    """T0 is a multiple of five minutes: its window is [T0, T0 + 300 s)."""
    times = {1: -1, 2: 0, 4: 300 * SECOND - 1, 8: 300 * SECOND}
    transactions = [Transaction("u", Decimal(a), event_time_us=T0 + at) for a, at in times.items()]

    rows = user_transactions_5m(transactions)

    assert by(rows, "window_start", "window_end", "total_amount", "count") == [
        (T0 - 300 * SECOND, T0, 1, 1),
        (T0, T0 + 300 * SECOND, 6, 2),
        (T0 + 300 * SECOND, T0 + 600 * SECOND, 8, 1),
    ]


def test_a_summary_is_of_all_services_of_an_environment_whose_absence_is_named() -> None:
    records = [
        Metric("api", "cpu", 1.0, "prod", event_time_us=T0),
        Metric("web", "cpu", 3.0, "prod", event_time_us=T0 + 600 * SECOND - 1),
        Metric("web", "cpu", 5.0, "prod", event_time_us=T0 + 600 * SECOND),
        Metric("web", "cpu", 7.0, None, event_time_us=T0),
        Metric("web", "cpu", 9.0, "default", event_time_us=T0),
        Metric("web", "cpu", 11.0, "", event_time_us=T0),
    ]

    summary = metrics_summary_10m(records)

    assert {key: row["values"] for key, row in summary.items()} == {
        ("prod", "cpu", T0): [1.0, 3.0],
        ("prod", "cpu", T0 + 600 * SECOND): [5.0],
        ("default", "cpu", T0): [7.0, 9.0],
        ("", "cpu", T0): [11.0],
    }


# Calls.


def said(at_us: int, payload: str | None = None, side: str = "analytics", offset: int = 0) -> CallEvent:
    return CallEvent("ann", "bob", **{side: payload}, side=side, event_time_us=T0 + at_us, offset=offset)  # type: ignore[arg-type]


def test_events_exactly_the_gap_apart_are_one_call_and_a_microsecond_more_makes_two() -> None:
    together = call_records([said(0), said(60 * SECOND, side="metrics")], T0)
    apart = call_records([said(0), said(60 * SECOND + 1, side="metrics")], T0)

    assert by(together, "ts", "analytics_events", "metrics_events") == [(T0, 1, 1)]
    assert by(apart, "ts", "analytics_events", "metrics_events") == [(T0, 1, 0), (T0 + 60 * SECOND + 1, 0, 1)]


def test_a_call_is_a_chain_however_long_and_in_whatever_order() -> None:
    chain = [said(number * 60 * SECOND) for number in (3, 0, 2, 1)]

    (row,) = call_records(chain, T0)

    assert (row["ts"], row["last_event_time"], row["analytics_events"]) == (T0, T0 + 180 * SECOND, 4)


def test_the_payloads_are_the_earliest_that_are_there_by_time_then_place() -> None:
    events = [
        said(5, "later"),
        said(2, "b", offset=2),
        said(2, "a", offset=1),
        said(0),
        said(1, "m", "metrics"),
    ]

    assert by(call_records(events, T0), "analytics", "metrics") == [("a", "m")]


def test_a_call_closes_at_the_moment_it_is_due() -> None:
    due_us = T0 + (60 + 180 + 1) * SECOND

    assert by(call_records([said(0)], due_us - 1), "status", "closed_at") == [("open", None)]
    assert by(call_records([said(0)], due_us), "status", "closed_at") == [("closed", due_us)]
    assert by(call_records([said(0)], due_us + 1), "status", "closed_at") == [("closed", due_us)]
    assert by(call_records([said(0)], T0 + 8 * SECOND, gap_s=5, grace_s=2), "status") == [("closed",)]


def test_the_pair_is_kept_in_its_order() -> None:
    events = [CallEvent("a", "b", event_time_us=T0), CallEvent("b", "a", event_time_us=T0)]

    assert by(call_records(events, T0), "user1", "user2") == [("a", "b"), ("b", "a")]
