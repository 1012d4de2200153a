"""sales over a real Kafka: what is sold, what it adds up to and who is told."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from pyspark.sql import SparkSession

from lakehouse.errors import LakehouseError
from lakehouse.layer import LAYERS
from lakehouse.settings import Settings
from lakehouse.streams import STREAMS
from lakehouse.streams.sales import SALES
from tests import pipeline
from tests.conftest import MakeSettings
from tests.pipeline import DEAD_LETTERS, Raw

SOURCE = SALES.sources[0]
LANDED = pipeline.utc("2026-03-29T01:00:00")
SEED = (("product2", 1000), ("product1", 1500), ("product1", 1000), ("product2", 1300), ("product5", 1000))
SEED_TOTALS = {
    "product1": (Decimal(2500), 2),
    "product2": (Decimal(2300), 2),
    "product5": (Decimal(1000), 1),
}
PRODUCT1 = ("product1", b'{"product":"product1","value":2500}')
PRODUCT2 = ("product2", b'{"product":"product2","value":2300}')


def sold(product: str, value: float | str) -> Raw:
    """A sale; a value that is text stands in the record as it is written."""
    return Raw(f'{{"product":{json.dumps(product)},"value":{value}}}'.encode(), key=product.encode())


def tombstone(product: str) -> Raw:
    return Raw(None, key=product.encode())


def message(product: str, value: str) -> bytes:
    return f'{{"product":"{product}","value":{value}}}'.encode()


def take(spark: SparkSession, settings: Settings, *records: Raw) -> None:
    """Send the records and run every layer until it has caught up."""
    pipeline.send(settings, records, SOURCE)
    pipeline.run_layers(spark, settings, *LAYERS, stream=SALES)


def notified(settings: Settings) -> list[tuple[str, bytes]]:
    """Every message of the notifications' topic, those of a product in their order."""
    topic = settings.topic("notifications-events-v1")
    records = pipeline.read_topic(settings.kafka_bootstrap_servers, topic)
    return sorted(((record.key.decode(), record.value) for record in records), key=lambda one: one[0])


def totals(spark: SparkSession, settings: Settings) -> dict[str, tuple[Decimal, int]]:
    rows = pipeline.rows_of(spark, settings, "gold.product_sales")
    return {row["product"]: (row["total"], row["count"]) for row in rows}


def reasons(spark: SparkSession, settings: Settings) -> list[list[tuple[str, str]]]:
    rows = pipeline.rows_of(spark, settings, DEAD_LETTERS)
    return sorted([(one["rule"], one["column"] or "") for one in row["reasons"]] for row in rows)


def test_sales_are_registered_with_their_topics() -> None:
    assert SALES in STREAMS
    assert {"sales-events-v1", "notifications-events-v1"} <= set(SALES.topics)


@pytest.mark.slow
def test_the_five_sales_of_the_issue_notify_of_two_products_with_every_layer_run_between_any_two(
    spark: SparkSession, make_settings: MakeSettings
) -> None:
    settings = make_settings()
    seen: list[list[tuple[str, bytes]]] = []

    for product, value in SEED:
        take(spark, settings, sold(product, value))
        seen.append(notified(settings))
        if len(seen) == 2:
            take(spark, settings, Raw(b'{"product":"product1","value":', key=b"product1"))

    assert seen == [[], [], [PRODUCT1], [PRODUCT1, PRODUCT2], [PRODUCT1, PRODUCT2]]
    assert reasons(spark, settings) == [[("not_json", "")]]
    assert totals(spark, settings) == SEED_TOTALS


def test_the_five_sales_of_the_issue_in_one_go_give_the_same(
    spark: SparkSession, make_settings: MakeSettings
) -> None:
    settings = make_settings()

    take(spark, settings, *(sold(product, value) for product, value in SEED))

    assert notified(settings) == [PRODUCT1, PRODUCT2]


@pytest.mark.parametrize(
    ("notify", "first", "then"),
    [
        ("crossing", ["2500", "2000"], ["2000.5"]),
        ("every_update", ["2500", "2500.000000001", "2000"], ["2000.5", "2001"]),
    ],
)
def test_a_product_that_starts_again_is_notified_of_again(
    spark: SparkSession, make_settings: MakeSettings, notify: str, first: list[str], then: list[str]
) -> None:
    settings = make_settings(sales_notify=notify)
    pens = [sold("pen", 1000), sold("pen", 1500), sold("pen", "0.000000001"), tombstone("pen")]
    ink = ("ink", message("ink", "10000"))

    take(spark, settings, *pens, sold("pen", "2000"), sold("ink", "1e4"), sold("ink", -9000))
    assert notified(settings) == [ink, *(("pen", message("pen", value)) for value in first)]
    take(spark, settings, tombstone("pen"), sold("pen", "1999.50"), sold("pen", 1), sold("pen", 0.5))

    assert notified(settings) == [ink, *(("pen", message("pen", value)) for value in first + then)]
    assert totals(spark, settings) == {"pen": (Decimal(2001), 3), "ink": (Decimal(1000), 2)}


def test_a_threshold_of_ones_own_is_reached_exactly(spark: SparkSession, make_settings: MakeSettings) -> None:
    settings = make_settings(sales_threshold=Decimal("0.3"))

    take(spark, settings, sold("pen", "0.1"), sold("pen", "0.2"), sold("ink", "0.299999999"))

    assert notified(settings) == [("pen", message("pen", "0.3"))]


def test_what_is_no_sale_is_a_dead_letter_with_its_reasons(
    spark: SparkSession, lake_settings: Settings
) -> None:
    refused: dict[Raw, list[tuple[str, str]]] = {
        Raw(None): [("key_null", "product")],
        Raw(None, key=b""): [("key_empty", "product")],
        Raw(None, key=b"\xff"): [("key_not_utf8", "product")],
        sold("", "NaN"): [("not_json", "")],
        sold("", '"12"'): [("empty_string", "product"), ("wrong_type", "value")],
        sold("pen", "1e29"): [("beyond_decimal", "value")],
        sold("pen", "0.0000000001"): [("beyond_decimal", "value")],
        Raw(b'{"product":"pen"}'): [("missing_field", "value")],
    }

    pipeline.land(spark, lake_settings, [[*refused, sold("pen", "-0.0")]], landed_at=LANDED, source=SOURCE)
    pipeline.run_layers(spark, lake_settings, "silver", "gold", stream=SALES)

    assert reasons(spark, lake_settings) == sorted(refused.values())
    assert totals(spark, lake_settings) == {"pen": (Decimal(0), 1)}


def test_a_product_whose_first_record_is_a_tombstone_has_a_row_of_zeros(
    spark: SparkSession, lake_settings: Settings
) -> None:
    pipeline.land(spark, lake_settings, [[tombstone("größe")]], landed_at=LANDED, source=SOURCE)

    pipeline.run_layers(spark, lake_settings, "silver", "gold", stream=SALES)

    (row,) = pipeline.rows_of(spark, lake_settings, "gold.product_sales")
    assert {name: row[name] for name in ("product", "total", "count", "last_event_time")} == {
        "product": "größe",
        "total": Decimal(0),
        "count": 0,
        "last_event_time": None,
    }


def test_a_total_that_no_decimal_holds_stops_the_query_and_names_the_product(
    spark: SparkSession, lake_settings: Settings
) -> None:
    sales = [[sold("pen", "6e28"), sold("ink", 1), sold("pen", "6e28")]]
    pipeline.land(spark, lake_settings, sales, landed_at=LANDED, source=SOURCE)

    with pytest.raises(LakehouseError, match="pen"):
        pipeline.run_layers(spark, lake_settings, "silver", "gold", stream=SALES)
