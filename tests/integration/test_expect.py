"""Suites hold on what the pipeline makes, and the right expectation catches a damaged row.

tests/expectations tests each expectation by itself; here four run end to end: keys, a condition on other
rows, the change feed, and a condition on a row. Only copies of the lake are damaged. `make soak` opens the
pages in a real, headless Chromium.
"""

from __future__ import annotations

import json
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake.exceptions import TableNotFoundError
from great_expectations.data_context import AbstractDataContext
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from lakehouse.cli.commands import expect
from lakehouse.common.errors import TableError
from lakehouse.common.events import Kind
from lakehouse.engine.ops_tables.event_table import newest
from lakehouse.engine.runtime.runner import utc_now
from lakehouse.operations.quality.checking import check, make_context, suite_of
from lakehouse.operations.quality.report import TableReport
from lakehouse.operations.quality.subjects import PinnedTables, Subject, subjects
from lakehouse.settings import Settings
from lakehouse.storage import tables
from lakehouse.storage.tables import Lake
from lakehouse.streams.registry import load
from tests.expectations.lakes import TABLES
from tests.support import pipeline
from tests.support.processes import ROOT

pytestmark = pytest.mark.soak

DAMAGES: Mapping[str, tuple[tuple[str, ...], str | None, str]] = {
    "bronze.metrics_events": (("topic", "partition", "offset"), None, "keys are unique"),
    "silver.call_metrics": (
        ("topic", "partition", "offset"),
        "event_time = event_time + INTERVAL 1 DAY",
        "no event time is beyond future_tolerance",
    ),
    "gold.product_sales": (
        ("product",),
        "total = total - 1",
        "totals decrease only because of a tombstone or a return",
    ),
    "gold.user_transactions_5m": (
        ("user_id", "window_start"),
        "count = 0",
        "every window has a transaction",
    ),
}
"""By table: its key, the damage to one row (None: it is duplicated), and the expectation that reports it."""

UNMET: Mapping[str, set[str]] = {"silver.dead_letters": {"few of a topic's records are open letters"}}
"""By table: the expectations that warn in the lake, where 15 % of the records are malformed."""

Invoke = Callable[..., Result]


@pytest.fixture(scope="module")
def every(filled_lake: Settings) -> dict[str, Subject]:
    return {subject.name: subject for subject in subjects(load(filled_lake))}


@pytest.fixture(scope="module")
def context() -> AbstractDataContext:
    return make_context()


@pytest.fixture
def lake(filled_lake: Settings, tmp_path: Path) -> Settings:
    """Return a copy of the lake for this test alone."""
    shutil.copytree(filled_lake.lake, tmp_path / "lake")
    return filled_lake.changed({"lake": str(tmp_path / "lake")})


def checked(
    spark: SparkSession,
    settings: Settings,
    every: Mapping[str, Subject],
    names: Iterable[str],
    context: AbstractDataContext,
) -> Iterator[TableReport]:
    """Check tables as `lakehouse expect` does, all as of the same moment."""
    pinned = PinnedTables(Lake(spark, settings.lake), list(every.values()), settings, utc_now())
    for name in names:
        suite = suite_of(every[name])
        assert suite is not None
        yield check(every[name], suite, pinned, context)


def runs_of(settings: Settings) -> set[str]:
    """Return the ids of all runs of suites over a lake."""
    try:
        return {row["run_id"] for row in pipeline.rows_of(settings, "ops.expectation_results")}
    except TableNotFoundError:
        return set()


def broken(report: TableReport) -> set[str]:
    assert not report.has_errors, report
    return {one.expectation for one in report.findings if not one.success}


def damage(spark: SparkSession, settings: Settings, name: str) -> dict[str, Any]:
    """Damage the row with the greatest key, and return it as it was before."""
    keys, change, _ = DAMAGES[name]
    path = pipeline.path_of(settings, name)
    types = dict(spark.read.format("delta").load(str(path)).dtypes)
    row = max(pipeline.rows_of(settings, name), key=lambda row: [row[key] for key in keys])
    same = " AND ".join(
        f"unix_micros({key}) = {row[key]}" if types[key] == "timestamp" else f"{key} = {row[key]!r}"
        for key in keys
    )
    if change is None:
        spark.sql(f"INSERT INTO delta.`{path}` SELECT * FROM delta.`{path}` WHERE {same}")
    else:
        spark.sql(f"UPDATE delta.`{path}` SET {change} WHERE {same}")
    return row


@pytest.mark.slow
def test_every_suite_holds_on_what_the_pipeline_makes(
    spark: SparkSession,
    filled_lake: Settings,
    every: Mapping[str, Subject],
    context: AbstractDataContext,
) -> None:
    assert set(every) == set(TABLES)
    for report in checked(spark, filled_lake, every, every, context):
        assert broken(report) == UNMET.get(report.table, set()), report
        assert report.rows > 0
        assert report.version == pipeline.version_of(filled_lake, report.table)


def views_of(spark: SparkSession) -> set[str]:
    """Return the session's temporary views, which SHOW TABLES lists among the tables of any database."""
    return {row.viewName for row in spark.sql("SHOW VIEWS").where("isTemporary").collect()}


@pytest.mark.slow
def test_damaged_rows_are_caught_by_the_expectations_that_they_break_and_named(
    spark: SparkSession, lake: Settings, every: Mapping[str, Subject], context: AbstractDataContext
) -> None:
    before = views_of(spark)
    rows = {name: damage(spark, lake, name) for name in DAMAGES}
    reports = list(checked(spark, lake, every, DAMAGES, context))

    assert views_of(spark) == before
    assert {report.table: broken(report) for report in reports} == {
        name: {expected} for name, (_, _, expected) in DAMAGES.items()
    }
    for report in reports:
        keys, row = DAMAGES[report.table][0], rows[report.table]
        (finding,) = [one for one in report.findings if not one.success]
        assert (finding.severity, finding.unexpected) == ("fail", 1)
        (example,) = finding.examples
        assert {key: as_moment(example[key]) for key in keys} == {key: row[key] for key in keys}


def as_moment(value: Any) -> Any:
    """Return an example's value; a time becomes microseconds, as in these tests' rows."""
    is_time = isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", value)
    return pipeline.micros(datetime.fromisoformat(value)) if is_time else value


# The command.


@pytest.fixture
def invoke(spark: SparkSession, lake: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Run `lakehouse expect` on the copy of the lake with the worker's Spark and with its own pages."""
    for name, value in environment_of(lake, tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(tables, "open_lake", lambda *_, **__: nullcontext(Lake(spark, lake.lake)))
    return lambda *arguments: CliRunner().invoke(expect.app, [*arguments])


def environment_of(settings: Settings, home: Path) -> dict[str, str]:
    return {"LAKEHOUSE_HOME": str(home), "LAKEHOUSE_LAKE": settings.lake, "COLUMNS": "250"}


@pytest.mark.slow
def test_the_command_says_what_holds_what_does_not_and_how_it_went_before(
    spark: SparkSession,
    lake: Settings,
    invoke: Invoke,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    tables = ["gold.product_sales", "user_transactions_5m"]
    version = pipeline.version_of(lake, "gold.user_transactions_5m")
    others = runs_of(lake)  # runnable blocks of docs may have run here
    good = invoke(*tables)
    assert good.exit_code == 0, good.output
    assert "all hold" in good.output
    windows = spark.read.format("delta").load(f"{lake.lake}/gold/user_transactions_5m").collect()
    newest_end = max(row.window_end for row in windows).astimezone(UTC)
    assert f"newest: {newest_end:%Y-%m-%dT%H:%M:%S}Z " in good.output

    row = damage(spark, lake, "gold.user_transactions_5m")
    bad = invoke(*tables)
    as_json = invoke("user_transactions_5m", "--format", "json")
    before = invoke("gold.user_transactions_5m", "--version", str(version))
    assert (bad.exit_code, as_json.exit_code, before.exit_code) == (1, 1, 0)
    assert "1 do NOT hold" in bad.output
    assert f"every window has a transaction: user_id={row['user_id']}, window_start=" in bad.output
    assert [(one["table"], one["success"]) for one in json.loads(as_json.stdout)] == [
        ("gold.user_transactions_5m", False)
    ]

    lately = invoke("gold.user_transactions_5m", "--since", "2999-01-01T00:00:00Z", "--format", "json")
    (report,) = json.loads(lately.stdout)
    assert (lately.exit_code, report["rows"], report["success"]) == (0, 0, True)
    assert [(one["expectation"], one["observed"]) for one in report["findings"] if not one["success"]] == [
        ("the newest row is recent", "no row has a time")
    ]

    trend = invoke("gold.product_sales", "user_transactions_5m", "--history")
    assert trend.exit_code == 0
    line = next(line for line in trend.stdout.splitlines() if "every window has a transaction" in line)
    assert "✓✗✗✓✓" in line
    assert "3 of 5" in line

    events = newest(lake.lake, limit=5, kinds=[Kind.EXPECT])
    assert [event.actor for event in events] == ["lakehouse expect"] * 5
    assert [event.message for event in events] == [
        "expectations of 2 tables: all hold",
        "expectations of 2 tables: 1 do NOT hold",
        "expectations of 1 table: 1 do NOT hold",
        "expectations of 1 table: all hold",
        "expectations of 1 table: 1 do not hold (warnings only)",
    ]
    assert json.loads(events[1].details or "")["broken"] == {
        "gold.product_sales": [],
        "gold.user_transactions_5m": ["every window has a transaction"],
    }
    assert len(runs_of(lake) - others) == 5
    results = [
        row for row in pipeline.rows_of(lake, "ops.expectation_results") if row["run_id"] not in others
    ]
    failed = [row for row in results if not row["success"] and row["severity"] == "fail"]
    assert {(row["table"], row["expectation"], row["unexpected"]) for row in failed} == {
        ("gold.user_transactions_5m", "every window has a transaction", 1)
    }

    site = tmp_path / "expectations" / "gx" / "uncommitted" / "data_docs" / "local_site"
    assert "gold.user_transactions_5m" in (site / "index.html").read_text()
    runs = site.glob("validations/gold/user_transactions_5m/**/*.html")
    pages = [run.read_text() for run in sorted(runs, key=lambda run: run.parent.name)]  # by time
    assert all("every window has a transaction" in page for page in pages)
    bodies = [page.partition("</style>")[2] for page in pages]
    assert ["text-danger" in body for body in bodies] == [False, True, True, False, True]

    # Names are text wherever they are shown.
    gold = pipeline.path_of(lake, "gold.user_transactions_5m")
    spark.sql(f"UPDATE delta.`{gold}` SET user_id = '<img src=x onerror=alert(1)>' WHERE count = 0")
    named = invoke("gold.user_transactions_5m")
    assert "user_id=<img src=x onerror=alert(1)>" in named.output
    runs = site.glob("validations/gold/user_transactions_5m/**/*.html")
    page = max(runs, key=lambda run: run.parent.name).read_text()
    assert "&lt;img src=x onerror=alert(1)&gt;" in page
    assert "<img src=x" not in page
    assert re.search(r"Traceback|unexpected Exception", capfd.readouterr().err) is None


@pytest.mark.slow
def test_what_cannot_be_looked_at_ends_with_2_and_a_wrong_name_with_the_known_ones(
    lake: Settings, invoke: Invoke
) -> None:
    for file in pipeline.path_of(lake, "gold.user_transactions_5m").glob("part-*.parquet"):
        file.unlink()
    ended = invoke("gold.user_transactions_5m")
    assert ended.exit_code == 2, ended.output
    assert "gold.user_transactions_5m: the table can be read: " in ended.output
    assert "1 could NOT be evaluated" in ended.output

    with pytest.raises(TableError, match=r"no table or layer is named golden; known: bronze, silver"):
        expect.expect(["golden"])
    with pytest.raises(TableError, match="requires exactly one table"):
        expect.expect(["gold"], version=1)


@pytest.mark.slow
@pytest.mark.usefixtures("invoke")
def test_the_job_is_the_same(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["expect.py", "gold.product_sales"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "jobs" / "expect.py"), run_name="__main__")
    assert ended.value.code in (0, None)
    assert "all hold" in capsys.readouterr().out


# The pages.


@pytest.mark.slow
def test_the_pages_read_in_a_browser(
    spark: SparkSession, lake: Settings, invoke: Invoke, tmp_path: Path
) -> None:
    invoke("gold.user_transactions_5m")
    damage(spark, lake, "gold.user_transactions_5m")
    invoke("gold.user_transactions_5m")
    index = tmp_path / "expectations" / "gx" / "uncommitted" / "data_docs" / "local_site" / "index.html"
    assert "gold.user_transactions_5m" in chromium(tmp_path, "--dump-dom", index.as_uri())
    wrong = max(index.parent.glob("validations/**/*.html"))  # by the time of the run, which is in its name
    page = chromium(tmp_path, "--dump-dom", wrong.as_uri())
    assert "every window has a transaction" in page
    assert re.search(r"Unsuccessful Expectations\D+1\D", page)


def chromium(tmp_path: Path, *arguments: str) -> str:
    name = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert name is not None, "scripts/browser.sh installs Chromium, which the pages are looked at with"
    options = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--virtual-time-budget=2000",
        f"--user-data-dir={tmp_path / 'chromium'}",
    ]
    ended = subprocess.run(
        [name, *options, *arguments], capture_output=True, text=True, timeout=300, check=True
    )
    return ended.stdout
