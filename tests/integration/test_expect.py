"""Suites over what the pipeline makes: they hold, and the right expectation catches a damaged row.

The pages are looked at in a real, headless Chromium.
"""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from lakehouse.commands import expect
from lakehouse.errors import TableError
from lakehouse.quality.checking import check, make_context, suite_of
from lakehouse.quality.report import TableReport
from lakehouse.quality.subjects import Lake, Subject, subjects
from lakehouse.runner import utc_now
from lakehouse.settings import Settings
from lakehouse.streams import STREAMS
from tests import pipeline
from tests.processes import BIN, QUICK_JVM, finish, submit

COORDINATES = ("topic", "partition", "offset")
DAMAGES: Mapping[str, tuple[tuple[str, ...], str | None, str]] = {
    "bronze.metrics_events": (COORDINATES, None, "keys are unique"),
    "bronze.call_analytics": (
        COORDINATES,
        "timestamp_type = 2",
        "timestamps are the producer's (0) or the broker's (1)",
    ),
    "bronze.call_metrics": (
        COORDINATES,
        "ingested_at = ingested_at + INTERVAL 1 DAY",
        "nothing has landed in the future",
    ),
    "bronze.sales_events": (COORDINATES, "timestamp = NULL", "what is required is there"),
    "bronze.transactions": (
        COORDINATES,
        "headers = array(named_struct('key', CAST(NULL AS STRING), 'value', CAST(NULL AS BINARY)))",
        "headers have keys",
    ),
    "silver.metrics_events": (COORDINATES, "value = double('NaN')", "values are finite"),
    "silver.call_analytics": (COORDINATES, "user1 = ''", "required texts are not empty"),
    "silver.call_metrics": (
        COORDINATES,
        "event_time = event_time + INTERVAL 1 DAY",
        "no event is further ahead than is tolerated",
    ),
    "silver.sales_events": (COORDINATES, "product = NULL", "what is required is there"),
    "silver.transactions": (COORDINATES, "amount = -amount", "amounts are above zero"),
    "silver.dead_letters": (("id",), "status = 'lost'", "statuses are known"),
    "gold.metrics_1m": (
        ("service_id", "metric_name", "window_start"),
        "p50 = max + 1",
        "percentiles rise from minimum to maximum",
    ),
    "gold.metrics_summary_10m": (
        ("environment", "metric_name", "window_start"),
        "window_end = window_end + INTERVAL 1 MINUTE",
        "windows are 600 s long",
    ),
    "gold.call_records": (
        ("user1", "user2", "ts"),
        "closed_at = NULL",
        "open calls and only these have no closed_at",
    ),
    "gold.product_sales": (
        ("product",),
        "total = total - 1",
        "totals go down only by a tombstone or a return",
    ),
    "gold.sales_notifications": (
        ("product", "partition", "offset"),
        "value = 1",
        "totals have reached the threshold",
    ),
    "gold.user_transactions_5m": (
        ("user_id", "window_start"),
        "count = 0",
        "every window has a transaction",
    ),
}
"""By table: its key, what is done to one row (null: it is there twice), and the expectation that says so."""

Invoke = Callable[..., Result]


@pytest.fixture(scope="module")
def every(filled_lake: Settings) -> dict[str, Subject]:
    return {subject.name: subject for subject in subjects(STREAMS, filled_lake)}


def checked(spark: SparkSession, settings: Settings, every: Mapping[str, Subject], name: str) -> TableReport:
    suite = suite_of(every[name])
    assert suite is not None
    lake = Lake(spark, list(every.values()), settings, utc_now())
    return check(every[name], suite, lake, make_context())


def broken(report: TableReport) -> set[str]:
    assert not report.has_errors, report
    return {one.expectation for one in report.findings if not one.success}


@contextmanager
def damaged(spark: SparkSession, settings: Settings, name: str) -> Iterator[dict[str, Any]]:
    """One row, the last by its key; the table is put back to its version at the end."""
    keys, change, _ = DAMAGES[name]
    path, version = pipeline.path_of(settings, name), pipeline.version_of(settings, name)
    types = dict(spark.read.format("delta").load(str(path)).dtypes)
    row = max(pipeline.rows_of(spark, settings, name), key=lambda row: [row[key] for key in keys])
    same = " AND ".join(
        f"unix_micros({key}) = {row[key]}" if types[key] == "timestamp" else f"{key} = {row[key]!r}"
        for key in keys
    )
    try:
        if change is None:
            spark.sql(f"INSERT INTO delta.`{path}` SELECT * FROM delta.`{path}` WHERE {same}")
        else:
            spark.sql(f"UPDATE delta.`{path}` SET {change} WHERE {same}")
        yield row
    finally:
        spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF {version}")


@pytest.mark.slow
def test_every_suite_holds_on_what_the_pipeline_makes(
    spark: SparkSession, filled_lake: Settings, every: Mapping[str, Subject]
) -> None:
    assert set(every) == set(DAMAGES)
    for name in every:
        report = checked(spark, filled_lake, every, name)
        assert broken(report) == set(), report
        assert report.rows > 0
        assert report.version == pipeline.version_of(filled_lake, name)


def views_of(spark: SparkSession) -> set[str]:
    """The session's temporary views, which SHOW TABLES lists among the tables of any database."""
    return {row.viewName for row in spark.sql("SHOW VIEWS").where("isTemporary").collect()}


@pytest.mark.slow
@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_row_is_caught_by_the_expectation_that_it_breaks_and_named(
    spark: SparkSession, filled_lake: Settings, every: Mapping[str, Subject], name: str
) -> None:
    keys, _, expected = DAMAGES[name]
    before = views_of(spark)
    with damaged(spark, filled_lake, name) as row:
        report = checked(spark, filled_lake, every, name)

    assert views_of(spark) == before
    assert broken(report) == {expected}
    (finding,) = [one for one in report.findings if not one.success]
    assert finding.severity == "fail"
    assert finding.unexpected == 1
    (example,) = finding.examples
    assert {key: as_moment(example[key]) for key in keys} == {key: row[key] for key in keys}


def as_moment(value: Any) -> Any:
    """A value of an example, a time in microseconds as the rows of these tests have it."""
    is_time = isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", value)
    return pipeline.micros(datetime.fromisoformat(value)) if is_time else value


# The command.


@pytest.fixture
def invoke(
    spark: SparkSession, filled_lake: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Invoke:
    """Run `lakehouse expect` on the worker's Spark, with pages of its own."""
    for name, value in environment_of(filled_lake, tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(expect, "start_session", lambda *_: nullcontext(spark))
    return lambda *arguments: CliRunner().invoke(expect.app, [*arguments])


def environment_of(settings: Settings, home: Path) -> dict[str, str]:
    return {"LAKEHOUSE_HOME": str(home), "LAKEHOUSE_LAKE": settings.lake, "COLUMNS": "250"}


@pytest.mark.slow
def test_the_command_says_what_holds_what_does_not_and_how_it_went_before(
    spark: SparkSession, filled_lake: Settings, invoke: Invoke
) -> None:
    tables = ["gold.product_sales", "user_transactions_5m"]
    version = pipeline.version_of(filled_lake, "gold.user_transactions_5m")
    good = invoke(*tables)
    assert good.exit_code == 0, good.output
    assert "all hold" in good.output

    with damaged(spark, filled_lake, "gold.user_transactions_5m") as row:
        bad = invoke(*tables)
        as_json = invoke(*tables, "--format", "json")
        before = invoke("gold.user_transactions_5m", "--version", str(version))
    assert (bad.exit_code, as_json.exit_code, before.exit_code) == (1, 1, 0)
    assert "1 do NOT hold" in bad.output
    assert f"every window has a transaction: user_id={row['user_id']}, window_start=" in bad.output
    reports = {one["table"]: one for one in json.loads(as_json.stdout)}
    assert {name: report["success"] for name, report in reports.items()} == {
        "gold.product_sales": True,
        "gold.user_transactions_5m": False,
    }

    lately = invoke("gold.user_transactions_5m", "--since", "2999-01-01T00:00:00Z", "--format", "json")
    (report,) = json.loads(lately.stdout)
    assert (lately.exit_code, report["rows"], report["success"]) == (0, 0, True)
    assert {one["expectation"] for one in report["findings"] if not one["success"]} == {
        "there are rows of lately"
    }

    trend = invoke("gold.product_sales", "user_transactions_5m", "--history")
    assert trend.exit_code == 0
    line = next(line for line in trend.stdout.splitlines() if "every window has a transaction" in line)
    assert "✓✗✗✓✓" in line
    assert "3 of 5" in line
    results = pipeline.rows_of(spark, filled_lake, "ops.expectation_results")
    assert len({row["run_id"] for row in results}) == 5
    failed = [row for row in results if not row["success"] and row["severity"] == "fail"]
    assert {(row["table"], row["expectation"], row["unexpected"]) for row in failed} == {
        ("gold.user_transactions_5m", "every window has a transaction", 1)
    }


@pytest.mark.slow
def test_what_cannot_be_looked_at_ends_with_2_and_a_wrong_name_with_the_known_ones(
    filled_lake: Settings, invoke: Invoke, tmp_path: Path
) -> None:
    directory = pipeline.path_of(filled_lake, "gold.user_transactions_5m")
    files = sorted(directory.glob("part-*.parquet"))
    for file in files:
        file.rename(tmp_path / file.name)
    try:
        ended = invoke("gold.user_transactions_5m")
    finally:
        for file in files:
            (tmp_path / file.name).rename(file)
    assert ended.exit_code == 2, ended.output
    assert "gold.user_transactions_5m: the table can be read: " in ended.output
    assert "1 could NOT be looked at" in ended.output

    with pytest.raises(TableError, match=r"no table or layer is called golden; there are bronze, silver"):
        expect.expect(["golden"])
    with pytest.raises(TableError, match="name that table"):
        expect.expect(["gold"], version=1)


@pytest.mark.slow
def test_the_job_is_the_same(filled_lake: Settings, tmp_path: Path) -> None:
    ended = finish(
        submit("expect", "gold.product_sales"),
        {
            **environment_of(filled_lake, tmp_path),
            "PATH": f"{BIN}:/usr/local/bin:/usr/bin:/bin",
            "LAKEHOUSE_DRIVER_MEMORY": "1g",
            **QUICK_JVM,
        },
    )
    assert ended.returncode == 0, ended.stderr
    assert "all hold" in ended.stdout


# The pages.


@pytest.mark.slow
def test_the_pages_read_in_a_browser(
    spark: SparkSession, filled_lake: Settings, invoke: Invoke, tmp_path: Path
) -> None:
    invoke("gold.metrics_1m")
    with damaged(spark, filled_lake, "gold.metrics_1m"):
        invoke("gold.metrics_1m")
    invoke("gold.metrics_1m", "--history")
    pages = tmp_path / "expectations"

    history = pages / "history.html"
    dom = chromium(tmp_path, "--dump-dom", history.as_uri())
    assert "gold.metrics_1m" in dom
    assert '<i class="fail"' in dom
    chromium(tmp_path, f"--screenshot={tmp_path / 'history.png'}", "--window-size=1200,900", history.as_uri())
    width, height = struct.unpack(">II", (tmp_path / "history.png").read_bytes()[16:24])
    assert (width, height) == (1200, 900)

    index = pages / "gx" / "uncommitted" / "data_docs" / "local_site" / "index.html"
    assert "gold.metrics_1m" in chromium(tmp_path, "--dump-dom", index.as_uri())
    wrong = max(index.parent.glob("validations/**/*.html"))  # by the time of the run, which is in its name
    page = chromium(tmp_path, "--dump-dom", wrong.as_uri())
    assert "percentiles rise from minimum to maximum" in page
    assert re.search(r"Unsuccessful Expectations\D+1\D", page)


def chromium(tmp_path: Path, *arguments: str) -> str:
    name = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert name is not None, "make setup installs Chromium, which the pages are looked at with"
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
