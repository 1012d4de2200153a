"""sales: totals by product, and notifications; with a real Kafka, and in plain frames."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakehouse.engine.layers import LAYERS, gold
from lakehouse.engine.ops_tables.retained import TakenRows
from lakehouse.engine.progress import cuts
from lakehouse.operations.maintenance import retention
from lakehouse.operations.maintenance.retention import Cut
from lakehouse.settings import Settings
from lakehouse.storage import tables
from lakehouse.storage.tables import Lake, Position
from lakehouse.testing import Case
from tests.support import pipeline
from tests.support.pipeline import DEAD_LETTERS, Raw, Row
from tests.support.streams import SALES, SALES_NOTIFICATIONS, under, with_streams

SOURCE = SALES.sources[0]
LANDED = pipeline.utc("2026-03-29T01:00:00")
SEED = (("product2", 1000), ("product1", 1500), ("product1", 1000), ("product2", 1300), ("product5", 1000))
PRODUCT1 = ("product1", b'{"product":"product1","value":2500}')
PRODUCT2 = ("product2", b'{"product":"product2","value":2300}')


def sold(product: str, value: float | str) -> Raw:
    """Return a sale. A value given as text is copied into the record unchanged."""
    return Raw(f'{{"product":{json.dumps(product)},"value":{value}}}'.encode(), key=product.encode())


def tombstone(product: str) -> Raw:
    return Raw(None, key=product.encode())


def message(product: str, value: str) -> bytes:
    return f'{{"product":"{product}","value":{value}}}'.encode()


REFUSED: dict[Raw, list[tuple[str, str | None]]] = {
    Raw(None): [("key_null", "product")],
    Raw(None, key=b""): [("key_empty", "product")],
    Raw(None, key=b"\xff"): [("key_not_utf8", "product")],
    sold("", "NaN"): [("not_json", None)],
    sold("", '"12"'): [("empty_string", "product"), ("wrong_type", "value")],
    sold("pen", "1e29"): [("beyond_decimal", "value")],
    sold("pen", "0.0000000001"): [("beyond_decimal", "value")],
    Raw(b'{"product":"pen"}'): [("missing_field", "value")],
}
PENS = [sold("pen", 1000), sold("pen", 1500), sold("pen", "0.000000001"), tombstone("pen"), sold("pen", 2000)]
MORE_PENS = [tombstone("pen"), sold("pen", "1999.50"), sold("pen", 1), sold("pen", 0.5)]


def totals(rows: list[Row]) -> dict[str, tuple[Decimal, int]]:
    return {row["product"]: (row["total"], row["count"]) for row in rows}


@dataclass
class Story:
    """The messages sent by the end of each chapter, each product's in order, and the final tables."""

    messages: list[list[tuple[str, bytes]]] = field(default_factory=list)
    letters: list[Row] = field(default_factory=list)


@pytest.fixture(scope="module")
def story(spark: SparkSession, module_settings: Settings) -> Story:
    settings, told = module_settings, Story()

    def take(*records: Raw) -> None:
        """Send the records and run every layer until it has caught up."""
        pipeline.send(settings, records, SOURCE)
        pipeline.run_layers(spark, settings, *LAYERS, stream=SALES)
        found = pipeline.read_topic(
            settings.kafka.bootstrap_servers, settings.topic("notifications-events-v1")
        )
        told.messages.append(
            sorted(((record.key.decode(), record.value) for record in found), key=lambda one: one[0])
        )

    first, second, third, *others = (sold(product, value) for product, value in SEED)
    take(first, second, sold("zero", "-0.0"), tombstone("größe"))
    take(third, Raw(b'{"product":"product1","value":', key=b"product1"))
    take(*others, *PENS, sold("ink", "1e4"), sold("ink", -9000), *MORE_PENS)
    told.letters = pipeline.rows_of(settings, DEAD_LETTERS)
    return told


@pytest.mark.soak
def test_a_product_is_notified_of_when_it_crosses_the_threshold_and_again_after_a_tombstone(
    story: Story,
) -> None:
    ink = ("ink", message("ink", "10000"))
    pens = [("pen", message("pen", value)) for value in ("2500", "2000", "2000.5")]

    assert story.messages == [[], [PRODUCT1], [ink, *pens, PRODUCT1, PRODUCT2]]


@pytest.mark.soak
def test_a_record_that_is_cut_off_is_a_dead_letter_and_counts_nowhere(story: Story) -> None:
    assert [row["value"] for row in story.letters] == [b'{"product":"product1","value":']


def notified_of(product: str, value: object) -> dict[str, object]:
    return {"key": product, "value": {"product": product, "value": value}}


def sums(**totals: tuple[object, int]) -> dict[str, list[dict[str, object]]]:
    """Return the expected gold: totals and counts by product."""
    rows = [{"product": name, "total": total, "count": count} for name, (total, count) in totals.items()]
    return {"product_sales": rows}


def test_totals_are_those_since_the_last_tombstone(case: Case) -> None:
    """A product whose only record is a tombstone has no last event time."""
    first = [sold("zero", "-0.0"), tombstone("größe"), *PENS, sold("ink", "1e4"), sold("ink", -9000)]
    others = sums(pen=(2001, 3), ink=(1000, 2), zero=(0, 1))["product_sales"]
    empty = {"product": "größe", "total": 0, "count": 0, "last_event_time": None}

    case(SALES, first, MORE_PENS, gold={"product_sales": [*others, empty]})


SEED_SUMS = sums(product1=(2500, 2), product2=(2300, 2), product5=(1000, 1))


def test_the_five_sales_of_the_issue_notify_of_two_products_however_they_are_cut(case: Case) -> None:
    first, second, third, fourth, fifth = (sold(product, value) for product, value in SEED)
    product1, product2 = notified_of("product1", 2500), notified_of("product2", 2300)

    case(SALES, [first, second, third, fourth, fifth], gold=SEED_SUMS, sent=[product1, product2])
    one_by_one = case(SALES, [first], [second], sent=[])
    one_by_one.then([third], sent=[product1])
    one_by_one.then([fourth], sent=[product2])
    one_by_one.then([fifth], gold=SEED_SUMS, sent=[])


def test_every_update_at_or_above_the_threshold_is_notified_of_where_that_is_asked_for(
    case: Case, session_settings: Settings
) -> None:
    every = under(with_streams(session_settings, sales={"notify": "every_update"}), SALES)
    first = [notified_of("pen", value) for value in (2500, "2500.000000001", 2000)]

    till = case(every, PENS, sent=first)
    till.then(MORE_PENS, sent=[notified_of("pen", "2000.5"), notified_of("pen", 2001)])


def test_a_threshold_of_ones_own_is_reached_exactly(case: Case, session_settings: Settings) -> None:
    stream = under(with_streams(session_settings, sales={"threshold": "0.3"}), SALES)
    sales = [sold("pen", "0.1"), sold("pen", "0.2"), sold("ink", "0.299999999")]

    case(stream, sales, sent=[notified_of("pen", "0.3")])


@pytest.mark.soak
def test_a_total_that_no_decimal_holds_is_null_until_it_fits_again(case: Case) -> None:
    """The first sale crosses the threshold. An unknown total neither crosses it nor counts as below it."""
    much = "60000000000000000000000000000"

    till = case(
        SALES,
        [sold("pen", "6e28"), sold("ink", 1), sold("pen", "6e28")],
        gold=sums(pen=(None, 2), ink=(1, 1)),
        sent=[notified_of("pen", much)],
    )
    till.then(
        [sold("pen", "6e28"), sold("ink", 1999)],
        gold=sums(pen=(None, 3), ink=(2000, 2)),
        sent=[notified_of("ink", 2000)],
    )
    till.then([sold("pen", "-6e28"), sold("pen", "-6e28")], gold=sums(pen=(much, 5), ink=(2000, 2)), sent=[])
    till.then(
        [sold("pen", "-5.25")], gold=sums(pen=("59999999999999999999999999994.75", 6), ink=(2000, 2)), sent=[]
    )


def test_what_is_no_sale_is_a_dead_letter_with_its_reasons(case: Case) -> None:
    refused = [
        {"record": place, "rule": rule, "column": column}
        for place, reasons in enumerate(REFUSED.values())
        for rule, column in reasons
    ]

    case(SALES, [*REFUSED, sold("pen", 1)], dead=refused, gold=sums(pen=(1, 1)))


@pytest.mark.soak
def test_a_product_whose_key_has_moved_to_another_partition_goes_on_with_its_total(case: Case) -> None:
    """Partitions were added to the topic. A producer that does not know this yet sends 5; ink has not moved.

    partition 0    1500         5                    1990
    partition 3            600     tombstone   10
    """
    second = timedelta(seconds=1)

    def put(partition: int, after_s: int, record: Raw) -> Raw:
        at = LANDED - 3600 * second + after_s * second
        return replace(record, partition=partition, timestamp_ms=int(at.timestamp() * 1000))

    till = case(SALES, [put(0, 1, sold("pen", 1500)), put(1, 9, sold("ink", 1))], now=LANDED, sent=[])
    till.then(
        [put(3, 2, sold("pen", 600)), put(1, 1, sold("ink", 1))],
        gold=sums(pen=(2100, 2), ink=(2, 2)),
        sent=[notified_of("pen", 2100)],
    )
    till.then(
        [put(3, 4, tombstone("pen")), put(3, 5, sold("pen", 10))], gold=sums(pen=(10, 1), ink=(2, 2)), sent=[]
    )
    pen = {"product": "pen", "total": 2000, "count": 2, "made_anew": True}
    ink = {"product": "ink", "made_anew": False, "reached": None}
    till.then(
        [put(0, 3, sold("pen", 5)), put(0, 6, sold("pen", 1990))],
        gold={"product_sales": [pen, ink], "sales_notifications": [{"value": 2100}, {"value": 2000}]},
    )


@pytest.mark.soak
def test_sales_that_come_out_of_order_have_totals_and_notifications_made_anew_once(
    spark: SparkSession, lake_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pen's tombstone precedes 1500 and 600; when gold reads it, silver already has two more sales."""
    read: list[str] = []
    history = cuts.read_up_to

    def noting(spark: SparkSession, path: str, position: Position | None) -> DataFrame:
        read.append(path)
        return history(spark, path, position)

    monkeypatch.setattr(cuts, "read_up_to", noting)
    settings = lake_settings.changed({"run.max_bytes": 1})
    first = [at(4, sold("pen", 1500)), at(5, sold("pen", 600)), at(6, sold("ink", 2000))]
    second = [at(1, sold("pen", 2500)), at(2, sold("pen", 1)), at(7, sold("ink", 1))]

    pipeline.land(spark, settings, [first, second], landed_at=LANDED, source=SOURCE)
    pipeline.run_layers(spark, settings, "silver", "gold", stream=SALES)
    assert notified(settings) == {("pen", 1): Decimal(2500), ("ink", 6): Decimal(2000)}
    assert len(read) == 1
    third = [[at(3, tombstone("pen"))], [at(8, sold("pen", 1))], [at(9, sold("pen", 2))]]
    pipeline.land(spark, settings, third, landed_at=LANDED, source=SOURCE)
    pipeline.run_layers(spark, settings, "silver", "gold", stream=SALES)
    assert len(read) == 2

    assert notified(settings) == {
        ("pen", 1): Decimal(2500),
        ("pen", 5): Decimal(2100),
        ("ink", 6): Decimal(2000),
    }
    assert totals(pipeline.rows_of(settings, "gold.product_sales")) == {
        "pen": (Decimal(2103), 4),
        "ink": (Decimal(2001), 2),
    }


@pytest.mark.soak
def test_a_notification_that_retention_has_taken_does_not_come_back_with_its_product(
    spark: SparkSession, lake_settings: Settings
) -> None:
    settings, before = lake_settings, LANDED - timedelta(days=5)
    early = replace(sold("pen", 2500), timestamp_ms=int((LANDED - timedelta(days=6)).timestamp() * 1000))
    first = [at(1, early), at(2, tombstone("pen")), at(4, sold("pen", 2000))]
    pipeline.land(spark, settings, [first], landed_at=LANDED, source=SOURCE)
    pipeline.run_layers(spark, settings, "silver", "gold", stream=SALES)
    assert notified(settings) == {("pen", 1): Decimal(2500), ("pen", 4): Decimal(2000)}
    cut = Cut(F.col("event_time") < F.lit(before), TakenRows(before))
    lake, spec = Lake(spark, settings.lake), gold.spec(SALES_NOTIFICATIONS)
    retention.take(lake, spec, lambda _lake, _now: cut, LANDED, dry_run=False)

    pipeline.land(spark, settings, [[at(3, sold("pen", 1))]], landed_at=LANDED, source=SOURCE)
    pipeline.run_layers(spark, settings, "silver", "gold", stream=SALES)

    assert notified(settings) == {("pen", 4): Decimal(2001)}


@pytest.mark.soak
def test_notifications_are_those_of_the_total_that_is_written_in_the_end(
    spark: SparkSession, lake_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The product's row is deleted between the write of its notification and its own write."""
    settings = lake_settings.changed({"run.max_bytes": 1})
    path, upsert = str(pipeline.path_of(settings, "gold.product_sales")), tables.upsert
    pipeline.land(spark, settings, [[sold("pen", 1500)]], landed_at=LANDED, source=SOURCE)
    pipeline.run_layers(spark, settings, "silver", "gold", stream=SALES)
    written: list[str] = []

    def overtaken(rows: DataFrame, commit: tables.Commit, *others: Any, **named: Any) -> tables.Written:
        if commit.path == path and path not in written:
            assert notified(settings) == {("pen", 1): Decimal(2100), ("ink", 2): Decimal(3000)}
            spark.sql(f"DELETE FROM delta.`{path}` WHERE product = 'pen'")
        written.append(commit.path)
        return upsert(rows, commit, *others, **named)

    monkeypatch.setattr(tables, "upsert", overtaken)
    second = [sold("pen", 600), sold("ink", 3000)]
    pipeline.land(spark, settings, [second], landed_at=LANDED, source=SOURCE, first_offset=1)
    pipeline.run_layers(spark, settings, "silver", "gold", stream=SALES)

    assert written.count(path) == 2
    assert totals(pipeline.rows_of(settings, "gold.product_sales")) == {
        "pen": (Decimal(600), 1),
        "ink": (Decimal(3000), 1),
    }
    assert notified(settings) == {("ink", 2): Decimal(3000)}


def at(offset: int, record: Raw) -> Raw:
    return replace(record, offset=offset)


def notified(settings: Settings) -> dict[tuple[str, int], Decimal]:
    rows = pipeline.rows_of(settings, "gold.sales_notifications")
    return {(row["product"], row["offset"]): row["value"] for row in rows}
