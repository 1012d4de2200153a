"""A rebuild corrects wrong rows, touches nothing else, and holds micro-batches back meanwhile.

test_beside has a rebuild beside running layers. Bronze is landed by hand, and the oracle says what gold must
be. Each test gets a copy of a lake that has caught up; a log names its files relative to the table.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial, reduce
from typing import Any, TypeVar

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakehouse.common.errors import TableError
from lakehouse.engine.layers.step import BatchResult
from lakehouse.operations.catalog.spark_sql import ask
from lakehouse.operations.repair import recompute
from lakehouse.operations.repair.rebuild_gold import (
    GoldRebuilt,
    WindowSpan,
    behind,
    rebuild_gold,
    silver_versions,
)
from lakehouse.operations.repair.rebuild_silver import Landed, rebuild_silver
from lakehouse.settings import Settings
from lakehouse.storage import tables
from lakehouse.storage.spark import files as storage
from lakehouse.storage.tables import DELETED, Lake, leases
from lakehouse.streams.definition import GoldTable, Source
from lakehouse.testing.kills import CrashError, crash_at
from tests.oracles.calls import SIDES, CallEvent, call_records
from tests.oracles.judging import Event
from tests.oracles.metrics import METRICS_SUMMARY_10M as SUMMARIES
from tests.oracles.metrics import Metric
from tests.oracles.sales import Sale, product_sales, sales_notifications
from tests.oracles.transactions import Transaction, user_transactions_5m
from tests.support import pipeline, verdicts
from tests.support.batches import gold_of, take_next
from tests.support.pipeline import Raw, await_
from tests.support.streams import (
    CALL_RECORDS,
    CALLS,
    METRICS,
    METRICS_1M,
    METRICS_SUMMARY_10M,
    PRODUCT_SALES,
    SALES,
    TRANSACTIONS,
    USER_TRANSACTIONS_5M,
    under,
)

SOURCE = TRANSACTIONS.sources[0]
GOLD, SILVER = "gold.user_transactions_5m", "silver.transactions"
START = pipeline.utc("2026-03-01T00:00:00")
LANDED = pipeline.utc("2026-03-02T00:00:00")
WINDOW = timedelta(minutes=5)
USERS = [f"u{number}" for number in range(4)]
WINDOWS = 4
KEYS = ("user_id", "window_start")
SALES_TABLES = ("product_sales", "sales_notifications")

E = TypeVar("E", bound=Event)


def spent(user: str, at: datetime, amount: str = "1.5") -> Raw:
    stamp = int(at.timestamp() * 1000)
    return Raw(f'{{"userId":{json.dumps(user)},"amount":{amount},"timestamp":{stamp}}}'.encode())


def everybody(number: int) -> list[Raw]:
    """Return a transaction of every user in every window, with an amount that depends on `number`."""
    return [
        spent(user, START + window * WINDOW, f"{number + 1}.25")
        for user in USERS
        for window in range(WINDOWS)
    ]


def fill(spark: SparkSession, settings: Settings, cuts: Iterable[list[Raw]], first_offset: int = 0) -> None:
    pipeline.land(spark, settings, list(cuts), landed_at=LANDED, source=SOURCE, first_offset=first_offset)


def differences(settings: Settings) -> list[str]:
    """Return the differences between gold and what the oracle makes of bronze."""
    bronze = pipeline.rows_of(settings, "bronze.transactions")
    judged = verdicts.judge_batches([bronze], settings, SOURCE)
    expected = user_transactions_5m(verdicts.accepted(judged, Transaction))
    return verdicts.row_differences(pipeline.rows_of(settings, GOLD), expected, KEYS)


def damage(spark: SparkSession, settings: Settings, where: str) -> None:
    """Change gold with a user's SQL statement, perhaps while the gold layer is running."""
    gold = f"delta.`{pipeline.path_of(settings, GOLD)}`"
    ask(spark, f"UPDATE {gold} SET count = count + 7 WHERE {where}", limit=1, write=True)


def rebuilt(rows: int, changed: int, deleted: int = 0) -> list[GoldRebuilt]:
    return [GoldRebuilt("user_transactions_5m", rows, changed, deleted)]


@pytest.fixture(scope="module")
def once_caught_up(
    spark: SparkSession, session_settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Settings:
    lake = str(tmp_path_factory.mktemp("rebuild") / "lake")
    settings = session_settings.changed({"lake": lake})
    fill(spark, settings, [everybody(0), everybody(1)])
    pipeline.run_layers(spark, settings, "silver", "gold", stream=TRANSACTIONS)
    assert differences(settings) == []
    return settings


@pytest.fixture
def caught_up(once_caught_up: Settings, lake_settings: Settings) -> Settings:
    """Copy the lake for this test alone, and return the copy's settings."""
    shutil.copytree(once_caught_up.lake, lake_settings.lake)
    return lake_settings


@pytest.mark.soak
def test_a_rebuild_of_a_span_puts_its_rows_right_and_touches_no_other(
    lake: Lake, caught_up: Settings
) -> None:
    damage(lake.spark, caught_up, "user_id = 'u1'")
    second = START + WINDOW
    span = WindowSpan(second, second + WINDOW)

    assert rebuild_gold(lake, USER_TRANSACTIONS_5M, span) == rebuilt(len(USERS), 1)

    wrong = {text.split(":")[0] for text in differences(caught_up)}
    right = ("u1", pipeline.micros(second))
    assert len(wrong) == WINDOWS - 1
    assert str(right) not in wrong
    assert rebuild_gold(lake, USER_TRANSACTIONS_5M, WindowSpan()) == rebuilt(
        len(USERS) * WINDOWS, WINDOWS - 1
    )
    assert differences(caught_up) == []


def test_rows_that_are_missing_doubled_or_of_nobody_are_put_right_and_a_rerun_writes_no_row(
    lake: Lake, caught_up: Settings
) -> None:
    gold = f"delta.`{pipeline.path_of(caught_up, GOLD)}`"
    lake.spark.sql(f"DELETE FROM {gold} WHERE user_id = 'u0'")
    lake.spark.sql(f"INSERT INTO {gold} SELECT * FROM {gold} WHERE user_id = 'u2'")
    lake.spark.sql(
        f"INSERT INTO {gold} SELECT 'not ' || user_id, window_start, window_end, total_amount, count "
        f"FROM {gold} WHERE user_id IN ('u1', 'u3')"
    )

    version = pipeline.version_of(caught_up, GOLD)
    with pytest.raises(TableError, match=r"would lose \d+ of its \d+ rows.* requires --force"):
        rebuild_gold(lake, USER_TRANSACTIONS_5M, WindowSpan())
    assert pipeline.version_of(caught_up, GOLD) == version + 2  # the lease, taken and released
    (done,) = rebuild_gold(lake, USER_TRANSACTIONS_5M, WindowSpan(), force=True)

    # Doubled rows are deleted first and then added again, so they count as both deleted and changed.
    assert (done.changed, done.deleted) == (2 * WINDOWS, 3 * WINDOWS)
    assert differences(caught_up) == []
    assert rebuild_gold(lake, USER_TRANSACTIONS_5M, WindowSpan()) == rebuilt(len(USERS) * WINDOWS, 0)


@pytest.mark.soak
def test_gold_stays_where_silver_has_been_compacted_and_lost_a_row(lake: Lake, caught_up: Settings) -> None:
    fill(lake.spark, caught_up, [everybody(2)], first_offset=1000)
    pipeline.run_layers(lake.spark, caught_up, "silver", "gold", stream=TRANSACTIONS)
    silver = f"delta.`{pipeline.path_of(caught_up, SILVER)}`"
    lake.spark.sql(f"OPTIMIZE {silver}")
    assert rebuild_gold(lake, USER_TRANSACTIONS_5M, WindowSpan()) == rebuilt(len(USERS) * WINDOWS, 0)

    lake.spark.sql(f"DELETE FROM {silver} WHERE user_id = 'u1' AND amount = 1.25")

    done = rebuild_gold(lake, USER_TRANSACTIONS_5M, WindowSpan())
    assert done == rebuilt(len(USERS) * WINDOWS, WINDOWS)


def test_a_micro_batch_waits_for_the_lease_and_a_second_rebuild_is_refused(
    lake: Lake, caught_up: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(pipeline.path_of(caught_up, GOLD))
    fill(lake.spark, caught_up, [everybody(2)], first_offset=1000)
    pipeline.run_layers(lake.spark, caught_up, "silver", stream=TRANSACTIONS)
    gold, done = gold_of(lake.spark, caught_up, TRANSACTIONS), list[BatchResult | None]()
    thread = threading.Thread(target=lambda: done.append(take_next(gold, now=LANDED)))
    looks, names = list[str](), storage.names

    def noting(spark: SparkSession, directory: str) -> list[str]:
        if threading.current_thread() is thread:
            looks.append(directory)
        return names(spark, directory)

    monkeypatch.setattr(storage, "names", noting)
    with leases.held(lake.spark, path, GOLD):
        thread.start()
        with pytest.raises(
            TableError,
            match="is already being rebuilt, replayed or maintained; its lease lasts at least until",
        ):
            rebuild_gold(lake, USER_TRANSACTIONS_5M, WindowSpan())
        await_(lambda: looks.count(f"{path}/_lakehouse_lease") > 2)  # it looks repeatedly, so it is waiting
        assert differences(caught_up) != []
    thread.join(300)

    operations = [
        row.operation for row in lake.spark.sql(f"DESCRIBE HISTORY delta.`{path}` LIMIT 3").collect()
    ]
    assert operations == ["STREAMING UPDATE", "UNSET TBLPROPERTIES", "SET TBLPROPERTIES"]  # newest first
    assert [one and one.rows for one in done] == [len(USERS) * WINDOWS]
    assert differences(caught_up) == []


def test_an_update_that_comes_between_a_fold_and_its_write_is_folded_into(
    spark: SparkSession, caught_up: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(spark, caught_up, [everybody(2)], first_offset=1000)
    pipeline.run_layers(spark, caught_up, "silver", stream=TRANSACTIONS)
    upsert, overtaken = tables.upsert, list[str]()

    def late(*arguments: Any, **named: Any) -> tables.Written:
        if not overtaken:
            damage(spark, caught_up, "user_id = 'u1'")
        overtaken.append("written")
        return upsert(*arguments, **named)

    monkeypatch.setattr(tables, "upsert", late)
    take_next(gold_of(spark, caught_up, TRANSACTIONS), now=LANDED)

    assert len(overtaken) == 2
    counts = {(row["user_id"], row["count"]) for row in pipeline.rows_of(caught_up, GOLD)}
    assert counts == {("u0", 3), ("u1", 2 + 7 + 1), ("u2", 3), ("u3", 3)}


def test_a_lease_is_renewed_while_its_holder_writes_and_does_not_conflict_with_what_it_writes(
    lake: Lake, caught_up: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(pipeline.path_of(caught_up, GOLD))
    monkeypatch.setattr(leases, "_RENEWED_EVERY_S", 0.05)
    replace, held = tables.replace, list[bool]()

    def terms() -> list[str]:
        return [name for name in storage.names(lake.spark, f"{path}/_lakehouse_lease") if name[0] != "."]

    def after_a_renewal(*arguments: Any, **named: Any) -> object:
        first = max(terms())
        await_(lambda: max(terms()) > first)
        held.append(leases.is_held(lake.spark, path))
        return replace(*arguments, **named)

    monkeypatch.setattr(tables, "replace", after_a_renewal)
    damage(lake.spark, caught_up, "user_id = 'u1'")
    version = pipeline.version_of(caught_up, GOLD)

    assert rebuild_gold(lake, USER_TRANSACTIONS_5M, WindowSpan()) == rebuilt(len(USERS) * WINDOWS, WINDOWS)

    assert held == [True]
    assert pipeline.version_of(caught_up, GOLD) == version + 3  # lease taken, one merge, lease released
    assert not leases.is_held(lake.spark, path)
    assert terms() == []
    assert differences(caught_up) == []


def test_a_lease_whose_holder_was_killed_runs_out_whatever_its_clock_said(
    lake: Lake, caught_up: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(pipeline.path_of(caught_up, GOLD))

    def write_term(holder: str, ends_in_s: float) -> None:
        ends_ms = round(time.time() + ends_in_s) * 1000
        storage.write_text(lake.spark, f"{path}/_lakehouse_lease/{ends_ms}-{holder}", "")

    tables.begin(lake.spark, path).set_properties({"lakehouse.lease": "killed"})
    write_term("another", 3600)
    write_term("killed", -3600)
    assert not leases.is_held(lake.spark, path)
    write_term("killed", -3585)
    assert leases.is_held(lake.spark, path), "it is being renewed, by a clock that is behind"
    write_term("killed", 3600)
    with pytest.raises(TableError, match=r"by a clock 35\d\d s ahead of this machine's"):
        rebuild_gold(lake, USER_TRANSACTIONS_5M, WindowSpan())

    monkeypatch.setattr(leases, "_LENGTH_S", 0.0)  # its last renewal is longer ago than that
    assert not leases.is_held(lake.spark, path)
    assert rebuild_gold(lake, USER_TRANSACTIONS_5M, WindowSpan()) == rebuilt(len(USERS) * WINDOWS, 0)


@pytest.mark.parametrize("is_writing", [True, False])
def test_a_process_that_pauses_beyond_its_lease_writes_nothing_more_and_says_so(
    lake: Lake, caught_up: Settings, monkeypatch: pytest.MonkeyPatch, *, is_writing: bool
) -> None:
    path, rows = str(pipeline.path_of(caught_up, GOLD)), pipeline.rows_of(caught_up, GOLD)

    def pause() -> None:
        with leases.held(lake.spark, path, GOLD):
            monkeypatch.setattr(leases, "_LENGTH_S", 0.0)
            leases.begin(lake.spark, path)  # by a micro-batch, once the lease has expired
            if is_writing:
                tables.append(tables.read(lake.spark, path), path)

    with pytest.raises(TableError, match=f"^{GOLD}: another process took over, because this one had not"):
        pause()

    assert pipeline.rows_of(caught_up, GOLD) == rows
    assert "lakehouse.lease" not in tables.properties_of(tables.snapshot(lake.spark, path))
    assert list(storage.names(lake.spark, f"{path}/_lakehouse_lease")) == []


# A lake with every stream.


START_MS = int(START.timestamp() * 1000)
NOW = START + timedelta(seconds=600)
"""The time at which the lake had caught up: all calls but cem's were closed."""


def measured(service: str, value: float, at_s: int, **more: str) -> Raw:
    record = {"serviceId": service, "metricName": "cpu", "value": value, "timestamp": START_MS + at_s * 1000}
    return Raw(json.dumps(record | more).encode())


def called(user1: str, at_s: int, **payload: object) -> Raw:
    record = {"user1": user1, "user2": "bob", "timestamp": START_MS + at_s * 1000, **payload}
    return Raw(json.dumps(record).encode())


def sold(product: str, value: str) -> Raw:
    return Raw(f'{{"product":"{product}","value":{value},"timestamp":{START_MS}}}'.encode(), product.encode())


RECORDS: Mapping[str, tuple[list[Raw], list[Raw]]] = {
    "metrics_events": (
        [measured("auth", n / 8, 3 * n) for n in range(24)]
        + [measured("zoo", n, 5 * n, environment="prod") for n in range(12)],
        [measured("auth", 100.0, 15), measured("auth", 2.0, 130), measured("zoo", 3.0, 300), Raw(b"{")],
    ),
    "call_analytics": (
        [called("ann", 0, analytics={"mood": [1, None]}), called("cem", 500, analytics="text")],
        [called("ann", 40, analytics="later"), called("ann", 200, analytics="another call")],
    ),
    "call_metrics": ([called("ann", 30, metrics=0.5)], [called("bea", 45, metrics=17)]),
    "sales_events": (
        [sold("lamp", "1999.999999999"), sold("lamp", "0.000000001"), sold("chair", "150.5")],
        [sold("chair", "1900"), sold("lamp", "-1"), sold("lamp", "1"), sold("table", "3")],
    ),
}
STREAMS = (METRICS, CALLS, SALES)


@pytest.fixture(scope="module")
def once_every_stream(
    spark: SparkSession, session_settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Settings:
    """Fill a lake with the records of STREAMS in two rounds, and return its settings."""
    lake = str(tmp_path_factory.mktemp("every-stream") / "lake")
    settings = session_settings.changed({"lake": lake})
    for number in (0, 1):
        for stream in STREAMS:
            for source in stream.sources:
                pipeline.land(
                    spark,
                    settings,
                    [RECORDS[source.table][number]],
                    landed_at=NOW,
                    first_offset=100 * number,
                    source=source,
                )
            pipeline.run_layers(spark, settings, "silver", "gold", stream=stream, now=NOW)
    assert {(row["user1"], row["status"]) for row in pipeline.rows_of(settings, "gold.call_records")} == {
        ("ann", "closed"),
        ("bea", "closed"),
        ("cem", "open"),
    }
    assert every_difference(settings) == []
    return settings


@pytest.fixture
def every_stream(once_every_stream: Settings, lake_settings: Settings) -> Settings:
    """Copy the lake for this test alone, and return the copy's settings."""
    shutil.copytree(once_every_stream.lake, lake_settings.lake)
    return lake_settings


def every_difference(settings: Settings) -> list[str]:
    """Return the differences between gold and what the oracles make of bronze, which has no late records."""

    def accepted(source: Source, make: Callable[..., E]) -> list[E]:
        bronze = pipeline.rows_of(settings, f"bronze.{source.table}")
        return verdicts.accepted(verdicts.judge_batches([bronze], settings, source), make)

    rows = {
        table.name: pipeline.rows_of(settings, f"gold.{table.name}")
        for stream in STREAMS
        for table in stream.tables
    }
    metrics, sales = accepted(METRICS.sources[0], Metric), accepted(SALES.sources[0], Sale)
    calls = [
        event
        for source, side in zip(CALLS.sources, SIDES, strict=True)
        for event in accepted(source, partial(CallEvent, side=side))
    ]
    exact = {
        "call_records": (call_records(calls, pipeline.micros(NOW)), ("user1", "user2", "ts")),
        "product_sales": (product_sales(sales), ("product",)),
        "sales_notifications": (sales_notifications(sales), ("product", "partition", "offset")),
    }
    return [
        *verdicts.window_differences(rows["metrics_1m"], metrics, settings),
        *verdicts.window_differences(rows["metrics_summary_10m"], metrics, settings, SUMMARIES),
        *(
            f"{name}: {text}"
            for name, (expected, keys) in exact.items()
            for text in verdicts.row_differences(rows[name], expected, keys)
        ),
    ]


@pytest.mark.soak
def test_windows_and_calls_that_are_missing_wrong_or_of_nobody_are_rebuilt(
    lake: Lake, every_stream: Settings
) -> None:
    changes = (
        (METRICS_1M, {"count": "count + 1"}),
        (METRICS_SUMMARY_10M, {"p50": "max + 1"}),
        (CALL_RECORDS, {"analytics": "NULL", "metrics_events": "9"}),
    )
    damages = [damage_rows(lake.spark, every_stream, table, change) for table, change in changes]
    assert len(every_difference(every_stream)) >= sum(map(sum, damages))

    for (table, _), (invented, missing, wrong) in zip(changes, damages, strict=True):
        (done,) = rebuild_gold(lake, table, WindowSpan(), force=True)
        assert (done.changed, done.deleted) == (missing + wrong, invented), table.name
    # A missing call is rebuilt as an open one, which the wall clock closes.
    pipeline.run_layers(lake.spark, every_stream, "gold", stream=CALLS, now=NOW)

    assert every_difference(every_stream) == []


def damage_rows(
    spark: SparkSession, settings: Settings, table: GoldTable, change: Mapping[str, str]
) -> tuple[int, int, int]:
    """Invent, delete and change rows in one commit, and return how many of each."""
    path, name = str(pipeline.path_of(settings, f"gold.{table.name}")), table.keys[0]
    rows = spark.read.format("delta").load(path)
    counts = Counter(row[0] for row in rows.select(name).collect())
    last, first = rows.where(F.col(name) == max(counts)), rows.where(F.col(name) == min(counts))
    types = {column.name: column.dataType for column in rows.schema}
    damaged = (
        last.withColumn(name, F.lit("nobody")).withColumn(DELETED, F.lit(False)),
        last.withColumns({to: F.expr(value).cast(types[to]) for to, value in change.items()}),
        first.withColumn(DELETED, F.lit(True)),
    )
    everything = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), damaged)
    tables.replace(everything.persist(), path, table.keys, within=F.lit(True))
    return counts[max(counts)], counts[min(counts)], counts[max(counts)]


@pytest.mark.soak
def test_a_rebuild_that_is_killed_between_two_tables_is_finished_by_the_next(
    lake: Lake, every_stream: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table that is written first needs no further change."""
    paths = {name: str(pipeline.path_of(every_stream, f"gold.{name}")) for name in SALES_TABLES}
    lake.spark.sql(f"UPDATE delta.`{paths['product_sales']}` SET total = 1 WHERE product = 'chair'")
    lake.spark.sql(f"UPDATE delta.`{paths['sales_notifications']}` SET value = 1 WHERE product = 'chair'")

    with monkeypatch.context() as patch:
        patch.setattr(tables, "replace", crash_at(tables.replace, 1, after=True))
        with pytest.raises(CrashError):
            rebuild_gold(lake, PRODUCT_SALES, WindowSpan())
    done = rebuild_gold(lake, PRODUCT_SALES, WindowSpan())

    assert [(one.table, one.changed) for one in done] == [("sales_notifications", 0), ("product_sales", 1)]
    assert every_difference(every_stream) == []
    with pytest.raises(TableError, match="rebuild the whole table, without --from and --to"):
        rebuild_gold(lake, PRODUCT_SALES, WindowSpan(START))


@pytest.mark.soak
def test_gold_follows_a_rebuild_of_silver_under_other_settings(lake: Lake, lake_settings: Settings) -> None:
    """The tolerance is widened, so a dead letter becomes clean, then narrowed to less than at first."""
    near, far = LANDED + timedelta(seconds=200), LANDED + timedelta(seconds=1000)
    fill(lake.spark, lake_settings, [[*everybody(0), spent("u1", near, "3"), spent("u1", far, "5")]])
    pipeline.run_layers(lake.spark, lake_settings, "silver", "gold", stream=TRANSACTIONS)
    assert len(pipeline.rows_of(lake_settings, SILVER)) == 17
    now = datetime.now(UTC)

    for tolerance_s, rows in ((2000, 18), (100, 16)):
        settings = lake_settings.changed({"stream_defaults.future_tolerance_s": tolerance_s})
        stream = under(settings, TRANSACTIONS)
        rebuild_silver(lake, stream, Landed(), now)
        ends = silver_versions(lake, stream)
        pipeline.run_layers(lake.spark, settings, "gold", stream=stream)  # reads commits that only insert
        assert behind(lake, stream, ends) == []
        rebuild_gold(lake, USER_TRANSACTIONS_5M, WindowSpan())

        assert len(pipeline.rows_of(settings, SILVER)) == rows
        assert differences(settings) == []
        cut = recompute.cut_of(lake, USER_TRANSACTIONS_5M)
        assert cut.merged["transactions"].count() == rows
