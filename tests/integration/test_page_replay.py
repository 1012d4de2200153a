"""A dead letter replayed from the live page, by clicks in a real Chromium, reaches gold."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakehouse.settings import Settings
from tests.support import pipeline
from tests.support.browser import browsing
from tests.support.pipeline import DEAD_LETTERS, GOLD, Raw
from tests.support.served_lakes import ServedLake
from tests.support.serving import serving
from tests.support.streams import METRICS

pytestmark = [pytest.mark.slow, pytest.mark.soak]
LANDED = pipeline.utc("2026-03-20T12:00:30")
AHEAD = LANDED + timedelta(minutes=10)


def event(offset_s: float, value: float) -> Raw:
    at = int((LANDED + timedelta(seconds=offset_s)).timestamp() * 1000)
    record = {"serviceId": "auth", "metricName": "cpu", "value": value, "timestamp": at}
    return Raw(json.dumps(record).encode())


def test_a_letter_that_was_of_the_future_is_replayed_in_four_clicks_and_counts_in_gold(
    spark: SparkSession, session_settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tolerance that refused the letter is raised for the server and the processes it starts."""
    changes = {"lake": str(tmp_path / "lake"), "home": tmp_path / "home"}
    settings = session_settings.changed(changes)
    cut = [event(0, 1.5), event(600, 2.5), Raw(b"not JSON")]
    pipeline.land(spark, settings, [cut], landed_at=LANDED)
    pipeline.run_layers(spark, settings, "silver", "gold", stream=METRICS)
    assert letters(settings) == {1: ("open", ["future"]), 2: ("open", ["not_json"])}

    monkeypatch.setenv("LAKEHOUSE_STREAM_DEFAULTS_FUTURE_TOLERANCE", "1h")
    with serving(ServedLake(settings), tmp_path / "log") as (_, url), browsing(tmp_path) as page:
        page.go(f"{url}/#/letters?stream=metrics&status=open")
        page.click(".sides a", "future")
        page.wait("document.querySelectorAll('[data-key^=\"#/letters/\"]').length === 1")
        page.click("[data-key^='#/letters/']")
        page.wait("document.querySelector('.record pre')?.textContent.includes('\"value\": 2.5')")
        page.click("button", "Replay")
        page.wait("document.querySelector('dialog .foretold')?.innerText.includes('1 of 1 would pass now')")
        page.wait("!document.querySelector('dialog button.main').disabled")
        page.click("dialog button.main", "Replay")
        page.wait("document.querySelector('dialog .said')?.textContent.includes('Done.')")
        assert letters(settings) == {1: ("replayed", ["future"]), 2: ("open", ["not_json"])}
        page.press("Escape")
        page.wait("document.querySelector('.lead .badge')?.textContent === 'replayed'")

        pipeline.run_layers(spark, settings, "gold", stream=METRICS)
        rows = {row["window_start"]: row["avg"] for row in pipeline.rows_of(settings, GOLD)}
        assert rows[pipeline.micros(AHEAD - timedelta(seconds=30))] == 2.5
        page.go(f"{url}/#/gold/metrics_1m?service_id=auth&metric_name=cpu&within=")
        page.wait("document.querySelectorAll('.rows tbody tr').length === 2")
        averages = "[...document.querySelectorAll('.rows tbody tr')].map((one) => one.cells[8].innerText)"
        assert page.run(averages) == ["2.5", "1.5"]

        page.go(f"{url}/#/log")
        page.wait("document.querySelector('main').innerText.includes('lakehouse dead-letters replay --id=')")


def letters(settings: Settings) -> dict[int, tuple[str, list[str]]]:
    rows = pipeline.rows_of(settings, DEAD_LETTERS)
    return {row["offset"]: (row["status"], [one["rule"] for one in row["reasons"]]) for row in rows}
