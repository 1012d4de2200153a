"""Backlogs, versions and health from the logs of a lake that nobody runs; expected values counted by hand.

`lakes.caught_up` describes its contents. There is no broker, and the exports have sent nothing.
"""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable

from lakehouse.common.errors import StoreWord
from lakehouse.engine.progress import sent
from lakehouse.engine.records.dead_letters import DEAD_LETTERS
from lakehouse.operations.telemetry import (
    EventTimes,
    Health,
    LayerLag,
    Observation,
    Observer,
    PartitionLag,
    QueryState,
    Run,
    StoreState,
    StreamState,
    TableState,
    Word,
    observe,
    runs,
)
from lakehouse.settings import Settings, load_settings
from tests.support import log_lakes as lakes
from tests.support import pipeline
from tests.support.log_lakes import DAY, Logs, added, noting, removed
from tests.support.served_lakes import ServedLake, letter
from tests.support.streams import STREAMS

NOW = pipeline.utc("2026-11-22T09:00:00")
NOBODY = "127.0.0.1:1"
BRONZE, SILVER, GOLD, EXPORT = (
    "bronze.metrics_events",
    "silver.metrics_events",
    "gold.metrics_1m",
    "export.metrics_1m",
)
READS = f"{SILVER} reads {BRONZE}"
AT = DAY.format("08:20:00")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings().changed(
        {
            "lake": str(tmp_path / "lake"),
            "kafka.bootstrap_servers": NOBODY,
            "home": tmp_path / "home",
        }
    )


@pytest.fixture
def logs(settings: Settings) -> Logs:
    return lakes.caught_up(Path(settings.lake))


def seen(settings: Settings, stream: str, now: datetime = NOW) -> StreamState:
    (found,) = (one for one in observe(STREAMS, settings, now).streams if one.name == stream)
    return found


def layer(state: StreamState, query: str) -> LayerLag:
    (found,) = (one for one in state.layers if one.query == query)
    return found


def lag_of(settings: Settings, query: str) -> LayerLag:
    """Return what waits for a metrics query."""
    return layer(seen(settings, "metrics"), query)


def since(time_of_day: str) -> float:
    """Return the seconds from a time of day until now."""
    return (NOW - pipeline.utc(DAY.format(time_of_day))).total_seconds()


@pytest.mark.usefixtures("logs")
def test_what_has_caught_up_reads_zero_exactly(settings: Settings) -> None:
    lags = [lag for state in observe(STREAMS, settings, NOW).streams for lag in state.layers]
    assert {(lag.query, lag.records, lag.seconds, lag.commits) for lag in lags if lag.layer != "export"} == {
        (query, 0, 0.0, 0)
        for query in (*(f"silver.{one}" for one in lakes.SOURCES), *(f"gold.{one}" for one in lakes.GOLD))
    }


def test_silver_that_is_a_micro_batch_behind_lacks_its_records(settings: Settings, logs: Logs) -> None:
    logs.step_back(SILVER)
    assert lag_of(settings, SILVER) == LayerLag(
        layer="silver",
        query=SILVER,
        source=BRONZE,
        records=4,
        seconds=since("08:13:00.200"),
        commits=1,
    )


def test_a_micro_batch_is_not_waited_for_from_the_commit_on_that_has_its_rows(
    settings: Settings, logs: Logs
) -> None:
    logs.append(BRONZE, AT, (6, 1))
    observer = Observer(STREAMS, settings)
    assert layer(observer.observe(NOW).streams[0], SILVER).records == 7
    logs.append(SILVER, AT, (7,), {READS: 4})
    assert layer(observer.observe(NOW).streams[0], SILVER).records == 0


def test_a_micro_batch_that_was_killed_before_the_table_that_says_so_is_waited_for(
    settings: Settings, logs: Logs
) -> None:
    """Rows that silver refuses reach the dead letters first, which note the same position."""
    logs.step_back(SILVER)
    logs.create("silver.dead_letters", AT)
    of_letters = f"{SILVER} of {SILVER} reads {BRONZE}"
    logs.commit("silver.dead_letters", AT, noting({of_letters: 3}, AT))
    assert lag_of(settings, SILVER).records == 4


def test_a_query_that_has_noted_nothing_has_everything_before_it(settings: Settings, logs: Logs) -> None:
    shutil.rmtree(logs.path("gold.call_records"))
    lags = [lag for lag in seen(settings, "calls").layers if lag.query == "gold.call_records"]
    assert [(lag.source, lag.records, lag.seconds) for lag in lags] == [
        ("silver.call_analytics", 38, since("08:12:19")),  # the oldest file's age
        ("silver.call_metrics", 38, since("08:12:19")),
    ]
    assert lag_of(settings, EXPORT).records == 5


def test_each_table_that_a_query_reads_has_a_position_of_its_own(settings: Settings, logs: Logs) -> None:
    logs.append("silver.call_metrics", AT, (8,))
    lags = [lag for lag in seen(settings, "calls").layers if lag.query == "gold.call_records"]
    assert [(lag.source, lag.records) for lag in lags] == [
        ("silver.call_analytics", 0),
        ("silver.call_metrics", 8),
    ]


ALL_FILES = 1 << 62


@pytest.mark.parametrize(
    ("noted", "waiting"),
    [
        ({READS: 0}, (42, "08:12:00", 2)),
        ({READS: 1}, (42, "08:12:00", 2)),  # the first version has no rows
        ({READS: 2}, (4, "08:13:00.200", 1)),
        ({READS: 3}, (0, None, 0)),
        ({f"{READS}@1": 0}, (42, "08:11:58", 2)),  # it starts with the files of version 1, oldest first
        ({f"{READS}@1": 1}, (42 - 13, "08:11:59", 2)),
        ({f"{READS}@1": 2}, (4, "08:13:00.200", 1)),
        ({f"{READS}@2": 0}, (42, "08:11:58", 1)),
        ({f"{READS}@2": 3}, (3, "08:12:59.200", 1)),
        ({f"{READS}@2": 4}, (0, None, 0)),
        ({READS: 2, f"{READS}@1": ALL_FILES}, (4, "08:13:00.200", 1)),  # it began long ago
    ],
)
def test_what_lies_behind_a_position_waits(
    settings: Settings, logs: Logs, noted: dict[str, int], waiting: tuple[int, str | None, int]
) -> None:
    shutil.rmtree(logs.path(SILVER))
    logs.create(SILVER, AT)
    logs.append(SILVER, AT, (1,), noted)
    lag, (records, oldest, commits) = lag_of(settings, SILVER), waiting
    seconds = 0.0 if oldest is None else since(oldest)
    assert (lag.records, lag.seconds, lag.commits) == (records, seconds, commits)


def test_files_with_which_a_query_begins_are_those_of_their_version_whatever_became_of_them(
    settings: Settings, logs: Logs
) -> None:
    """Compaction has replaced all four files with one, which adds no rows."""
    shutil.rmtree(logs.path(SILVER))
    logs.create(SILVER, AT)
    logs.append(SILVER, AT, (13,), {f"{READS}@2": 1})
    old = [
        removed(f"{lakes.ms(DAY.format(at))}-{number}.parquet", rows, AT, change=False)
        for at, counts in (("08:12:00", (13, 25)), ("08:13:00.200", (1, 3)))
        for number, rows in enumerate(counts)
    ]
    logs.commit(BRONZE, AT, [*old, *added([42], AT, change=False)])
    lag = lag_of(settings, SILVER)
    assert (lag.records, lag.seconds, lag.commits) == (42 - 13, since("08:11:59"), 1)


def test_a_reader_of_appends_does_not_wait_for_what_a_commit_has_rewritten(
    settings: Settings, logs: Logs
) -> None:
    gone = removed(f"{lakes.ms(DAY.format('08:12:00'))}-0.parquet", 13, AT)
    logs.commit(BRONZE, AT, [gone, *added([12], AT)])
    logs.append(BRONZE, AT, (5,))
    lag = lag_of(settings, SILVER)
    assert (lag.records, lag.commits) == (5, 1)


def test_an_export_counts_the_rows_of_the_change_feed(settings: Settings, logs: Logs) -> None:
    logs.note_sent(GOLD, "metrics-aggregated-1m", 3)
    assert lag_of(settings, EXPORT) == LayerLag("export", EXPORT, GOLD, 0, 0.0, 0)
    logs.merge(GOLD, AT, updated=3, inserted=2)
    assert lag_of(settings, EXPORT) == LayerLag(
        "export", EXPORT, GOLD, records=3 * 2 + 2, seconds=since("08:20:00"), commits=1
    )


def test_an_export_that_is_beginning_with_a_large_table_has_the_other_files_before_it(
    settings: Settings, logs: Logs
) -> None:
    logs.note_sent(GOLD, "metrics-aggregated-1m", 2, files=1)
    assert lag_of(settings, EXPORT).records == 2


@pytest.mark.parametrize(
    "note", ['{"table": "another id", "version": 3, "files": null}', '{"table": "gold.metr', "", "[]"]
)
def test_a_note_of_another_table_or_one_that_was_cut_off_tells_of_nothing_sent(
    settings: Settings, logs: Logs, note: str
) -> None:
    logs.note_sent(GOLD, "metrics-aggregated-1m", 3).write_text(note)
    state = seen(settings, "metrics")
    assert layer(state, EXPORT).records == 5
    assert (state.queries[4].name, state.queries[4].done, state.queries[4].done_at) == (EXPORT, None, None)


def test_an_export_has_come_as_far_as_the_note_of_its_topic_says(settings: Settings, logs: Logs) -> None:
    """A table without a topic goes only to Redis, and its note is named after Redis."""
    logs.note_sent(GOLD, "another-topic", 3)
    assert lag_of(settings, EXPORT).records == 5
    logs.note_sent("gold.product_sales", "redis", 3)
    assert layer(seen(settings, "sales"), "export.product_sales").records == 0


def test_a_table_whose_commits_are_gone_has_a_reason_in_place_of_a_number(
    settings: Settings, logs: Logs
) -> None:
    logs.step_back(SILVER)
    DeltaTable(str(logs.path(BRONZE))).create_checkpoint()
    pipeline.forget_commits(logs.path(BRONZE), before=3)
    lag = lag_of(settings, SILVER)
    assert (lag.records, lag.seconds, lag.commits) == (None, None, None)
    assert lag.reason == "log retention removed version 2 before it was read"


def test_a_query_that_has_read_everything_does_not_miss_commits_that_are_gone(
    settings: Settings, logs: Logs
) -> None:
    DeltaTable(str(logs.path(BRONZE))).create_checkpoint()
    pipeline.forget_commits(logs.path(BRONZE), before=3)
    assert lag_of(settings, SILVER).records == 0


def test_a_version_with_which_a_query_begins_may_be_gone_too(settings: Settings, logs: Logs) -> None:
    shutil.rmtree(logs.path(SILVER))
    logs.create(SILVER, AT)
    logs.append(SILVER, AT, (13,), {f"{READS}@1": 1})
    DeltaTable(str(logs.path(BRONZE))).create_checkpoint()
    pipeline.forget_commits(logs.path(BRONZE), before=2)
    lag = lag_of(settings, SILVER)
    assert (lag.records, lag.reason) == (
        None,
        "log retention removed version 1 before it was read",
    )


def test_a_source_that_is_older_than_what_was_read_of_it_has_a_reason_in_place_of_a_number(
    settings: Settings, logs: Logs
) -> None:
    logs.step_back(BRONZE)
    logs.step_back(BRONZE)
    lag = lag_of(settings, SILVER)
    assert (lag.records, lag.reason) == (
        None,
        f"{BRONZE} is older than its reader's position: it was restored or recreated",
    )


def test_of_a_source_that_was_made_anew_nothing_has_been_read(settings: Settings, logs: Logs) -> None:
    """The position that silver notes belongs to a table with another id but the same name."""
    shutil.rmtree(logs.path(BRONZE))
    logs.create(BRONZE, AT, id_="5d0f")
    logs.append(BRONZE, DAY.format("08:21:00"), (6,))
    logs.append(BRONZE, DAY.format("08:22:00"), (7,))
    assert lag_of(settings, SILVER).records == 13


def test_a_stream_says_its_tables_queries_and_times(settings: Settings, logs: Logs) -> None:
    logs.note_sent("gold.user_transactions_5m", "aggregated-transactions", 2)
    state = seen(settings, "transactions")
    assert state.tables == (
        TableState("bronze.transactions", 2, pipeline.utc("2026-11-22T08:13:00.200"), 4, 4200, 42),
        TableState("silver.transactions", 2, pipeline.utc("2026-11-22T08:13:20"), 2, 3800, 38),
        TableState("gold.user_transactions_5m", 2, pipeline.utc("2026-11-22T08:13:40"), 2, 500, 5),
    )
    assert state.event_times == (
        EventTimes(
            "silver.transactions",
            pipeline.utc("2026-11-22T08:12:59"),
            pipeline.utc("2026-11-15T08:12:59"),
        ),
    )
    assert state.freshness_s == since("08:12:59")
    stores = state.queries[-1].stores
    assert [(one.name, one.word) for one in stores] == [("kafka", "away"), ("redis", "behind")]
    assert list(state.queries) == [
        QueryState("bronze.transactions", "bronze", 2, pipeline.utc("2026-11-22T08:13:00.200"), 400),
        QueryState("silver.transactions", "silver", 2, pipeline.utc("2026-11-22T08:13:20"), 400),
        QueryState("gold.user_transactions_5m", "gold", 2, pipeline.utc("2026-11-22T08:13:40"), 200),
        # The last version it sent, and when it noted that.
        QueryState(
            "export.user_transactions_5m", "export", 1, pipeline.utc("2026-11-22T08:14:00"), stores=stores
        ),
    ]
    assert state.gate is None


def test_a_store_that_is_away_is_named_and_the_last_micro_batch_keeps_its_time(
    settings: Settings, logs: Logs
) -> None:
    topic, at = "aggregated-transactions", pipeline.utc("2026-11-22T08:13:50")
    file = logs.note_sent("gold.user_transactions_5m", topic, 2)
    away = {"word": "away", "reason": "Redis is unreachable", "since": "2026-11-22T08:13:55+00:00"}
    note = {**json.loads(file.read_text()), "at": at.isoformat(), "redis_is_behind": away}
    file.write_text(json.dumps(note))
    export = seen(settings, "transactions").queries[-1]
    assert export.done_at == at
    _, redis = export.stores
    assert redis == StoreState(
        "redis",
        StoreWord.AWAY,
        "Redis is unreachable; no process runs export.user_transactions_5m, so this is from its last attempt",
        pipeline.utc("2026-11-22T08:13:55"),
        lacks_rows=True,
    )


def test_a_note_that_is_not_understood_says_only_that_the_store_lacks_rows() -> None:
    for value in ("true", '{"word": "gone", "reason": "a", "since": null}', '{"word": "away"}', "[]"):
        assert sent.lacking_in(f'{{"redis_is_behind": {value}}}')["redis"].word is StoreWord.BEHIND
    assert sent.lacking_in('{"redis_is_beh') == {}


def test_a_query_wrote_last_when_it_noted_something_whoever_else_commits(
    settings: Settings, logs: Logs
) -> None:
    logs.commit(GOLD, AT, added([5], AT, change=False))
    query = seen(settings, "metrics").queries[2]
    assert query == QueryState(GOLD, "gold", 3, pipeline.utc("2026-11-22T08:13:40"), 200)


def test_a_file_in_which_a_commit_only_marks_rows_counts_as_none_that_was_added(
    settings: Settings, logs: Logs
) -> None:
    actions = [*noting({f"{GOLD} reads silver.metrics_events": 4}, AT), *added([7, 5], AT)]
    logs.commit(GOLD, AT, [*actions, removed(actions[1]["add"]["path"], 7, AT)])
    assert seen(settings, "metrics").queries[2].size_bytes == 500


def test_open_dead_letters_are_counted_by_stream(settings: Settings, logs: Logs) -> None:
    del logs
    letters = [letter(n, stream=name) for n, name in enumerate(("metrics", "metrics", "sales"))]
    replayed = letter(3, stream="metrics", status="replayed")
    ServedLake(settings).write_spec(DEAD_LETTERS, [*letters, replayed])
    states = observe(STREAMS, settings, NOW).streams
    assert {state.name: state.open_letters for state in states} == {
        "metrics": 2,
        "calls": 0,
        "sales": 1,
        "transactions": 0,
    }


@pytest.mark.usefixtures("logs")
def test_a_broker_that_is_away_takes_nothing_but_its_own_numbers(settings: Settings) -> None:
    observation = observe(STREAMS, settings, NOW)
    assert observation.lake_reason is None
    assert observation.broker_reason is not None
    assert "nothing accepts connections there" in observation.broker_reason
    reason = observation.broker_reason
    assert observation.streams[0].partitions == (
        PartitionLag("metrics-events", 0, 28, None, None, None, reason),
        PartitionLag("metrics-events", 1, 14, None, None, None, reason),
    )


def test_where_there_is_no_lake_yet_that_is_the_reason(settings: Settings) -> None:
    observation = observe(STREAMS, settings, NOW)
    assert observation.lake_reason == f"there is no lake at {settings.lake} yet"
    assert [(state.health.word, state.layers, state.tables) for state in observation.streams] == [
        (Word.UNKNOWN, (), ())
    ] * 4
    elsewhere = observe(STREAMS, settings.changed({"lake": "wasbs://box@account/lake"}), NOW)
    assert elsewhere.lake_reason == (
        "the lake at wasbs://box@account/lake cannot be read: OSError: wasbs://box@account cannot be read "
        "without Spark: Unrecognized filesystem type in URI: wasbs://box@account"
    )


def test_a_lake_without_tables_is_empty_and_waits_for_nothing(settings: Settings) -> None:
    Path(settings.lake).mkdir()
    metrics = seen(settings, "metrics")
    assert {(lag.records, lag.seconds) for lag in metrics.layers} == {(0, 0.0)}
    assert (metrics.tables, metrics.open_letters, metrics.newest_event) == ((), 0, None)
    assert {(query.done, query.done_at) for query in metrics.queries} == {(None, None)}


def test_what_is_committed_between_two_looks_is_seen_by_the_second(settings: Settings, logs: Logs) -> None:
    kept = logs.file(BRONZE, 2).read_bytes()
    logs.step_back(BRONZE)
    observer = Observer(STREAMS, settings)
    first = observer.observe(NOW).streams[0].tables[0]
    logs.file(BRONZE, 2).write_bytes(kept)
    second = observer.observe(NOW).streams[0].tables[0]
    assert [(state.version, state.files, state.rows) for state in (first, second)] == [(1, 2, 38), (2, 4, 42)]


def test_a_table_that_is_made_anew_is_read_from_its_beginning(settings: Settings, logs: Logs) -> None:
    observer = Observer(STREAMS, settings)
    observer.observe(NOW)
    shutil.rmtree(logs.path(BRONZE))
    logs.create(BRONZE, AT, id_="5d0f")
    logs.append(BRONZE, AT, (15,), {f"{BRONZE} reads metrics-events:other/0": 15})
    logs.append(BRONZE, AT, ())
    state = observer.observe(NOW).streams[0]
    assert state.tables[0].rows == 15
    assert [(lag.partition, lag.position) for lag in state.partitions] == [(0, 15)]


def word_of(observation: Observation, stream: str) -> tuple[Word, datetime | None]:
    (health,) = (one.health for one in observation.streams if one.name == stream)
    return health.word, health.since


ALL = ("bronze", "silver", "gold", "export")


def keep_running(settings: Settings, *layers: str) -> None:
    """Record a sign of life given just now by a process on another host."""
    run = Run("elsewhere", 7, layers, ("metrics",), NOW - timedelta(hours=1), NOW, None)
    file = runs.file_of(settings.home, run.host, run.pid)
    file.parent.mkdir(parents=True)
    file.write_text(runs.as_json(run))


@pytest.mark.usefixtures("logs")
def test_rows_that_wait_too_long_for_a_query_that_writes_nothing_stall_the_stream(settings: Settings) -> None:
    keep_running(settings, *ALL)
    assert word_of(observe(STREAMS, settings, NOW), "metrics") == (
        Word.STALLED,
        pipeline.utc("2026-11-22T08:12:39"),
    )


def test_rows_that_wait_for_a_layer_that_nobody_runs_stop_the_stream(settings: Settings, logs: Logs) -> None:
    logs.step_back(SILVER)
    keep_running(settings, "bronze", "gold", "export")
    state = seen(settings, "metrics")
    assert [run.layers for run in state.runs] == [("bronze", "gold", "export")]
    assert state.health == Health(
        Word.STOPPED,
        "4 rows of bronze.metrics_events wait for silver; no process runs it "
        "(last active at 2026-11-22 08:12:20 UTC); the oldest has waited since 2026-11-22 08:13:00 UTC",
        pipeline.utc("2026-11-22T08:13:00.200"),
        is_unrun=True,
    )


@pytest.mark.usefixtures("logs")
def test_a_broker_that_is_away_leaves_a_stream_unknown_unless_it_is_worse(settings: Settings) -> None:
    keep_running(settings, *ALL)
    early = pipeline.utc("2026-11-22T08:13:30")
    assert word_of(observe(STREAMS, settings, early), "metrics")[0] is Word.UNKNOWN


def test_a_lake_with_a_checkpoint_in_its_log_is_read_from_there(settings: Settings, logs: Logs) -> None:
    logs.append(BRONZE, AT, (6, 1))
    before = seen(settings, "metrics")
    assert layer(before, SILVER).records == 7
    for table in (SILVER, GOLD):
        DeltaTable(str(logs.path(table))).create_checkpoint()
        pipeline.forget_commits(logs.path(table), before=2)
    after = seen(settings, "metrics")
    assert (after.tables, after.event_times, after.layers, after.queries) == (
        before.tables,
        before.event_times,
        before.layers,
        before.queries,
    )


@pytest.mark.usefixtures("logs")
def test_freshness_is_counted_from_the_newest_event(settings: Settings) -> None:
    state = seen(settings, "sales", NOW + timedelta(hours=1))
    assert state.newest_event == datetime(2026, 11, 22, 8, 12, 59, tzinfo=UTC)
    assert state.freshness_s == 6421.0


def test_the_watermark_follows_the_lateness_that_silver_notes(settings: Settings, logs: Logs) -> None:
    silver = "silver.sales_events"
    logs.append(silver, AT, (1,), {f"{silver} lateness": 7, f"{silver} allowed_lateness_s": 3600})
    (times,) = seen(settings, "sales").event_times
    assert times == EventTimes(
        silver, pipeline.utc("2026-11-22T08:12:59"), pipeline.utc("2026-11-22T07:12:59")
    )


def test_a_commit_that_nobody_understands_is_the_reason_of_its_stream_alone(
    settings: Settings, logs: Logs
) -> None:
    logs.commit(GOLD, AT, [{"add": {"path": "no time.parquet", "size": 1}}])
    observation = observe(STREAMS, settings, NOW)
    words = {state.name: (state.health.word, state.lake_reason) for state in observation.streams}
    reason = "stream metrics in the lake cannot be read: KeyError: 'modificationTime'"
    assert words.pop("metrics") == (Word.UNKNOWN, reason)
    assert {reason for _, reason in words.values()} == {None}
    assert {lag.query for state in observation.streams for lag in state.layers if lag.records == 0} >= {
        "silver.sales_events",
        "gold.call_records",
    }


def test_a_table_of_all_streams_that_cannot_be_read_is_a_reason_and_hides_no_backlog(
    settings: Settings, logs: Logs
) -> None:
    logs.create("ops.events", AT)
    logs.commit("ops.events", AT, [{"add": {"path": "no time.parquet", "size": 1}}])
    logs.step_back(SILVER)
    observation = observe(STREAMS, settings, NOW)
    assert observation.lake_reason == "ops.events cannot be read: KeyError: 'modificationTime'"
    assert observation.events_reason == observation.lake_reason
    assert {state.health.word for state in observation.streams} == {Word.STOPPED}
    assert layer(observation.streams[0], SILVER).records == 4


def test_files_of_events_that_cannot_be_read_are_counted_and_make_nothing_else_unknown(
    settings: Settings, logs: Logs
) -> None:
    assert observe(STREAMS, settings, NOW).events_reason is None
    logs.create("ops.events", AT)
    logs.append("ops.events", AT, (1, 1))  # the files themselves are missing
    observation = observe(STREAMS, settings, NOW)
    assert observation.events_reason == "2 files of ops.events have not been read"
    assert observation.lake_reason is None


@pytest.mark.parametrize("ms", [10**17, -(10**17), pipeline.micros(NOW)])
def test_a_commit_of_a_time_that_no_calendar_has_waits_for_nobody_knows_how_long(
    settings: Settings, logs: Logs, ms: int
) -> None:
    version = logs.append(BRONZE, AT, (5,))
    file = logs.file(BRONZE, version)
    file.write_text(file.read_text(encoding="utf-8").replace(str(lakes.ms(AT)), str(ms)), encoding="utf-8")
    found = lag_of(settings, SILVER)
    assert (found.records, found.seconds, found.reason) == (
        5,
        None,
        "the time of a commit to bronze.metrics_events is unknown",
    )
