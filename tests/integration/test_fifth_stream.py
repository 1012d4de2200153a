"""CONTRIBUTING.md keeps its word: the stream it shows runs through all layers, from one file and one line."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from pyspark.sql import SparkSession

from lakehouse import catalog, streams
from lakehouse.layers.step import LAYERS
from lakehouse.quality.checking import check, make_context
from lakehouse.quality.subjects import PinnedTables, subjects
from lakehouse.runtime.runner import RunOptions, run, utc_now
from lakehouse.runtime.triggers import AVAILABLE_NOW
from lakehouse.sinks import row_key
from lakehouse.stream import Stream
from lakehouse.tables import Lake
from tests import pipeline
from tests.conftest import MakeSettings
from tests.pipeline import Raw

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"
AT_MS = int(pipeline.utc("2026-03-29T01:04:59.999").timestamp() * 1000)


@pytest.fixture
def clicks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stream]:
    """The stream of the page's first code block, in a file of its own and in the registry."""
    module = block(0, tmp_path)
    load = streams.load
    monkeypatch.setattr(streams, "load", lambda settings: (*load(settings), module.CLICKS))
    yield module.CLICKS
    del sys.modules[module.__name__]


def block(number: int, directory: Path) -> Any:
    """A code block of the page, as a module of its own."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    path = directory / f"block_{number}_of_the_page.py"
    path.write_text(blocks[number], encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def click(page: object, at_ms: int = AT_MS) -> Raw:
    return Raw(json.dumps({"page": page, "userId": "u", "timestamp": at_ms}).encode())


@pytest.mark.slow
@pytest.mark.usefixtures("nameless")
@pytest.mark.soak
def test_the_stream_of_the_page_goes_through_all_layers(
    spark: SparkSession, make_settings: MakeSettings, clicks: Stream, tmp_path: Path
) -> None:
    suffix = make_settings().topics["metrics-events"].removeprefix("metrics-events")
    settings = make_settings(topics={topic: topic + suffix for topic in clicks.topics})
    assert streams.choose(["clicks"], settings) == (clicks,)

    for records in (
        [click("/a"), click("/b"), click("/a", AT_MS + 1), click("no path"), click(None), Raw(b"{")],
        [click("/a")],
    ):
        pipeline.send(settings, records, source=clicks.sources[0])
        run(
            Lake(spark, settings.lake),
            streams.choose(["clicks"], settings),
            LAYERS,
            settings,
            RunOptions(AVAILABLE_NOW),
        )

    catalog.register(Lake(spark, settings.lake), streams.load(settings))
    start_ms = AT_MS - AT_MS % 300_000
    rows = catalog.ask(
        spark, "SELECT page, unix_millis(window_start), count FROM gold.page_views_5m ORDER BY ALL", limit=9
    ).rows
    assert [tuple(row) for row in rows] == [
        ("/a", start_ms, 2),
        ("/a", start_ms + 300_000, 1),
        ("/b", start_ms, 1),
    ]
    dead = catalog.ask(
        spark,
        "SELECT stream, reason.rule, reason.column FROM silver.dead_letters "
        "LATERAL VIEW explode(reasons) AS reason ORDER BY ALL",
        limit=9,
    ).rows
    assert [tuple(row) for row in dead] == [
        ("clicks", "not_a_path", "page"),
        ("clicks", "not_json", None),
        ("clicks", "null_field", "page"),
    ]
    last = {}
    for message in pipeline.read_topic(settings.kafka_bootstrap_servers, settings.topic("page-views-5m")):
        value = json.loads(message.value)
        last[message.key.decode(), value["windowStart"]] = value["count"]
    assert last == {("/a", start_ms): 2, ("/a", start_ms + 300_000): 1, ("/b", start_ms): 1}
    with redis.Redis.from_url(settings.redis_url.get_secret_value(), decode_responses=True) as client:
        row = client.get(row_key("page_views_5m", f"/a:{start_ms}"))
        assert json.loads(str(row))["count"] == 2

    every = subjects(streams.load(settings))
    (views,) = [one for one in every if one.name == "gold.page_views_5m"]
    report = check(
        views,
        block(1, tmp_path).suite(),
        PinnedTables(Lake(spark, settings.lake), every, settings, utc_now()),
        make_context(),
    )
    assert report.rows == 3
    assert [one.expectation for one in report.findings if not one.success] == ["there are rows of lately"]
