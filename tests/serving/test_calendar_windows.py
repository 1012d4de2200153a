"""The server finds weeks of different lengths in a time zone: in a series, and from a silver row."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import pytest

from lakehouse.serving.reading import row_keys
from lakehouse.serving.reading.gold import Gold
from lakehouse.serving.reading.lookups import Lookups
from lakehouse.serving.reading.redis import Live
from lakehouse.streams.kinds import windowed_sums
from tests.support.browser import Page
from tests.support.served_lakes import NOWHERE, PATIENCE_S, MakeClient, ServedLake, in_micros
from tests.support.serving import serving

STREAM = windowed_sums("rent", "rent", by="flat", value="paid", length="week", zone="Europe/Berlin")
(SOURCE,), (TABLE,) = STREAM.sources, STREAM.gold
STARTS = [
    datetime.fromisoformat(text).replace(tzinfo=UTC)
    for text in (
        "2026-10-04 22:00",
        "2026-10-11 22:00",
        "2026-10-18 22:00",
        "2026-10-25 23:00",
        "2026-11-01 23:00",
    )
]
ROWS = [
    {"flat": "a", "window_start": start, "window_end": end, "total_paid": Decimal(number), "count": 1}
    for number, (start, end) in enumerate(pairwise(STARTS))
]


@pytest.mark.parametrize("source", ["redis", "gold"])
def test_a_series_goes_back_over_a_long_week(lake: ServedLake, source: str) -> None:
    lake.write(TABLE, ROWS)
    lake.export(TABLE, ROWS)
    url = (lake.settings.redis.url if source == "redis" else NOWHERE).get_secret_value()
    lookups = Lookups([TABLE], Gold(lake.settings.lake, [TABLE]), Live(url, PATIENCE_S), whole_s=0)
    found = asyncio.run(lookups.series(TABLE, {"flat": "a"}, 3))
    assert found.source == source
    assert [json.loads(one.message)["totalPaid"] for one in found.rows] == [3, 2, 1]


@pytest.mark.parametrize(
    ("event_time", "start"),
    [
        ("2026-10-25 22:59:59.999999", STARTS[2]),
        ("2026-10-25 23:00", STARTS[3]),
        ("2026-10-18 22:00", STARTS[2]),
    ],
)
def test_a_silver_row_leads_to_its_week(event_time: str, start: datetime) -> None:
    row = in_micros({"flat": "a", "event_time": datetime.fromisoformat(event_time).replace(tzinfo=UTC)})
    found = row_keys.key_of(SOURCE, TABLE, TABLE, row)
    assert found.columns == in_micros({"flat": "a", "window_start": start})


def test_a_table_says_that_its_windows_are_weeks(make_client: MakeClient) -> None:
    keys = {"by": "flat", "value": "paid", "length": "week", "zone": "Europe/Berlin"}
    client = make_client(changes={"streams": {"rent": {"kind": "windowed_sums", "topic": "rent", **keys}}})
    (stream,) = client.get("/api/v1/streams").json()["streams"]
    (table,) = stream["tables"]
    assert (table["name"], table["windowSeconds"]) == ("rent_week", 170 * 3600)
    assert table["calendar"] == {"unit": "week", "zone": "Europe/Berlin"}


@pytest.mark.soak
def test_the_page_shows_all_weeks_in_a_chart_without_a_gap(
    lake: ServedLake, page: Page, tmp_path: Path
) -> None:
    lake.write(TABLE, ROWS)
    (tmp_path / "lakehouse.toml").write_text(
        "[streams.rent]\nkind = 'windowed_sums'\ntopic = 'rent'\nby = 'flat'\nvalue = 'paid'\n"
        "length = 'week'\nzone = 'Europe/Berlin'\n",
        encoding="utf-8",
    )
    with serving(lake, tmp_path / "log") as (_, url):
        page.go(f"{url}/#/gold/rent_week")
        page.wait("document.querySelector('.uplot')")
        assert len(page.run("[...document.querySelectorAll('.rows tbody tr')].map((one) => 1)")) == len(ROWS)
        gaps = """import('/page/chart.js').then(({lines}) => {
            const points = [%s].map((at) => ({at, total: 1}));
            const [, values] = lines('', [{name: 'a', points}], 'total', 170 * 3600).source.data;
            return values.filter((one) => one === null).length;
        })"""
        week = [int(start.timestamp()) for start in STARTS]
        assert page.run(gaps % ", ".join(map(str, week))) == 0
        assert page.run(gaps % ", ".join(map(str, (week[0], *week[2:])))) == 1
