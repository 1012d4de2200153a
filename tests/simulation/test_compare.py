"""The comparison reports nothing for a correct real lake, and otherwise every changed row."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from lakehouse.operations.audit import report as audit_report
from lakehouse.operations.audit.report import Check, Report
from lakehouse.settings import Settings
from lakehouse.streams.definition import Stream
from tests.simulation.compare import disagreements, landings, table_differences
from tests.simulation.model import Life, Sent
from tests.support import pipeline
from tests.support.outputs import Difference, in_topic
from tests.support.pipeline import Raw
from tests.support.streams import METRICS, SALES, TRANSACTIONS, under

LANDED = datetime(2026, 1, 1, 12, 0, 1, tzinfo=UTC)
T0_MS = 1_767_268_800_000
SAID = {
    "transactions": {"userId": "u", "amount": 10, "timestamp": T0_MS},
    "metrics_events": {"serviceId": "s", "metricName": "m", "value": 1.5, "timestamp": T0_MS},
    "sales_events": {"product": "pen", "value": 10, "timestamp": T0_MS},
}


def lived(spark: SparkSession, settings: Settings, stream: Stream) -> Life:
    """Process three records of a stream through the lake, the last of them invalid."""
    source = stream.sources[0]
    good = json.dumps(SAID[source.table]).encode()
    raws = [Raw(value, b"k", timestamp_ms=T0_MS) for value in (good, good, b"{")]
    pipeline.land(spark, settings, [raws], landed_at=LANDED, source=source)
    pipeline.run_layers(spark, settings, "silver", "gold", stream=stream)
    life = Life(settings)
    topic = settings.topic(source.topic)
    life.sent = [
        Sent(source.table, (topic, 0, offset), T0_MS, raw.key, raw.value) for offset, raw in enumerate(raws)
    ]
    life.landed |= landings(settings, stream)
    return life


@pytest.mark.parametrize("stream", [TRANSACTIONS, METRICS, SALES], ids=lambda stream: stream.name)
def test_nothing_is_said_of_a_lake_that_is_right(
    spark: SparkSession, lake_settings: Settings, stream: Stream
) -> None:
    given = under(lake_settings, stream)

    assert table_differences(lived(spark, lake_settings, given), given) == []


def test_each_row_is_named_that_another_writer_has_changed(
    spark: SparkSession, lake_settings: Settings
) -> None:
    stream = under(lake_settings, TRANSACTIONS)
    life = lived(spark, lake_settings, stream)
    topic = lake_settings.topic("transactions-topic")
    silver = DeltaTable(str(pipeline.path_of(lake_settings, "silver.transactions")))
    silver.update({"amount": "999"}, predicate='"offset" = 0')
    silver.delete('"offset" = 1')
    letters = DeltaTable(str(pipeline.path_of(lake_settings, pipeline.DEAD_LETTERS)))
    letters.update({"status": "'discarded'"})
    gold = DeltaTable(str(pipeline.path_of(lake_settings, "gold.user_transactions_5m")))
    gold.update({"count": "3"})

    ten, letter = Decimal("10.000000000"), "a letter, open by not_json"
    assert [str(one) for one in table_differences(life, stream)] == [
        f"silver.transactions: {topic}/0/1: is there 0 times, and should be once",
        f"silver.transactions: {topic}/0/0: amount is {Decimal('999.000000000')!r}, and should be {ten!r}",
        f"dead letters of transactions: {topic}/0/2: is discarded by not_json, and should be {letter}",
        "gold.user_transactions_5m: ('u', 1767268800000000): count is 3, not 2",
    ]


def test_a_record_that_has_not_landed_is_named(spark: SparkSession, lake_settings: Settings) -> None:
    stream = under(lake_settings, TRANSACTIONS)
    life = lived(spark, lake_settings, stream)
    topic = lake_settings.topic("transactions-topic")
    life.sent.append(Sent("transactions", (topic, 1, 7), T0_MS, None, b"{"))

    assert [str(one) for one in table_differences(life, stream)] == [
        f"bronze.transactions: {topic}/1/7: has been sent, and has not landed"
    ]


def test_the_audit_is_clean_exactly_if_nothing_differs() -> None:
    one = Difference("silver.transactions", "t/0/1", "is missing")
    clean = Report(LANDED, (Check("transactions", "records", "silver.transactions", 3, 0),))
    wrong = Report(
        LANDED,
        (
            Check("transactions", "records", "silver.transactions", 3, 1, ()),
            Check("transactions", "gold", "gold.x", 3, 0, not_compared=("it is too large",)),
        ),
    )

    assert disagreements([], clean) == []
    assert disagreements([one], clean) == [
        "the audit is clean, and does not see that silver.transactions: t/0/1: is missing"
    ]
    assert disagreements([], wrong) == [
        "a false alarm of the audit: records of silver.transactions: 1 differences",
        "the audit could not compare gold of gold.x: it is too large",
    ]


def test_the_audit_names_each_record_that_differs_and_no_other() -> None:
    differing = [Difference("silver.transactions", "t/0/1", "is missing")]
    one, other = ({"topic": "t", "partition": 0, "offset": offset} for offset in (1, 2))

    assert disagreements(differing, said("records", one)) == []
    assert disagreements(differing, said("records", other)) == [
        f"the audit does not name what differs: {('records', str(sorted(one.items())))}",
        f"a false alarm of the audit, beside others: {('records', str(sorted(other.items())))}",
    ]


def test_the_audit_names_each_row_of_gold_that_differs() -> None:
    differing = [Difference("gold.user_transactions_5m", f"('u', {T0_MS * 1000})", "count is 3, not 2")]
    window = datetime.fromtimestamp(T0_MS / 1000, UTC).isoformat()

    assert disagreements(differing, said("gold", {"user_id": "u", "window_start": window})) == []
    assert len(disagreements(differing, said("gold", {"user_id": "v", "window_start": window}))) == 2


def said(name: str, key: dict[str, Any]) -> Report:
    """Return a report with one difference."""
    check = Check("transactions", name, "a table", 3, 1, (audit_report.Difference(key, "differs"),))
    return Report(LANDED, (check,))


def test_a_notification_is_there_once_or_again_after_an_adopted_copy() -> None:
    pen, cup = ({"product": product, "value": Decimal("120.5")} for product in ("pen", "cup"))
    sent, standing = [("pen 0 0", pen), ("pen 0 1", pen), ("cup 0 2", cup)], {"pen:0:7", "cup:0:8"}

    assert [
        one.key for one in in_topic("sales_notifications", sent, [pen, cup], standing, [cup], is_adopted=True)
    ] == [str(pen)]
    assert [*in_topic("sales_notifications", sent, [pen, cup], standing, [pen], is_adopted=True)] == []
    assert [*in_topic("sales_notifications", sent[:2], [pen, cup], standing, [pen], is_adopted=True)] == [
        Difference("topic", str(cup), "is in gold, and not the last message")
    ]


def test_only_another_table_of_that_name_sends_a_row_too_often() -> None:
    window = {"userId": "u", "windowStart": T0_MS, "count": 2}
    sent, table = [(f"u:{T0_MS}", window)] * 2, "user_transactions_5m"
    again = Difference("topic", str(window), "was left by another lake, and is sent again as it was", True)

    assert [*in_topic(table, sent, [window], {f"u:{T0_MS}"}, [window])] == [again]
    assert [*in_topic(table, sent, [window], {f"u:{T0_MS}"}, [window], is_adopted=True)] == []


def test_a_call_that_only_the_lost_lake_closed_is_left() -> None:
    call = {"user1": "ann", "user2": "eve", "ts": T0_MS, "analytics": None, "metrics": 1}
    left = Difference("topic", str(call), "was left by another lake, and is not in gold", True)

    assert [*in_topic("call_records", [(f"ann-eve:{T0_MS}", call)], [], (), [call], is_adopted=True)] == [
        left
    ]


def test_the_audit_names_each_row_that_another_lake_has_left_in_a_topic() -> None:
    left = Difference("topic out", "u:1", "was left by another lake, and is not in gold", is_left=True)
    telling = Check("transactions", "exported", "gold.x → out", 3, 1)
    silent = Check("transactions", "exported", "gold.x → out", 3, 0)
    other = Check("transactions", "records", "silver.transactions", 3, 1)

    assert disagreements([left], Report(LANDED, (telling,))) == []
    assert disagreements([left], Report(LANDED, (silent,))) == [
        "the audit names 0 of 1 rows that another lake has left in topic out"
    ]
    assert disagreements([left], Report(LANDED, (telling, other))) == [
        "a false alarm of the audit: records of silver.transactions: 1 differences"
    ]
