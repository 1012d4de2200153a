"""Commands that change or inspect a lake, as `lakehouse` runs them, on a small lake of metrics."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, TopicPartition
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakehouse.common.events import EventLog, Kind, note, noting
from lakehouse.common.state_files import write_whole
from lakehouse.dev.services.services import Endpoints
from lakehouse.engine.ops_tables.event_table import append, newest
from lakehouse.engine.runtime.runner import utc_now
from lakehouse.operations.quality import results
from lakehouse.operations.telemetry import QueryRun, Run
from lakehouse.operations.telemetry.runs import as_json, file_of
from lakehouse.serving.security.tokens import Scope, Tokens
from lakehouse.settings import Settings
from lakehouse.storage.tables import direct
from tests.support import pipeline
from tests.support.commands import Ended, run_command
from tests.support.pipeline import BRONZE, GOLD, SILVER, Raw
from tests.support.processes import Place, place
from tests.support.streams import METRICS, under

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
NOWHERE = Endpoints("127.0.0.1:1", "redis://127.0.0.1:1/0")
LATENESS = {"LAKEHOUSE_STREAM_DEFAULTS_ALLOWED_LATENESS": "30m"}

Command = Callable[..., Ended]


# It clears the screen, reverses text, contains markup, and begins a line that looks like a log entry.
HOSTILE = "s\x1b[2J\x1b[1;1H\x9b2J\u202e\u2066[red]x[/]\n2026-11-26 00:00:00 INFO clean\r\x7f"
SHOWN = r"s\x1b[2J\x1b[1;1H\x9b2J\u{202e}\u{2066}[red]x[/]\n2026-11-26 00:00:00 INFO clean\r\x7f"


def event(at: datetime, value: float) -> Raw:
    record = {
        "serviceId": HOSTILE,
        "metricName": "m",
        "value": value,
        "timestamp": int(at.timestamp() * 1000),
    }
    return Raw(json.dumps(record).encode())


RECORDS = (
    event(NOON - 3 * HOUR, 1.0),
    event(NOON - 3 * HOUR, 2.0),
    event(NOON - HOUR, 4.0),
    event(NOON, 8.0),  # dated an hour after its landing
    Raw(b"\x1b[2J", b"k", ((HOSTILE, HOSTILE.encode()),)),
)
WINDOWS = {NOON - 3 * HOUR: (2, 3.0), NOON - HOUR: (1, 4.0)}
"""The rows of gold.metrics_1m by window_start: count and sum."""


@pytest.fixture(scope="module")
def base(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Place:
    here = Place(tmp_path_factory.mktemp("commands"), NOWHERE, NOWHERE.redis, "x")
    settings = here.settings({"stream_defaults.allowed_lateness_s": 1800})
    pipeline.land(spark, settings, [RECORDS], landed_at=NOON - HOUR)
    pipeline.run_layers(spark, settings, "silver", "gold", stream=under(settings, METRICS))
    return here


@pytest.fixture
def settings(base: Place, tmp_path: Path) -> Settings:
    """Return the settings of a copy of the lake."""
    shutil.copytree(base.home, tmp_path / "home")
    return Place(tmp_path / "home", NOWHERE, NOWHERE.redis, "x").settings()


@pytest.fixture
def lakehouse(nameless: SparkSession, settings: Settings) -> Command:
    """Run a command on that copy with the lateness it was made with; keywords are further variables."""
    here = Place(settings.home, NOWHERE, NOWHERE.redis, "x")

    def run(*arguments: str, **variables: str) -> Ended:
        return run_command(here.environment | LATENESS | variables, *arguments, spark=nameless)

    return run


def windows(settings: Settings) -> Mapping[datetime, tuple[int, float]]:
    return {
        datetime.fromtimestamp(row["window_start"] / 1e6, UTC): (row["count"], row["sum"])
        for row in pipeline.rows_of(settings, GOLD)
    }


def statuses(settings: Settings) -> Mapping[str, str]:
    letters = pipeline.rows_of(settings, pipeline.DEAD_LETTERS)
    return {reason["rule"]: letter["status"] for letter in letters for reason in letter["reasons"]}


def test_dead_letters_are_listed_shown_replayed_and_discarded(settings: Settings, lakehouse: Command) -> None:
    listed = lakehouse("dead-letters", "list", "--format", "json")
    assert listed.returncode == 0, listed.stderr
    found = json.loads(listed.stdout)
    assert [(row["rule"], row["status"], row["count"]) for row in found["counts"]] == [
        ("future", "open", 1),
        ("not_json", "open", 1),
    ]
    (letter,) = [one["id"] for one in found["letters"] if one["rules"] == ["not_json"]]

    shown = lakehouse("dead-letters", "show", letter[:12], "--format", "json")
    assert shown.returncode == 0, shown.stderr
    whole = json.loads(shown.stdout)
    assert (whole["id"], whole["key"], whole["value"], whole["offset"]) == (letter, "k", r"\x1b[2J", 4)
    nobody = lakehouse("dead-letters", "show", "nobody")
    assert nobody.returncode == 1
    assert nobody.stderr.startswith("error: there is no dead letter whose id begins with 'nobody'")

    nowhere = lakehouse("dead-letters", "list", "--topic", "metrics-event")
    assert nowhere.returncode == 1
    named = settings.topic("metrics-events")
    assert nowhere.stderr == f"error: no topic 'metrics-event': did you mean {named}?\n"

    replayed = lakehouse("dead-letters", "replay", "--all", LAKEHOUSE_STREAM_DEFAULTS_FUTURE_TOLERANCE="2h")
    assert replayed.stdout.splitlines() == [
        "1 passed and are now in silver",
        "0 were already in silver",
        "1 still fail: not_json 1",
    ], replayed.stderr
    assert statuses(settings) == {"future": "replayed", "not_json": "open"}
    assert {row["offset"] for row in pipeline.rows_of(settings, SILVER)} == {0, 1, 2, 3}
    (admitted,) = [one["id"] for one in found["letters"] if one["rules"] == ["future"]]
    shown = lakehouse("dead-letters", "show", admitted, "--format", "json")
    assert shown.returncode == 0, shown.stderr
    times = json.loads(shown.stdout)["admitted"]
    assert list(times) == ["after", "at"]
    table = lakehouse("dead-letters", "show", admitted, COLUMNS="200").stdout
    assert f"{times['at']}, after the records that landed up to {times['after']}" in table

    discarded = lakehouse("dead-letters", "discard", "--rule", "not_json")
    assert discarded.stdout.splitlines() == ["1 discarded: not_json 1"], discarded.stderr
    assert statuses(settings) == {"future": "replayed", "not_json": "discarded"}
    replay, discard = newest(settings.lake, limit=10)
    assert (replay.kind, replay.message) == ("replay", "1 passed and are now in silver, 1 still fail")
    assert (discard.kind, discard.message) == ("discard", "1 discarded")
    assert json.loads(discard.details or "")["selection"] == {"rule": "not_json"}


def test_a_catch_up_that_refuses_too_much_says_what_and_why_and_exits_with_3(
    spark: SparkSession, settings: Settings, lakehouse: Command
) -> None:
    odd = Raw(b'{"serviceId":"a","metricName":"m","value":"12\\u202e"}')
    records = [Raw(b"{")] * 991 + [odd] * 8 + [event(NOON - HOUR, 1.0)]
    pipeline.land(spark, settings, [records], landed_at=NOON - HOUR, first_offset=100)
    topic = settings.topic(METRICS.sources[0].topic)
    silver = ("run", "silver", "--stream", "metrics", "--trigger", "available-now")

    ended = lakehouse(*silver)

    share = "silver.metrics_events: 999 of 1,000 records refused (99.9 %)"
    causes = [
        f"991 not_json, such as {topic}/0/100: the value is not valid JSON: {{",
        (
            f"8 wrong_type of value, such as {topic}/0/1091: value must be a number, not a string: "
            r'"12\u{202e}"'
        ),
    ]
    assert ended.returncode == 3, ended.stderr
    assert ended.stdout.splitlines()[-4:] == [share, *(f"  {cause}" for cause in causes), "caught up"]
    assert ended.stderr == (
        f"error: {share} in this run, more than run.refused_limit allows (5 %): {'; '.join(causes)}. "
        "`lakehouse dead-letters list --stream metrics` shows them\n"
    )
    (noted,) = newest(settings.lake, limit=10, kinds=[Kind.REFUSED])
    assert (noted.stream, noted.table, noted.message) == ("metrics", "silver.metrics_events", share)
    state = json.loads(lakehouse("status", "--stream", "metrics", "--format", "json").stdout)["streams"][0]
    assert state["refused"][0]["causes"] == ["991 not_json", "8 wrong_type of value"]
    assert state["health"]["word"] != "well"
    again = lakehouse(*silver)  # nothing to judge, nothing to refuse
    assert (again.returncode, again.stdout.splitlines()[-1]) == (0, "caught up"), again.stderr
    pipeline.land(spark, settings, [records], landed_at=NOON - HOUR, first_offset=2000)
    allowed = lakehouse(*silver, LAKEHOUSE_RUN_REFUSED_LIMIT="1")
    assert (allowed.returncode, allowed.stdout.splitlines()[-1]) == (0, "caught up"), allowed.stderr


@pytest.mark.soak
def test_rebuild_gold_puts_right_what_differs_and_takes_away_what_nothing_made(
    spark: SparkSession, settings: Settings, lakehouse: Command
) -> None:
    assert windows(settings) == WINDOWS
    gold = f"delta.`{pipeline.path_of(settings, GOLD)}`"
    spark.sql(f"UPDATE {gold} SET count = 99 WHERE count = 2")
    one = spark.table(gold).where("count = 1").withColumn("service_id", F.lit("nobody"))
    one.write.format("delta").mode("append").save(str(pipeline.path_of(settings, GOLD)))

    refused = lakehouse("rebuild", "gold", "--stream", "metrics")
    done = lakehouse("rebuild", "gold", "--stream", "metrics", "--force")

    assert refused.returncode == 1
    assert refused.stderr.startswith("error: gold.metrics_1m would lose 1 of its 3 rows")
    assert done.returncode == 0, done.stderr
    made, cost = "2 rows recomputed from silver", "up to 0.0 MB in files; writes to"
    told = [
        f"gold.metrics_1m: {made}; 1 corrected, 1 deleted, the others untouched",
        f"gold.metrics_summary_10m: {made}; 0 corrected, 0 deleted, the others untouched",
    ]
    costs = [
        f"gold.{name} is recomputed from silver.metrics_events: {cost} gold.{name} wait until this is done"
        for name in ("metrics_1m", "metrics_summary_10m")
    ]
    assert done.stdout.splitlines() == [costs[0], told[0], costs[1], told[1]]
    refusal, *rebuilt = newest(settings.lake, limit=10)
    assert refusal.kind == "refusal"
    assert refusal.message.startswith("lakehouse rebuild gold ended: gold.metrics_1m would lose 1 of its 3")
    assert [(event.kind, event.stream, event.message) for event in rebuilt] == [
        ("rebuild", "metrics", line) for line in told
    ]
    assert windows(settings) == WINDOWS


@pytest.mark.soak
def test_rebuild_silver_judges_again_by_todays_settings_and_gold_follows(
    spark: SparkSession, settings: Settings, lakehouse: Command
) -> None:
    before, rebuild = pipeline.versions(settings), ("rebuild", "silver", "--stream", "metrics")
    tried = lakehouse(*rebuild, "--dry-run", LAKEHOUSE_STREAM_DEFAULTS_FUTURE_TOLERANCE="2h")
    assert pipeline.versions(settings) == before
    done = lakehouse(*rebuild, LAKEHOUSE_STREAM_DEFAULTS_FUTURE_TOLERANCE="2h")

    assert (tried.returncode, done.returncode) == (0, 0), done.stderr
    told = (
        "silver of metrics: 5 records validated again; 1 rows inserted, 0 changed, 0 removed; 0 newly "
        "refused, 1 newly accepted"
    )
    assert done.stdout.splitlines()[:2] == ["bronze.metrics_events is validated again: 0.0 MB in files", told]
    follow = "then gold.metrics_1m, gold.metrics_summary_10m would be rebuilt"
    assert tried.stdout.splitlines()[1:] == [f"dry run, no row was written: {told}; {follow}"]
    # A row that was only inserted is an append, which gold's own stream reads once.
    lateness = settings.changed({"stream_defaults.allowed_lateness_s": 1800})
    pipeline.run_layers(spark, lateness, "gold", stream=under(lateness, METRICS))
    assert windows(settings) == WINDOWS | {NOON: (1, 8.0)}
    assert statuses(settings) == {"future": "replayed", "not_json": "open"}


def test_maintain_clears_what_no_record_can_reach_any_more(settings: Settings, lakehouse: Command) -> None:
    done = lakehouse("maintain", "--stream", "metrics")

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:2] == [
        "gold.metrics_1m: fold state cleared in 1 rows that ended before 2026-03-01 10:30:00 UTC",
        "gold.metrics_summary_10m: fold state cleared in 1 rows that ended before 2026-03-01 10:30:00 UTC",
    ]
    kept = {row["count"]: row["sketch"] is not None for row in pipeline.rows_of(settings, GOLD)}
    assert kept == {2: False, 1: True}
    assert [(one.kind, one.table) for one in newest(settings.lake, limit=10)] == [
        ("maintenance", "gold.metrics_1m"),
        ("maintenance", "gold.metrics_summary_10m"),
    ]
    assert windows(settings) == WINDOWS


def test_without_a_gate_the_exit_code_of_status_is_0(lakehouse: Command) -> None:
    ended = lakehouse("status", "--exit-code", "--format", "json")

    assert ended.returncode == 0
    assert {stream["gate"] for stream in json.loads(ended.stdout)["streams"]} == {None}


def test_no_command_prints_text_of_others_as_it_is(settings: Settings, lakehouse: Command) -> None:
    """`run_command` refuses any output with an unprintable character; here the data is shown to hold some."""
    gate = {"stream": "metrics", "changed_at": NOON, "is_open": False, "reasons": [HOSTILE]}
    direct.append(settings.lake, replace(results.GATES, stats=()), [gate])
    with noting(EventLog(HOSTILE, partial(append, settings.lake), print)):
        note(Kind.FAILURE, HOSTILE, stream="metrics", details={HOSTILE: HOSTILE})
    queries = (QueryRun("silver.metrics_events", error=HOSTILE),)
    run = Run(HOSTILE[:9], 7, ("silver",), ("metrics",), utc_now(), utc_now(), None, queries)
    file_of(settings.home, "other", run.pid).parent.mkdir(exist_ok=True)
    write_whole(file_of(settings.home, "other", run.pid), as_json(run))
    Tokens(settings.home).add(HOSTILE, [Scope.READ])
    (letter,) = [one["id"] for one in pipeline.rows_of(settings, pipeline.DEAD_LETTERS) if one["key"] == b"k"]

    closed = ("status", "--exit-code")
    duck = ("sql", "SELECT service_id FROM gold.metrics_1m", "--engine", "duckdb")
    for command in (
        ("status", "--once", "--stream", "metrics"),
        ("events",),
        ("tokens", "list"),
        duck,
        (*duck, "--format", "csv"),
        duck[:2],
        ("dead-letters", "show", letter),
        closed,
    ):
        ended = lakehouse(*command, COLUMNS="500")
        assert ended.returncode == (command == closed), ended.stderr
        assert SHOWN in ended.stdout, command
    for command in (duck, ("events",), ("status", "--stream", "metrics")):
        ended = lakehouse(*command, "--format", "json")
        assert HOSTILE in _texts(json.loads(ended.stdout)), command
    refused = lakehouse("tokens", "remove", HOSTILE + "?")
    assert refused.stderr.startswith("error: there is no token s\\x1b[2J")


def _texts(value: object) -> list[str]:
    """Return every text in a JSON value."""
    if isinstance(value, dict):
        return [text for pair in value.items() for one in pair for text in _texts(one)]
    if isinstance(value, list):
        return [text for one in value for text in _texts(one)]
    return [value] if isinstance(value, str) else []


@pytest.mark.soak
def test_run_goes_on_behind_expired_records_only_where_that_is_allowed(
    spark: SparkSession, services: Endpoints, tmp_path: Path
) -> None:
    with place(tmp_path / "home", services, database=6) as here:
        settings = here.settings()
        catch_up = ("run", "bronze", "--stream", "metrics", "--trigger", "available-now")

        def run(*more: str) -> Ended:
            return run_command(here.environment, *catch_up, *more, spark=spark)

        def send(count: int) -> None:
            pipeline.send(settings, [Raw(event(NOON, 1.0).value, partition=0)] * count)

        send(2)
        assert run().returncode == 0
        send(2)
        expire(settings, before=3)

        refused = run()
        allowed = run("--allow", "data-loss")

        assert refused.returncode == 1
        assert refused.stderr.startswith("error: Kafka no longer has offsets ")
        assert "--allow data-loss" in refused.stderr
        assert allowed.returncode == 0, allowed.stderr
        assert "(allowed); noted in ops.data_losses" in allowed.stdout
        assert sorted(row["offset"] for row in pipeline.rows_of(settings, BRONZE)) == [0, 1, 3]
        (loss,) = pipeline.rows_of(settings, "ops.data_losses")
        assert (loss["partition"], loss["first_offset"], loss["last_offset"]) == (0, 2, 2)


def expire(settings: Settings, before: int) -> None:
    """Have the broker delete the records before an offset of the topic's first partition."""
    admin = KafkaAdminClient(bootstrap_servers=settings.kafka.bootstrap_servers)
    try:
        admin.delete_records({TopicPartition(settings.topic("metrics-events"), 0): before})
    finally:
        admin.close()
