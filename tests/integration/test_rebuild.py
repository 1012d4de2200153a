"""A rebuild puts right what is wrong, touches nothing else, and lets the streams run on meanwhile.

Bronze is landed by hand; what gold must be is the oracle's.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakehouse import leases, recompute, storage, tables
from lakehouse.errors import TableError
from lakehouse.query import ask
from lakehouse.rebuilding import Rebuilt, Span, behind, rebuild_gold, silver_versions
from lakehouse.rejudging import Landed, rebuild_silver
from lakehouse.runner import run
from lakehouse.settings import Settings
from lakehouse.stopping import Stop
from lakehouse.streams.sales import PRODUCT_SALES, SALES
from lakehouse.streams.transactions import TRANSACTIONS, USER_TRANSACTIONS_5M
from tests import pipeline, verdicts
from tests.oracles.transactions import Transaction, user_transactions_5m
from tests.pipeline import Raw, await_

SOURCE = TRANSACTIONS.sources[0]
GOLD, SILVER = "gold.user_transactions_5m", "silver.transactions"
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
    """A transaction of every user in every window, each time another amount."""
    return [
        spent(user, START + window * WINDOW, f"{number + 1}.25")
        for user in USERS
        for window in range(WINDOWS)
    ]


def fill(spark: SparkSession, settings: Settings, cuts: Iterable[list[Raw]], first_offset: int = 0) -> None:
    pipeline.land(spark, settings, list(cuts), landed_at=LANDED, source=SOURCE, first_offset=first_offset)


def differences(spark: SparkSession, settings: Settings) -> list[str]:
    """In what gold is not what the oracle makes of bronze."""
    bronze = pipeline.rows_of(spark, settings, "bronze.transactions")
    judged = verdicts.judge_batches([bronze], settings, SOURCE)
    expected = user_transactions_5m(verdicts.accepted(judged, Transaction))
    return verdicts.row_differences(pipeline.rows_of(spark, settings, GOLD), expected, KEYS)


def damage(spark: SparkSession, settings: Settings, where: str) -> None:
    """Change gold by a statement of a user's, while it may be running."""
    gold = f"delta.`{pipeline.path_of(settings, GOLD)}`"
    ask(spark, f"UPDATE {gold} SET count = count + 7 WHERE {where}", limit=1)


def rebuilt(rows: int, changed: int, deleted: int = 0) -> list[Rebuilt]:
    return [Rebuilt("user_transactions_5m", rows, changed, deleted)]


@pytest.fixture
def caught_up(spark: SparkSession, lake_settings: Settings) -> Settings:
    fill(spark, lake_settings, [everybody(0), everybody(1)])
    pipeline.run_layers(spark, lake_settings, "silver", "gold", stream=TRANSACTIONS)
    assert differences(spark, lake_settings) == []
    return lake_settings


def test_a_rebuild_of_a_span_puts_its_rows_right_and_touches_no_other(
    spark: SparkSession, caught_up: Settings
) -> None:
    damage(spark, caught_up, "user_id = 'u1'")
    second = START + WINDOW
    span = Span(second, second + WINDOW)

    assert rebuild_gold(spark, USER_TRANSACTIONS_5M, caught_up, span) == rebuilt(len(USERS), 1)

    wrong = {text.split(":")[0] for text in differences(spark, caught_up)}
    right = ("u1", pipeline.micros(second))
    assert len(wrong) == WINDOWS - 1
    assert str(right) not in wrong
    assert rebuild_gold(spark, USER_TRANSACTIONS_5M, caught_up, Span()) == rebuilt(
        len(USERS) * WINDOWS, WINDOWS - 1
    )
    assert differences(spark, caught_up) == []


def test_rows_that_are_missing_doubled_or_of_nobody_are_put_right_and_a_rerun_writes_no_row(
    spark: SparkSession, caught_up: Settings
) -> None:
    gold = f"delta.`{pipeline.path_of(caught_up, GOLD)}`"
    spark.sql(f"DELETE FROM {gold} WHERE user_id = 'u0'")
    spark.sql(f"INSERT INTO {gold} SELECT * FROM {gold} WHERE user_id = 'u2'")
    spark.sql(
        f"INSERT INTO {gold} SELECT 'nobody', window_start, window_end, total_amount, count "
        f"FROM {gold} WHERE user_id = 'u3'"
    )

    (done,) = rebuild_gold(spark, USER_TRANSACTIONS_5M, caught_up, Span())

    # Doubled rows leave first and come again: once deleted, once changed.
    assert (done.changed, done.deleted) == (2 * WINDOWS, 2 * WINDOWS)
    assert differences(spark, caught_up) == []
    assert rebuild_gold(spark, USER_TRANSACTIONS_5M, caught_up, Span()) == rebuilt(len(USERS) * WINDOWS, 0)


def test_gold_is_rebuilt_while_silver_and_gold_run_on(spark: SparkSession, caught_up: Settings) -> None:
    stop, failures = Stop(), list[BaseException]()

    def live() -> None:
        try:
            run(spark, [TRANSACTIONS], ["silver", "gold"], caught_up, trigger="200 milliseconds", stop=stop)
        except BaseException as failure:  # noqa: BLE001 - shown by the test
            failures.append(failure)

    thread = threading.Thread(target=live)
    thread.start()
    try:
        for number in range(2, 8):
            fill(spark, caught_up, [everybody(number)], first_offset=number * len(USERS) * WINDOWS)
            if number in (3, 5):
                damage(spark, caught_up, "user_id IN ('u1', 'u2')")
                rebuild_gold(spark, USER_TRANSACTIONS_5M, caught_up, Span())
        await_(lambda: sum(row["count"] for row in pipeline.rows_of(spark, caught_up, GOLD)) == 8 * 16)
    finally:
        stop.request()
        thread.join(300)

    assert failures == []
    assert differences(spark, caught_up) == []


def test_a_micro_batch_waits_for_the_lease_and_a_second_rebuild_is_refused(
    spark: SparkSession, caught_up: Settings
) -> None:
    path = str(pipeline.path_of(caught_up, GOLD))
    fill(spark, caught_up, [everybody(2)], first_offset=1000)
    pipeline.run_layers(spark, caught_up, "silver", stream=TRANSACTIONS)
    thread = threading.Thread(
        target=pipeline.run_layers, args=(spark, caught_up, "gold"), kwargs={"stream": TRANSACTIONS}
    )
    with leases.held(spark, path, GOLD):
        before = pipeline.rows_of(spark, caught_up, GOLD)
        thread.start()
        with pytest.raises(TableError, match="is being rebuilt already, and held until"):
            rebuild_gold(spark, USER_TRANSACTIONS_5M, caught_up, Span())
        while not pipeline.planned(caught_up, GOLD)[-1] > 0:
            time.sleep(0.1)
        time.sleep(1)
        assert sorted(map(str, pipeline.rows_of(spark, caught_up, GOLD))) == sorted(map(str, before))
    thread.join(300)
    assert differences(spark, caught_up) == []


def test_a_lease_is_renewed_while_its_holder_writes_and_does_not_conflict_with_what_it_writes(
    spark: SparkSession, caught_up: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(pipeline.path_of(caught_up, GOLD))
    monkeypatch.setattr(leases, "_RENEWED_EVERY_S", 0.05)
    upsert, held = tables.upsert, list[bool]()

    def terms() -> list[str]:
        return [name for name in storage.names(spark, f"{path}/_lakehouse_lease") if name[0] != "."]

    def after_a_renewal(*arguments: Any) -> object:
        first = max(terms())
        await_(lambda: max(terms()) > first)
        held.append(leases.is_held(spark, path))
        return upsert(*arguments)

    monkeypatch.setattr(tables, "upsert", after_a_renewal)
    damage(spark, caught_up, "user_id = 'u1'")
    version = pipeline.version_of(caught_up, GOLD)

    assert rebuild_gold(spark, USER_TRANSACTIONS_5M, caught_up, Span()) == rebuilt(
        len(USERS) * WINDOWS, WINDOWS
    )

    assert held == [True]
    assert pipeline.version_of(caught_up, GOLD) == version + 3  # taken, merged once, given back
    assert not leases.is_held(spark, path)
    assert terms() == []
    assert differences(spark, caught_up) == []


def test_a_lease_whose_holder_was_killed_runs_out(spark: SparkSession, caught_up: Settings) -> None:
    path = str(pipeline.path_of(caught_up, GOLD))
    alive = f"{path}/_lakehouse_lease/{round(time.time() + 3600) * 1000}-killed"
    tables.set_property(spark, path, "lakehouse.lease", "killed")
    storage.write_text(spark, alive.replace("killed", "another"), "")
    assert not leases.is_held(spark, path)
    storage.write_text(spark, alive, "")
    assert leases.is_held(spark, path)

    storage.delete(spark, alive)
    storage.write_text(spark, f"{path}/_lakehouse_lease/{round(time.time() - 1) * 1000}-killed", "")

    assert not leases.is_held(spark, path)
    assert rebuild_gold(spark, USER_TRANSACTIONS_5M, caught_up, Span()) == rebuilt(len(USERS) * WINDOWS, 0)


class CrashError(Exception):
    """What stands in for the end of the process."""


def test_a_rebuild_that_is_killed_between_two_tables_is_finished_by_the_next(
    spark: SparkSession, lake_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    sale = Raw(b'{"product":"p","value":1500}', key=b"p")
    pipeline.land(spark, lake_settings, [[sale, sale]], landed_at=LANDED, source=SALES.sources[0])
    pipeline.run_layers(spark, lake_settings, "silver", "gold", stream=SALES)
    names = ("gold.product_sales", "gold.sales_notifications")
    right = {name: pipeline.rows_of(spark, lake_settings, name) for name in names}
    assert [(row["total"], row["count"]) for row in right[names[0]]] == [(3000, 2)]
    assert [row["value"] for row in right[names[1]]] == [3000]
    spark.sql(f"UPDATE delta.`{pipeline.path_of(lake_settings, names[0])}` SET total = 1")
    spark.sql(f"UPDATE delta.`{pipeline.path_of(lake_settings, names[1])}` SET value = 1")

    upsert, writes = tables.upsert, list[str]()

    def crashing(*arguments: object, **named: object) -> None:
        upsert(*arguments, **named)  # type: ignore[arg-type]
        writes.append(str(arguments[1]))
        raise CrashError

    with monkeypatch.context() as patch:
        patch.setattr(tables, "upsert", crashing)
        with pytest.raises(CrashError):
            rebuild_gold(spark, PRODUCT_SALES, lake_settings, Span())
    assert writes == [str(pipeline.path_of(lake_settings, names[1]))]
    done = rebuild_gold(spark, PRODUCT_SALES, lake_settings, Span())

    assert [(one.table, one.changed) for one in done] == [("sales_notifications", 0), ("product_sales", 1)]
    assert {name: pipeline.rows_of(spark, lake_settings, name) for name in names} == right
    with pytest.raises(TableError, match="rebuild it whole, without --from and --to"):
        rebuild_gold(spark, PRODUCT_SALES, lake_settings, Span(START))


def test_gold_follows_a_rebuild_of_silver_under_other_settings(
    spark: SparkSession, lake_settings: Settings
) -> None:
    """The tolerance is widened, so a dead letter becomes clean, and then narrowed to less than before."""
    near, far = LANDED + timedelta(seconds=200), LANDED + timedelta(seconds=1000)
    wide, narrow = (
        lake_settings.model_copy(update={"future_tolerance_s": seconds}) for seconds in (2000, 100)
    )
    fill(spark, lake_settings, [[*everybody(0), spent("u1", near, "3"), spent("u1", far, "5")]])
    pipeline.run_layers(spark, lake_settings, "silver", "gold", stream=TRANSACTIONS)
    assert len(pipeline.rows_of(spark, lake_settings, SILVER)) == 17
    now = datetime.now(UTC)

    for settings, rows in ((wide, 18), (narrow, 16), (lake_settings, 17)):
        rebuild_silver(spark, TRANSACTIONS, settings, Landed(), now)
        ends = silver_versions(spark, TRANSACTIONS, settings)
        pipeline.run_layers(spark, settings, "gold", stream=TRANSACTIONS)  # reads what was only inserted
        assert behind(spark, TRANSACTIONS, settings, ends) == []
        rebuild_gold(spark, USER_TRANSACTIONS_5M, settings, Span())

        assert len(pipeline.rows_of(spark, settings, SILVER)) == rows
        assert differences(spark, settings) == []
        cut = recompute.cut_of(spark, USER_TRANSACTIONS_5M, settings)
        assert cut.merged["transactions"].count() == rows
