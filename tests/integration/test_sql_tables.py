"""Tables of aggregates in a lake: changed declarations, the audit and the default suite."""

from __future__ import annotations

import json
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from expectations.by_default import suite
from lakehouse.common.errors import TableError
from lakehouse.operations.audit.gold import check_gold
from lakehouse.operations.catalog.spark_sql import ask, define_views
from lakehouse.operations.quality.subjects import subjects
from lakehouse.operations.repair.rebuild_gold import WindowSpan, rebuild_gold
from lakehouse.settings import Settings
from lakehouse.storage.tables import Lake
from lakehouse.streams.declared import built
from lakehouse.streams.definition import Stream
from tests.support import pipeline
from tests.support.catalog_names import without_names
from tests.support.pipeline import Raw

LANDED = pipeline.utc("2026-03-01T12:00:00")
BY_SHOP = {"sales": "count(*)", "revenue": "sum(amount)"}
SALES = (
    [("a", 1.5, "x"), ("b", 2, "x")],
    [("a", 0.5, "y")],
    [("a", 1, "x"), ("b", -5, "z")],
    [("c", 9e28, "x"), ("c", 9e28, "x")],
)


def tills(aggregates: dict[str, str] = BY_SHOP, **table: Any) -> Stream:
    declared = {"by": "shop", "aggregates": aggregates, **table}
    fields = [{"name": "amount", "type": "decimal"}, "card"]
    return built("tills", {"kind": "sql", "topic": "tills", "fields": fields, "tables": [declared]})


def take(lake: Lake, settings: Settings, stream: Stream, number: int) -> None:
    at_ms = pipeline.micros(LANDED) // 1000 + number
    raws = [
        Raw(json.dumps({"shop": shop, "amount": amount, "card": card, "timestamp": at_ms}).encode())
        for shop, amount, card in SALES[number]
    ]
    first = sum(map(len, SALES[:number]))
    landed_at = LANDED + timedelta(seconds=number)
    pipeline.land(
        lake.spark, settings, [raws], landed_at=landed_at, first_offset=first, source=stream.sources[0]
    )
    pipeline.run_layers(lake.spark, settings, "silver", "gold", stream=stream, now=LANDED)


def rows(settings: Settings) -> dict[str, dict[str, Any]]:
    return {row["shop"]: row for row in pipeline.rows_of(settings, "gold.tills_by_shop")}


@pytest.mark.soak
def test_a_new_aggregate_is_refused_until_a_rebuild_has_computed_it(
    lake: Lake, lake_settings: Settings
) -> None:
    take(lake, lake_settings, tills(), 0)
    take(lake, lake_settings, tills(), 1)
    more = tills({**BY_SHOP, "least": "min(amount)", "cards": "count_distinct(card)"})

    with pytest.raises(TableError, match=r"gold\.tills_by_shop was made with streams\.tills\.tables"):
        take(lake, lake_settings, more, 2)
    (done,) = rebuild_gold(lake, more.gold[0], WindowSpan())
    pipeline.run_layers(lake.spark, lake_settings, "gold", stream=more, now=LANDED)

    found = rows(lake_settings)
    assert (done.rows, done.changed) == (2, 2)
    assert {
        shop: (row["sales"], row["revenue"], row["least"], row["cards"], row["last_event_time"])
        for shop, row in found.items()
    } == {
        "a": (3, Decimal(3), Decimal("0.5"), 2, pipeline.micros(LANDED) + 2000),
        "b": (2, Decimal(-3), Decimal(-5), 2, pipeline.micros(LANDED) + 2000),
    }
    assert [check.differences for check in check_gold(lake, more, more.gold[0])] == [0]


@pytest.mark.soak
def test_a_rebuild_computes_a_state_whose_value_is_still_null(lake: Lake, lake_settings: Settings) -> None:
    take(lake, lake_settings, tills(), 0)
    more = tills({**BY_SHOP, "deviation": "stddev(amount)"})

    (done,) = rebuild_gold(lake, more.gold[0], WindowSpan())
    take(lake, lake_settings, more, 1)

    assert (done.rows, done.changed) == (2, 2)
    deviations = {shop: row["deviation"] for shop, row in rows(lake_settings).items()}
    assert deviations == {"a": pytest.approx(0.5**0.5), "b": None}


@pytest.mark.soak
def test_a_declaration_without_an_existing_aggregate_is_refused_with_the_remedies(
    lake: Lake, lake_settings: Settings
) -> None:
    take(lake, lake_settings, tills(), 0)

    with pytest.raises(
        TableError, match=r"declaration: revenue, state\.total_amount\. Columns are not removed"
    ):
        rebuild_gold(lake, tills({"sales": "count(*)"}).gold[0], WindowSpan())


@pytest.mark.soak
def test_a_mean_whose_sum_does_not_fit_is_set_aside(lake: Lake, lake_settings: Settings) -> None:
    stream = tills({"mean": "avg(amount)"})
    take(lake, lake_settings, stream, 3)

    with without_names(lake.spark):
        define_views(lake, [stream])
        found = ask(lake.spark, "SELECT * FROM ops.keys_set_aside", limit=9).rows
    (check,) = check_gold(lake, stream, stream.gold[0])

    assert [tuple(row) for row in found] == [("gold.tills_by_shop", '{"shop":"c"}', "beyond_total", 2)]
    assert list(check.notes[1:]) == ["1 rows with a total that overflows its type; see ops.keys_set_aside"]


@pytest.mark.soak
def test_the_audit_names_a_row_whose_sketch_was_lost(lake: Lake, lake_settings: Settings) -> None:
    stream = tills({"middle": "approx_percentile(amount, 0.5)"})
    take(lake, lake_settings, stream, 0)
    path = lake.path("gold", "tills_by_shop")
    lake.spark.sql(f"UPDATE delta.`{path}` SET state.quantiles_amount = NULL, middle = 9 WHERE shop = 'a'")

    (check,) = check_gold(lake, stream, stream.gold[0])

    assert check.differences == 1
    (example,) = check.examples
    assert example.what == (
        "middle is 9.0, but should be 1.5, state.quantiles_amount is null, but should have a value"
    )


def test_the_default_suite_asks_for_recent_rows_only_where_rows_have_a_time() -> None:
    names = {
        subject.name: [one.description for one in suite(subject).expectations]
        for stream in (tills(), tills(length="1h"))
        for subject in subjects([stream])
        if subject.name.startswith("gold.")
    }
    assert names == {
        "gold.tills_by_shop": ["keys are unique", "required columns have values", "the newest row is recent"],
        "gold.tills_1h": [
            "keys are unique",
            "required columns have values",
            "windows start at multiples of 3600 s",
            "windows are 3600 s long",
            "the newest row is recent",
        ],
    }
