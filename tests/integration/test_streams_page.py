"""docs/streams.md keeps its word: its package works, and all layers run the stream that no kind fits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from pyspark.sql import SparkSession

from lakehouse.dev.services.services import Endpoints
from lakehouse.engine.layers import LAYERS
from lakehouse.engine.runtime.runner import RunOptions, run, utc_now
from lakehouse.engine.runtime.triggers import AVAILABLE_NOW
from lakehouse.operations.catalog import spark_sql as catalog
from lakehouse.operations.quality.checking import check, make_context
from lakehouse.operations.quality.subjects import PinnedTables, subjects
from lakehouse.sinks.redis.rows import row_key
from lakehouse.storage.kafka.topics import create_topics
from lakehouse.storage.tables import Lake
from lakehouse.streams import registry as streams
from lakehouse.streams.definition import Stream
from lakehouse.testing import declared
from tests.support import pipeline
from tests.support.page_streams import ROOT, blocks, imported
from tests.support.pipeline import Raw
from tests.support.processes import BIN, LAKEHOUSE, place
from tests.support.settings import MakeSettings

AT_MS = int(pipeline.utc("2026-03-29T01:04:59.999").timestamp() * 1000)


@pytest.fixture
def modules(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Yield the pages' code by module."""
    with imported(tmp_path) as found:
        yield found


def test_the_streams_of_the_page_are_what_it_says(modules: dict[str, Any]) -> None:
    payments, readings = map(declared, blocks("docs/streams.md", "toml")[:2])
    for stream in (payments["payments"], modules["page_payments"].PAYMENTS):
        (sums,) = stream.gold
        assert (sums.name, sums.keys, sums.export.topic) == (
            "payments_5m",
            ("card_id", "window_start"),
            "payments-5m",
        )
    (source,) = readings["readings"].sources
    columns = {field.column: field.required for field in source.contract.fields}
    assert columns == {"meter": True, "site_name": True, "kwh": True, "tariff": False, "is_manual": False}
    assert [table.name for table in readings["readings"].gold] == ["readings_1h", "readings_day"]
    assert source.contract.event_time_zone == "Europe/Berlin"


@pytest.fixture
def clicks(modules: dict[str, Any]) -> Stream:
    """Return the stream that no kind fits."""
    stream: Stream = modules["page_clicks"].CLICKS
    return stream


def click(page: object, at_ms: int = AT_MS) -> Raw:
    return Raw(json.dumps({"page": page, "userId": "u", "timestamp": at_ms}).encode())


@pytest.mark.slow
@pytest.mark.usefixtures("nameless")
@pytest.mark.soak
def test_the_stream_of_the_page_goes_through_all_layers(
    spark: SparkSession, make_settings: MakeSettings, clicks: Stream, modules: dict[str, Any]
) -> None:
    suffix = make_settings().topics["metrics-events"].removeprefix("metrics-events")
    topics = {topic: topic + suffix for topic in clicks.topics}
    settings = make_settings({"topics": topics, "streams": {"clicks": {"python": "page_clicks:CLICKS"}}})
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

    catalog.define_views(Lake(spark, settings.lake), streams.load(settings))
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
    for message in pipeline.read_topic(settings.kafka.bootstrap_servers, settings.topic("page-views-5m")):
        value = json.loads(message.value)
        last[message.key.decode(), value["windowStart"]] = value["count"]
    assert last == {("/a", start_ms): 2, ("/a", start_ms + 300_000): 1, ("/b", start_ms): 1}
    with redis.Redis.from_url(settings.redis.url.get_secret_value(), decode_responses=True) as client:
        row = client.get(row_key("page_views_5m", f"/a:{start_ms}"))
        assert json.loads(str(row))["count"] == 2

    every = subjects(streams.load(settings))
    (views,) = [one for one in every if one.name == "gold.page_views_5m"]
    report = check(
        views,
        modules["page_suite"].suite(),
        PinnedTables(Lake(spark, settings.lake), every, settings, utc_now()),
        make_context(),
    )
    assert report.rows == 3
    assert [one.expectation for one in report.findings if not one.success] == ["the newest row is recent"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the page's package with pip, and return the directory."""
    directory = tmp_path_factory.mktemp("shop")
    source, target = directory / "source", directory / "installed"
    (source / "shop").mkdir(parents=True)
    (source / "pyproject.toml").write_text(blocks("docs/streams.md", "toml")[-1], encoding="utf-8")
    (source / "shop" / "__init__.py").touch()
    (source / "shop" / "streams.py").write_text(blocks("docs/streams.md", "python")[0], encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    options = ["--no-deps", "--no-build-isolation", "--target", str(target)]
    subprocess.run([*pip, *options, str(source)], check=True)
    return target


@pytest.mark.soak
@pytest.mark.parametrize("way", ["a table", "a package"])
def test_the_stream_of_the_page_is_run_by_every_command(
    way: str, installed: Path, services: Endpoints, tmp_path: Path
) -> None:
    with place(tmp_path, services, database=10) as here:
        topics = {name: f"{name}-{here.suffix}" for name in ("card-payments", "payments-5m")}
        create_topics(services.access, dict.fromkeys(topics.values(), 2))
        file = tmp_path / "of_the_page.toml"
        file.write_text(blocks("docs/streams.md", "toml")[0], encoding="utf-8")
        table = {"topic": topics["card-payments"], "gold": {"payments_5m": {"to": topics["payments-5m"]}}}
        declared_by = {
            "a table": {"LAKEHOUSE_CONFIG": str(file)},
            "a package": {"PYTHONPATH": f"{here.environment['PYTHONPATH']}{os.pathsep}{installed}"},
        }
        environment = {
            **here.environment,
            **declared_by[way],
            "LAKEHOUSE_STREAMS": json.dumps({"payments": table}),
        }

        def lakehouse(*words: str, code: int = 0) -> str:
            done = subprocess.run(
                [LAKEHOUSE, *words],
                env=environment,
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=500,
                check=False,
            )
            assert done.returncode == code, done.stdout + done.stderr
            return done.stdout

        only = ("--stream", "payments")
        lakehouse("produce", "payments", "--events", "1000", "--malformed", "0.01", "--seed", "1")
        lakehouse("run", "all", *only, "--trigger", "available-now")
        query = "SELECT count(*) AS windows, sum(count) AS payments FROM gold.payments_5m"
        (row,) = json.loads(lakehouse("sql", query, "--format", "json"))
        assert row["payments"] == 990
        letters = json.loads(lakehouse("dead-letters", "list", *only, "--format", "json"))
        assert sum(one["count"] for one in letters["counts"]) >= 10
        audit = lakehouse("audit", *only)
        assert topics["card-payments"] in audit
        checked = lakehouse("expect", "silver.payments", "gold.payments_5m", "bronze.payments")
        assert "gold.payments_5m" in checked
        states = json.loads(lakehouse("status", *only, "--format", "json"))
        assert "payments" in json.dumps(states)
        rebuilt = lakehouse("rebuild", "gold", *only)
        assert rebuilt
        job = subprocess.run(
            [str(BIN / "python"), "jobs/gold.py", *only, "--trigger", "available-now"],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        assert job.returncode == 0, job.stdout + job.stderr
        last = {
            (one.key, json.loads(one.value)["windowStart"]): json.loads(one.value)["count"]
            for one in pipeline.read_topic(services.kafka, topics["payments-5m"])
        }
        assert len(last) == row["windows"]
        assert sum(last.values()) == 990

        # Without the file, or the package on the path, the stream is unknown and its tables are left alone.
        environment = here.environment
        lakehouse("run", "all", *only, "--trigger", "available-now", code=2)
