"""transactions: what users spend in five minutes, and records that are not transactions.

Most tests use plain frames; a lake with a real Kafka has a total that overflows its type.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import Column, SparkSession

from lakehouse.engine.layers import LAYERS
from lakehouse.operations.audit.gold import check_gold
from lakehouse.operations.catalog.spark_sql import ask, define_views
from lakehouse.settings import Settings
from lakehouse.storage import tables
from lakehouse.storage.spark.collecting import local_frame
from lakehouse.storage.tables import Candidates, Commit, Lake
from lakehouse.testing import Case
from tests.support import pipeline
from tests.support.batches import gold_of, rows_between, take
from tests.support.catalog_names import without_names
from tests.support.pipeline import Raw
from tests.support.streams import STREAMS, TRANSACTIONS

SOURCE = TRANSACTIONS.sources[0]
GOLD = "gold.user_transactions_5m"
WINDOW_MS = 300_000
START_MS = (int(time.time() * 1000) - 3_600_000) // WINDOW_MS * WINDOW_MS
"""The start of a window about an hour ago."""
LAST_MS = WINDOW_MS - 1


def spent(user: str, amount: float | str, after_ms: int = 0) -> Raw:
    """Return a transaction. An amount given as text is copied into the record unchanged."""
    record = f'{{"userId":{json.dumps(user)},"amount":{amount},"timestamp":{START_MS + after_ms}}}'
    return Raw(record.encode(), key=user.encode())


def message(user: str, total: str, count: int, window: int = 0) -> tuple[str, bytes]:
    """Return the message for a user's window; windows are counted from START_MS."""
    start_ms = START_MS + window * WINDOW_MS
    value = (
        f'{{"userId":"{user}","windowStart":{start_ms},"windowEnd":{start_ms + WINDOW_MS},'
        f'"totalAmount":{total},"count":{count}}}'
    )
    return user, value.encode()


REFUSED: dict[Raw, list[tuple[str, str | None]]] = {
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


@dataclass
class Story:
    """The messages sent by the end of each chapter, the keys set aside, and the audit's notes."""

    messages: list[list[tuple[str, bytes]]] = field(default_factory=list)
    set_aside: list[tuple[Any, ...]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def story(spark: SparkSession, module_settings: Settings) -> Story:
    settings, told = module_settings, Story()

    def take(*records: Raw) -> None:
        """Send the records and run every layer."""
        pipeline.send(settings, records, SOURCE)
        pipeline.run_layers(spark, settings, *LAYERS, stream=TRANSACTIONS)
        found = pipeline.read_topic(
            settings.kafka.bootstrap_servers, settings.topic("aggregated-transactions")
        )
        told.messages.append([(one.key.decode(), one.value) for one in found])

    take(spent("croesus", "6e28"), spent("croesus", "6e28"), spent("dan", 4))
    take(spent("croesus", 1), spent("dan", 5))
    with without_names(spark):
        define_views(Lake(spark, settings.lake), STREAMS)
        told.set_aside = [tuple(row) for row in ask(spark, "SELECT * FROM ops.keys_set_aside", limit=9).rows]
    (gold,) = check_gold(Lake(spark, settings.lake), TRANSACTIONS, TRANSACTIONS.gold[0])
    assert gold.differences == 0
    told.notes = list(gold.notes)
    return told


def test_amounts_that_are_not_positive_or_no_numbers_are_dead_letters_with_their_reasons(case: Case) -> None:
    refused = [
        {"record": place, "rule": rule, "column": column, "value": record.value, "key": record.key}
        for place, (record, reasons) in enumerate(REFUSED.items())
        for rule, column in reasons
    ]

    case(TRANSACTIONS, list(REFUSED), silver=[], dead=refused, gold=[], sent=[])


def test_amounts_add_up_to_the_last_digit_and_an_earlier_window_can_still_change(case: Case) -> None:
    r"""Two of ann's windows, [0, 5 min) and [5 min, 10 min), and a record for the first that arrives later.

    0                       5 min                    10 min
    |0.1-----------------0.2|1e3--------0.000000001|
            2.70
    """
    first = [
        spent("ann", "0.1"),
        spent("ann", "0.2", LAST_MS),
        spent("ann", "1e3", WINDOW_MS),
        spent("ann", "0.000000001", WINDOW_MS + LAST_MS),
        spent("bob", 12.5),
    ]
    messages = [
        message("ann", "0.3", 2),
        message("ann", "1000.000000001", 2, window=1),
        message("bob", "12.5", 1),
    ]

    taken = case(TRANSACTIONS, first, dead=[], sent=[{"key": key, "text": text} for key, text in messages])
    key, text = message("ann", "3", 3)
    taken.then([spent("ann", "2.70", 1000)], sent=[{"key": key, "text": text}])


@pytest.mark.soak
def test_a_total_that_no_decimal_holds_is_null_and_set_aside_and_the_others_go_on(story: Story) -> None:
    then, finally_ = story.messages

    assert Counter(then) == Counter([message("croesus", "null", 2), message("dan", "4", 1)])
    assert Counter(finally_) - Counter(then) == Counter(
        [message("croesus", "null", 3), message("dan", "9", 2)]
    )
    window = datetime.fromtimestamp(START_MS / 1000, UTC).isoformat(timespec="milliseconds")
    key = {"user_id": "croesus", "window_start": window.replace("+00:00", "Z")}
    assert [(one[0], json.loads(one[1]), *one[2:]) for one in story.set_aside] == [
        (GOLD, key, "beyond_total", 3)
    ]
    assert story.notes[1:] == ["1 rows with a total that overflows its type; see ops.keys_set_aside"]


def test_a_late_record_has_only_the_files_of_its_hour_read(
    spark: SparkSession, lake_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gold has a file for every six hours of five days; one record belongs to the first, one to the last."""
    gold = gold_of(spark, lake_settings, TRANSACTIONS)
    path, window = str(pipeline.path_of(lake_settings, GOLD)), timedelta(milliseconds=WINDOW_MS)
    starts = [datetime.fromtimestamp(START_MS / 1000, UTC) - timedelta(hours=6 * n) for n in range(20)]
    for start in starts:
        row = local_frame(spark, [("ann", start, start + window, Decimal(1), 1)], TRANSACTIONS.gold[0].schema)
        tables.append(row, path)
    found: list[int] = []
    candidates = Commit.candidates

    def noting(commit: Commit, where: Column | None) -> Candidates:
        near = candidates(commit, where)
        found.append(len(near.files))
        return near

    monkeypatch.setattr(Commit, "candidates", noting)
    early_ms = -19 * 6 * 3_600_000
    records = [spent("ann", 2), spent("ann", 3, early_ms)]
    landed = datetime.fromtimestamp(START_MS / 1000, UTC) + window
    pipeline.land(spark, lake_settings, [records], landed_at=landed, source=SOURCE)
    pipeline.run_layers(spark, lake_settings, "silver", stream=TRANSACTIONS)
    take(gold, rows_between(spark, lake_settings, "silver.transactions", 0, 2), 0, now=landed)

    assert found == [2]
    totals = {row["window_start"]: row["total_amount"] for row in pipeline.rows_of(lake_settings, GOLD)}
    assert totals == {
        pipeline.micros(start): {0: Decimal(3), 19: Decimal(4)}.get(number, Decimal(1))
        for number, start in enumerate(starts)
    }
