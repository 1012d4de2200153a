"""Backlogs, versions and words of health of a real lake that is not running; numbers counted by hand.

The archive has two micro-batches of every query of bronze, silver and gold and none of the export
(tests/fixtures/make_lake.py); its topics are gone.
"""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable

from lakehouse.settings import Settings, load_settings
from lakehouse.streams import STREAMS
from lakehouse.telemetry import (
    EventTimes,
    Health,
    LayerLag,
    Observation,
    Observer,
    PartitionLag,
    QueryState,
    Run,
    StreamState,
    TableState,
    Word,
    observe,
    runs,
)
from tests import old_lakes, pipeline

NOW = pipeline.utc("2026-11-22T09:00:00")
NOBODY = "127.0.0.1:1"


@pytest.fixture
def lake(tmp_path: Path) -> Settings:
    update = {"kafka_bootstrap_servers": NOBODY, "home": tmp_path / "home"}
    return old_lakes.unpack(load_settings(), tmp_path).model_copy(update=update)


def seen(settings: Settings, stream: str, now: datetime = NOW) -> StreamState:
    (found,) = (one for one in observe(STREAMS, settings, now).streams if one.name == stream)
    return found


def layer(state: StreamState, query: str) -> LayerLag:
    (found,) = (one for one in state.layers if one.query == query)
    return found


def step_back(settings: Settings, query: str) -> None:
    """Take a query's last micro-batch out of its checkpoint and its transaction out of what it fills."""
    pipeline.forget_last_commit(settings, query)
    (pipeline.checkpoint_of(settings, query) / "offsets" / "1").unlink()
    log = sorted((pipeline.path_of(settings, query) / "_delta_log").glob("*.json"))[-1]
    log.unlink()


def test_what_has_caught_up_reads_zero_exactly(lake: Settings) -> None:
    lags = [lag for state in observe(STREAMS, lake, NOW).streams for lag in state.layers]
    assert {(lag.query, lag.records, lag.seconds, lag.commits) for lag in lags if lag.layer != "export"} == {
        (query, 0, 0.0, 0) for query in old_lakes.QUERIES if not query.startswith("bronze.")
    }


def test_silver_that_is_a_micro_batch_behind_lacks_its_records(lake: Settings) -> None:
    step_back(lake, "silver.metrics_events")
    assert layer(seen(lake, "metrics"), "silver.metrics_events") == LayerLag(
        layer="silver",
        query="silver.metrics_events",
        source="bronze.metrics_events",
        records=4,
        seconds=(NOW - pipeline.utc("2026-11-22T08:13:00.200")).total_seconds(),
        commits=1,
    )


def test_a_micro_batch_that_is_written_is_not_waited_for_though_its_checkpoint_does_not_say_so(
    lake: Settings,
) -> None:
    pipeline.forget_last_commit(lake, "silver.metrics_events")
    assert layer(seen(lake, "metrics"), "silver.metrics_events").records == 0


def test_a_query_without_a_checkpoint_has_everything_before_it(lake: Settings) -> None:
    shutil.rmtree(pipeline.checkpoint_of(lake, "gold.call_records"))
    lags = [lag for lag in seen(lake, "calls").layers if lag.query == "gold.call_records"]
    assert [(lag.source, lag.records) for lag in lags] == [
        ("silver.call_analytics", 3),
        ("silver.call_metrics", 3),
    ]
    assert layer(seen(lake, "metrics"), "export.metrics_1m").records == 5


@pytest.mark.parametrize(
    ("version", "index", "is_starting", "records"),
    [
        (1, -1, False, 42),  # nothing read
        (1, 0, False, 42 - 13),  # the first of two files
        (1, 1, False, 4),
        (2, -1, False, 4),
        (2, 0, False, 3),
        (3, -1, False, 0),
        (1, -1, True, 42),  # the table as it stood in version 1, the oldest file first
        (1, 0, True, 42 - 13),
        (2, 0, True, 42 - 13),
        (2, 3, True, 0),
    ],
)
def test_a_place_within_a_table_leaves_the_files_behind_it(
    lake: Settings, version: int, index: int, is_starting: bool, records: int
) -> None:
    step_back(lake, "silver.metrics_events")
    plan = pipeline.checkpoint_of(lake, "silver.metrics_events") / "offsets" / "0"
    *header, place = plan.read_text().splitlines()
    changed = json.loads(place) | {
        "reservoirVersion": version,
        "index": index,
        "isStartingVersion": is_starting,
    }
    plan.write_text("\n".join([*header, json.dumps(changed)]))
    assert layer(seen(lake, "metrics"), "silver.metrics_events").records == records


def test_an_export_counts_the_rows_of_the_change_feed(lake: Settings) -> None:
    export = pipeline.checkpoint_of(lake, "export.metrics_1m")
    shutil.copytree(pipeline.checkpoint_of(lake, "gold.metrics_1m"), export)
    for number, version in ((0, 1), (1, 2)):
        place = {
            "sourceVersion": 1,
            "reservoirId": "6881592c-393c-4a85-abe5-6f7835edc8f8",
            "reservoirVersion": version,
            "index": -1,
            "isStartingVersion": False,
        }
        plan = export / "offsets" / str(number)
        plan.write_text("\n".join([*plan.read_text().splitlines()[:2], json.dumps(place)]))
    lag = layer(seen(lake, "metrics"), "export.metrics_1m")
    assert (lag.records, lag.commits) == (3 * 2 + 2, 1)  # three updated, two inserted


def test_a_table_whose_commits_are_gone_has_a_reason_in_place_of_a_number(lake: Settings) -> None:
    step_back(lake, "silver.metrics_events")
    path = pipeline.path_of(lake, "bronze.metrics_events")
    DeltaTable(str(path)).create_checkpoint()
    pipeline.forget_commits(path, before=3)
    lag = layer(seen(lake, "metrics"), "silver.metrics_events")
    assert (lag.records, lag.seconds) == (None, None)
    assert lag.reason is not None
    assert "log retention has removed commits" in lag.reason


def test_a_stream_says_its_tables_queries_and_times(lake: Settings) -> None:
    state = seen(lake, "transactions")
    assert state.tables[:2] == (
        TableState("bronze.transactions", 2, pipeline.utc("2026-11-22T08:13:04.234"), 4, 14080, 15),
        TableState("silver.transactions", 2, pipeline.utc("2026-11-22T08:13:20.316"), 4, 8157, 12),
    )
    assert state.event_times == (
        EventTimes(
            "silver.transactions",
            pipeline.utc("2026-11-20T10:11:40"),
            pipeline.utc("2026-11-13T10:11:40"),
        ),
    )
    assert state.freshness_s == (NOW - pipeline.utc("2026-11-20T10:11:40")).total_seconds()
    assert state.queries[2] == QueryState(
        "gold.user_transactions_5m",
        "gold",
        1,
        pipeline.utc("2026-11-22T08:13:28.189"),
        1,
        pipeline.utc("2026-11-22T08:13:43.921"),
    )
    assert state.gate is None


def test_open_dead_letters_are_counted_by_stream(lake: Settings) -> None:
    states = observe(STREAMS, lake, NOW).streams
    assert {state.name: state.open_letters for state in states} == {
        "metrics": 3,
        "calls": 2,
        "sales": 1,
        "transactions": 3,
    }


def test_a_broker_that_is_away_takes_nothing_but_its_own_numbers(lake: Settings) -> None:
    observation = observe(STREAMS, lake, NOW)
    assert observation.lake_reason is None
    assert observation.broker_reason is not None
    assert "nothing accepts connections there" in observation.broker_reason
    reason = observation.broker_reason
    assert observation.streams[0].partitions == (
        PartitionLag("metrics-events-2026-11", 0, 28, None, None, None, reason),
        PartitionLag("metrics-events-2026-11", 1, 14, None, None, None, reason),
    )


def test_where_there_is_no_lake_yet_that_is_the_reason(tmp_path: Path) -> None:
    settings = load_settings().model_copy(
        update={"lake": str(tmp_path / "lake"), "kafka_bootstrap_servers": NOBODY}
    )
    observation = observe(STREAMS, settings, NOW)
    assert observation.lake_reason == f"there is no lake at {tmp_path / 'lake'} yet"
    assert [(state.health.word, state.layers, state.tables) for state in observation.streams] == [
        (Word.UNKNOWN, (), ())
    ] * 4
    elsewhere = observe(STREAMS, settings.model_copy(update={"lake": "s3a://bucket/lake"}), NOW)
    assert elsewhere.lake_reason == "the lake at s3a://bucket/lake is not on a file system of this machine"


def test_a_lake_without_tables_is_empty_and_waits_for_nothing(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    settings = load_settings().model_copy(
        update={"lake": str(tmp_path / "lake"), "kafka_bootstrap_servers": NOBODY}
    )
    metrics = seen(settings, "metrics")
    assert {(lag.records, lag.seconds) for lag in metrics.layers} == {(0, 0.0)}
    assert (metrics.tables, metrics.open_letters, metrics.newest_event) == ((), 0, None)


def test_what_is_committed_between_two_looks_is_seen_by_the_second(lake: Settings) -> None:
    log = pipeline.path_of(lake, "bronze.metrics_events") / "_delta_log" / f"{2:020}.json"
    kept = log.read_bytes()
    log.unlink()
    observer = Observer(STREAMS, lake)
    first = observer.observe(NOW).streams[0].tables[0]
    log.write_bytes(kept)
    second = observer.observe(NOW).streams[0].tables[0]
    assert [(state.version, state.files, state.rows) for state in (first, second)] == [(1, 2, 38), (2, 4, 42)]


def test_a_table_that_is_made_anew_is_read_from_its_beginning(lake: Settings) -> None:
    observer = Observer(STREAMS, lake)
    observer.observe(NOW)
    path = pipeline.path_of(lake, "bronze.metrics_events")
    shutil.rmtree(path)
    shutil.copytree(pipeline.path_of(lake, "bronze.transactions"), path)
    assert observer.observe(NOW).streams[0].tables[0].rows == 15


def word_of(observation: Observation, stream: str) -> tuple[Word, datetime | None]:
    (health,) = (one.health for one in observation.streams if one.name == stream)
    return health.word, health.since


ALL = ("bronze", "silver", "gold", "export")


def keep_running(settings: Settings, *layers: str) -> None:
    """Let a process of another host have given a sign of life just now."""
    run = Run("elsewhere", 7, layers, ("metrics",), NOW - timedelta(hours=1), NOW, None)
    file = runs.file_of(settings.home, run.host, run.pid)
    file.parent.mkdir(parents=True)
    file.write_text(runs.as_json(run))


def test_rows_that_wait_too_long_for_a_query_that_writes_nothing_stall_the_stream(lake: Settings) -> None:
    keep_running(lake, *ALL)
    word, since = word_of(observe(STREAMS, lake, NOW), "metrics")
    assert word is Word.STALLED
    assert since is not None
    assert since.replace(microsecond=0) == pipeline.utc("2026-11-22T08:13:28")


def test_rows_that_wait_for_a_layer_that_nobody_runs_stop_the_stream(lake: Settings) -> None:
    step_back(lake, "silver.metrics_events")
    keep_running(lake, "bronze", "gold", "export")
    state = seen(lake, "metrics")
    assert [run.layers for run in state.runs] == [("bronze", "gold", "export")]
    assert state.health == Health(
        Word.STOPPED,
        "4 rows of bronze.metrics_events wait for silver.metrics_events, which no process has run since "
        "2026-11-22 08:12:19 UTC",
        pipeline.utc("2026-11-22T08:13:00.200"),
    )


def test_a_broker_that_is_away_leaves_a_stream_unknown_unless_it_is_worse(lake: Settings) -> None:
    keep_running(lake, *ALL)
    early = pipeline.utc("2026-11-22T08:13:50")
    assert word_of(observe(STREAMS, lake, early), "metrics")[0] is Word.UNKNOWN


def test_a_lake_with_a_checkpoint_in_its_log_is_read_from_there(lake: Settings) -> None:
    path = pipeline.path_of(lake, "silver.metrics_events")
    before = seen(lake, "metrics")
    DeltaTable(str(path)).create_checkpoint()
    for version in (0, 1):
        (path / "_delta_log" / f"{version:020}.json").unlink()
    after = seen(lake, "metrics")
    assert (after.tables, after.event_times, after.layers) == (
        before.tables,
        before.event_times,
        before.layers,
    )


def test_freshness_is_counted_from_the_newest_event(lake: Settings) -> None:
    later = NOW + timedelta(hours=1)
    state = seen(lake, "sales", later)
    assert state.newest_event == datetime(2026, 11, 22, 8, 12, 58, 790000, tzinfo=UTC)
    assert state.freshness_s == 6421.21
