"""transactions over a real Kafka: what users spent in five minutes, and what is no transaction."""

from __future__ import annotations

import json
import time

import pytest
from pyspark.sql import SparkSession

from lakehouse.errors import LakehouseError
from lakehouse.layer import LAYERS
from lakehouse.settings import Settings
from lakehouse.streams import STREAMS
from lakehouse.streams.transactions import TRANSACTIONS
from tests import pipeline
from tests.conftest import MakeSettings
from tests.pipeline import DEAD_LETTERS, Raw

SOURCE = TRANSACTIONS.sources[0]
WINDOW_MS = 300_000
START_MS = (int(time.time() * 1000) - 3_600_000) // WINDOW_MS * WINDOW_MS
"""The start of a window about an hour ago."""


def spent(user: str, amount: float | str, after_ms: int = 0) -> Raw:
    """A transaction; an amount that is text stands in the record as it is written."""
    record = f'{{"userId":{json.dumps(user)},"amount":{amount},"timestamp":{START_MS + after_ms}}}'
    return Raw(record.encode(), key=user.encode())


def message(user: str, total: str, count: int, window: int = 0) -> tuple[str, bytes]:
    """What leaves for a user's window, counted from START_MS."""
    start_ms = START_MS + window * WINDOW_MS
    value = (
        f'{{"userId":"{user}","windowStart":{start_ms},"windowEnd":{start_ms + WINDOW_MS},'
        f'"totalAmount":{total},"count":{count}}}'
    )
    return user, value.encode()


def take(spark: SparkSession, settings: Settings, *records: Raw) -> list[tuple[str, bytes]]:
    """Send the records, run every layer, and return every message that has left so far."""
    pipeline.send(settings, records, SOURCE)
    pipeline.run_layers(spark, settings, *LAYERS, stream=TRANSACTIONS)
    topic = settings.topic("aggregated-transactions")
    found = pipeline.read_topic(settings.kafka_bootstrap_servers, topic)
    return [(one.key.decode(), one.value) for one in found]


def test_transactions_are_registered_with_their_topics() -> None:
    assert TRANSACTIONS in STREAMS
    assert {"transactions-topic", "aggregated-transactions"} <= set(TRANSACTIONS.topics)


def test_amounts_that_are_not_positive_or_no_numbers_are_dead_letters_with_their_reasons(
    spark: SparkSession, make_settings: MakeSettings
) -> None:
    settings = make_settings()
    refused = {
        spent("zero", 0): [("not_positive", "amount")],
        spent("minus zero", "-0.0"): [("not_positive", "amount")],
        spent("negative", -12.5): [("not_positive", "amount")],
        Raw(b'{"userId":"missing"}'): [("missing_field", "amount")],
        spent("null", "null"): [("null_field", "amount")],
        spent("string", '"12.5"'): [("wrong_type", "amount")],
        spent("NaN", "NaN"): [("not_json", None)],
        spent("much", "1e29"): [("beyond_decimal", "amount")],
        spent("", 0): [("empty_string", "user_id"), ("not_positive", "amount")],
        Raw(None, key=b"nothing"): [("value_null", None)],
    }

    messages = take(spark, settings, *refused, spent("ann", 12.5))

    found = {
        row["value"]: [(reason["rule"], reason["column"]) for reason in row["reasons"]]
        for row in pipeline.rows_of(spark, settings, DEAD_LETTERS)
    }
    assert {value: sorted(rules) for value, rules in found.items()} == {
        raw.value: rules for raw, rules in refused.items()
    }
    assert messages == [message("ann", "12.5", 1)]


def test_amounts_add_up_to_the_last_digit_and_an_earlier_window_can_still_change(
    spark: SparkSession, make_settings: MakeSettings
) -> None:
    r"""Two windows of ann's, [0, 5 min) and [5 min, 10 min), and a record for the first that comes later.

    0                       5 min                    10 min
    |0.1-----------------0.2|1e3--------0.000000001|
            2.70
    """
    settings = make_settings()
    last_ms = WINDOW_MS - 1

    first = take(
        spark,
        settings,
        spent("ann", "0.1"),
        spent("ann", "0.2", last_ms),
        spent("ann", "1e3", WINDOW_MS),
        spent("ann", "0.000000001", WINDOW_MS + last_ms),
    )
    then = take(spark, settings, spent("ann", "2.70", 1000))

    assert sorted(first) == sorted([message("ann", "0.3", 2), message("ann", "1000.000000001", 2, window=1)])
    assert then == [*first, message("ann", "3", 3)]


def test_a_total_that_no_decimal_holds_stops_the_query_and_names_the_user(
    spark: SparkSession, lake_settings: Settings
) -> None:
    landed = pipeline.utc("2026-03-29T01:00:00")
    records = [[Raw(b'{"userId":"croesus","amount":6e28}')] * 2]
    pipeline.land(spark, lake_settings, records, landed_at=landed, source=SOURCE)

    with pytest.raises(LakehouseError, match="croesus"):
        pipeline.run_layers(spark, lake_settings, "silver", "gold", stream=TRANSACTIONS)
