"""A warm-up builds silver and gold from landed rows, and leaves nothing behind."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakehouse.engine.runtime import warm_up as module
from lakehouse.engine.runtime.runner import run
from lakehouse.engine.runtime.signals import Stop
from lakehouse.engine.runtime.warm_up import warm_up
from lakehouse.settings import Settings
from lakehouse.storage.tables import Lake
from tests.support import pipeline
from tests.support.pipeline import STREAM, Raw
from tests.support.streams import STREAMS

LANDED = pipeline.utc("2026-03-02T00:00:00")


def event(number: int) -> Raw:
    at_ms = int(LANDED.timestamp() * 1000) - 60_000 + number
    return Raw(json.dumps({"serviceId": "s", "metricName": "m", "value": 1, "timestamp": at_ms}).encode())


def files(settings: Settings) -> set[str]:
    root = Path(settings.lake)
    return {str(file.relative_to(root)) for file in root.rglob("*") if file.is_file()}


def test_it_makes_silver_and_gold_and_leaves_every_table_as_it_was(
    spark: SparkSession,
    lake_settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    pipeline.land(spark, lake_settings, [[event(number) for number in range(5)]], landed_at=LANDED)
    lake, left = (
        Lake(spark, lake_settings.lake),
        Path(lake_settings.lake, module.DIRECTORY, "7-killed-1", "silver"),
    )
    left.mkdir(parents=True)
    before, made = files(lake_settings), list[tuple[str, int]]()

    def looked_at(scratch: Lake, *given: object) -> None:
        run(scratch, *given)  # type: ignore[arg-type]
        table = "metrics_1m"
        made.append((scratch.root, scratch.read("gold", table).agg({"count": "sum"}).first()[0]))  # type: ignore[index]

    monkeypatch.setattr("lakehouse.engine.runtime.warm_up.run", looked_at)
    monkeypatch.setattr(module, "_ROUNDS", 1)

    with caplog.at_level(logging.WARNING):
        warm_up(lake, [STREAM], lake_settings, Stop())

    assert [count for _, count in made] == [5, 10]
    assert all(root.startswith(f"{lake.root}/{module.DIRECTORY}/") for root, _ in made)
    assert files(lake_settings) == before
    assert not left.exists()
    assert caplog.messages == []


def test_without_a_row_there_is_nothing_to_make(spark: SparkSession, lake_settings: Settings) -> None:
    warm_up(Lake(spark, lake_settings.lake), STREAMS, lake_settings, Stop())

    assert files(lake_settings) == set()
