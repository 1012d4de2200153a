"""A rebuild corrects wrong rows, touches nothing else, and holds micro-batches back meanwhile.

tests/simulation rebuilds gold of every kind of stream, and test_beside rebuilds it beside running layers.
Bronze is landed by hand, and the oracle says what gold must be. Each test gets a copy of a lake that has
caught up; a log names its files relative to the table.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakehouse.common.errors import TableError
from lakehouse.engine.layers.step import BatchResult
from lakehouse.operations.catalog.spark_sql import ask
from lakehouse.operations.repair.rebuild_gold import (
    GoldRebuilt,
    WindowSpan,
    rebuild_gold,
)
from lakehouse.settings import Settings
from lakehouse.storage import tables
from lakehouse.storage.spark import files as storage
from lakehouse.storage.tables import Lake, leases
from tests.oracles.transactions import Transaction, user_transactions_5m
from tests.support import pipeline, verdicts
from tests.support.batches import gold_of, take_next
from tests.support.pipeline import Raw, await_
from tests.support.streams import (
    TRANSACTIONS,
    USER_TRANSACTIONS_5M,
)

SOURCE = TRANSACTIONS.sources[0]
GOLD = "gold.user_transactions_5m"
START = pipeline.utc("2026-03-01T00:00:00")
LANDED = pipeline.utc("2026-03-02T00:00:00")
WINDOW = timedelta(minutes=5)
USERS = [f"u{number}" for number in range(4)]
WINDOWS = 4
KEYS = ("user_id", "window_start")


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
