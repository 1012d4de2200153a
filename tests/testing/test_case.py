"""`lakehouse.testing.Case`: what it compares, and what it reports if a stream does something else."""

from __future__ import annotations

from decimal import Decimal

import pytest

from lakehouse.testing import Case, Record
from tests.support.spending import NOW, START, START_MS, spent
from tests.support.streams import CALLS, SALES, TRANSACTIONS


def called(at_s: int, **payload: object) -> dict[str, object]:
    return {"user1": "ann", "user2": "bob", "timestamp": START_MS + at_s * 1000, **payload}


def test_rows_of_every_layer_are_compared_by_what_is_named(case: Case) -> None:
    outcome = case(
        TRANSACTIONS,
        [spent("ann", Decimal("0.10")), spent("bob", 0), spent("", "12"), '{"userId":'],
        [spent("ann", 0.2, minute=1)],
        now=NOW,
        silver=[
            {"user_id": "ann", "amount": Decimal("0.1"), "event_time": START, "offset": 0},
            {"user_id": "ann", "amount": "0.2", "event_time": "2026-03-29T01:06:00Z", "offset": 4},
        ],
        dead=[
            {"record": 1, "rule": "not_positive", "message": "amount must be above 0, not 0"},
            {"record": 2, "rule": "empty_string", "column": "user_id"},
            {"record": 2, "rule": "wrong_type", "column": "amount"},
            {"record": 3, "rule": "not_json", "column": None, "value": '{"userId":', "offset": 3},
        ],
        gold=[{"user_id": "ann", "window_start": "2026-03-29T01:05:00Z", "total_amount": "0.3", "count": 2}],
        sent=[
            {"key": "ann", "value": {"totalAmount": 0.1, "count": 1}},
            {
                "key": "ann",
                "value": {"userId": "ann", "totalAmount": Decimal("0.3"), "windowStart": START_MS},
            },
        ],
    )

    assert (
        outcome.rows("gold.user_transactions_5m")[0]["window_end"].isoformat() == "2026-03-29T01:10:00+00:00"
    )


def test_the_clock_is_the_tests_and_moves_on_without_records(case: Case) -> None:
    topics = {
        "analyticsTopic": [called(0, analytics="busy")],
        "metricsTopic": [called(20, metrics={"ms": 3})],
    }

    case(CALLS, topics, now=NOW, gold=[{"ts": START, "status": "open", "closed_at": None}], sent=[])
    case(
        CALLS,
        topics,
        now=NOW,
        later="2026-03-29T01:09:21Z",
        silver={"call_analytics": [{"analytics": "busy", "topic": "analyticsTopic"}]},
        gold=[{"ts": START, "status": "closed", "metrics": '{"ms":3}'}],
        sent=[{"key": f"ann-bob:{START_MS}", "value": {"analytics": "busy", "metrics": {"ms": 3}}}],
    )


def test_keys_tombstones_partitions_and_times_are_a_records(case: Case) -> None:
    case(
        SALES,
        [
            Record(b'{"product":"pen","value":2500}', key=b"pen", partition=1, timestamp_ms=START_MS),
            Record(None, key=b"pen", partition=1),
            Record(b'{"product":"pen","value":1}', key=b"pen", partition=1),
            Record(None),
        ],
        now=NOW,
        dead=[{"record": 3, "rule": "key_null", "partition": 0, "offset": 0}],
        gold={
            "product_sales": [{"product": "pen", "total": 1, "count": 1, "partitions": {1: {"total": 1}}}],
            "sales_notifications": [{"value": 2500, "event_time": START, "partition": 1, "offset": 0}],
        },
        sent=[{"key": "pen", "value": {"product": "pen", "value": 2500}}],
    )


def test_a_difference_names_the_rows_that_are_missing_and_those_that_are_not_expected(case: Case) -> None:
    with pytest.raises(AssertionError) as error:
        case(
            TRANSACTIONS,
            [spent("ann", 1), spent("bob", 2)],
            now=NOW,
            dead=[],
            gold=[{"user_id": "ann", "count": 1}, {"user_id": "bob", "count": 3}],
            sent=[{"key": "bob"}, {"key": "ann"}],
        )

    assert str(error.value).split("\n") == [
        "transactions is not as expected",
        "gold.user_transactions_5m: 2 rows expected, 2 found",
        "  - expected  user_id=bob, count=3",
        "  + found     user_id=bob, count=1",
        "sent to aggregated-transactions: 2 rows expected, 2 found, compared in order",
        "  - expected  key=bob",
        "  - expected  key=ann",
        "  + found     key=ann",
        "  + found     key=bob",
    ]


def test_names_that_do_not_exist_are_refused_with_those_that_do(case: Case) -> None:
    with pytest.raises(ValueError, match=r"gold\.user_transactions_5m has no column total; it has user_id, "):
        case(TRANSACTIONS, [spent("ann", 1)], gold=[{"total": 1}])
    with pytest.raises(ValueError, match="gold: unknown sums; known: user_transactions_5m"):
        case(TRANSACTIONS, [spent("ann", 1)], gold={"sums": []})
    with pytest.raises(
        ValueError, match="gold: expected rows keyed by name; known: product_sales, sales_notifications"
    ):
        case(SALES, [], gold=[])
    with pytest.raises(ValueError, match="calls: no topic is named; known: analyticsTopic, metricsTopic"):
        case(CALLS, [called(0)])
    with pytest.raises(ValueError, match="calls: sales is not one of its topics; known: analyticsTopic, "):
        case(CALLS, {"sales": [called(0)]})
