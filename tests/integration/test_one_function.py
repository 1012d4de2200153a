"""What becomes of a record, case by case: it depends on bronze, not on how silver takes it.

Records are landed directly in a small local lake; silver takes each commit by itself, or all at once.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from hashlib import sha256
from threading import Thread, current_thread
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakehouse.engine.layers import bronze, identities
from lakehouse.engine.ops_tables import retained
from lakehouse.engine.records.dead_letters import DEAD_LETTERS as LETTERS
from lakehouse.engine.records.dead_letters import Selection
from lakehouse.operations.audit.records import check_records
from lakehouse.operations.maintenance import retention
from lakehouse.operations.repair.rebuild_silver import Landed, SilverRebuilt, rebuild_silver
from lakehouse.operations.repair.replay import discard, replay
from lakehouse.operations.telemetry.delta_log import Log
from lakehouse.settings import Settings
from lakehouse.storage import tables
from lakehouse.storage.spark import files as storage
from lakehouse.storage.tables import Lake, entries
from lakehouse.streams.definition import Stream, only
from lakehouse.testing.kills import CrashError, crash_at, take_next
from tests.support import pipeline
from tests.support.batches import gold_of
from tests.support.payments import CORRECTED, LANDED, LANDED_MS, PLAIN, UNIQUE, Run, deleted, paid, payments
from tests.support.pipeline import await_

DAY_MS = 86_400_000

AT_ONCE = pytest.mark.parametrize(
    "max_bytes",
    [pytest.param(1, id="each by itself", marks=pytest.mark.soak), pytest.param(1 << 30, id="at once")],
)


@AT_ONCE
def test_a_deletion_that_found_nothing_is_open_until_its_record_lands(
    lake: Lake, lake_settings: Settings, max_bytes: int
) -> None:
    run = Run(lake, lake_settings, CORRECTED, max_bytes)
    run.take([deleted("a", sent_s=60)])
    assert run.letters == {0: ("open", "nothing_to_delete")}

    run.take([paid("a", 1, sent_s=0)], [paid("a", 2, sent_s=61)])

    assert run.rows == [2]
    assert run.letters == {0: ("deletion", "deletion"), 1: ("superseded", "superseded")}


@AT_ONCE
def test_without_a_sequence_a_letter_is_answered_by_a_record_of_its_time(
    lake: Lake, lake_settings: Settings, max_bytes: int
) -> None:
    run = Run(lake, lake_settings, UNIQUE, max_bytes)

    run.take([paid("a", 1, "many"), paid("b", 1, "many")], [paid("a", 1), paid("b", 1, at_ms=LANDED_MS - 1)])

    assert run.rows == [2, 3]
    assert run.letters == {0: ("resent", "wrong_type"), 1: ("open", "wrong_type")}


@pytest.mark.parametrize("stream", [PLAIN, CORRECTED], ids=["plain", "ids"])
@AT_ONCE
def test_a_record_is_late_by_what_landed_before_it_in_other_commits(
    lake: Lake, lake_settings: Settings, max_bytes: int, stream: Stream
) -> None:
    """The first two landed together, so neither makes the other late."""
    run = Run(lake, lake_settings, stream, max_bytes)
    old = LANDED_MS - 8 * DAY_MS

    run.take([paid("a", 1), paid("b", 1, at_ms=old)], [paid("c", 1, at_ms=old)], [paid("d", 1)])

    assert run.rows == [0, 1, 3]
    assert run.letters == {2: ("open", "late")}


@pytest.mark.soak
@pytest.mark.parametrize(
    ("stream", "order", "taken"),
    [(PLAIN, "-offset", (1, 4)), (UNIQUE, "-(offset DIV 2)", (2, 2)), (CORRECTED, "-(offset % 2)", (2, 2))],
    ids=["turned round", "two and two", "mixed"],
)
def test_what_another_writer_has_put_out_of_order_is_read_in_the_order_of_landing(
    lake: Lake, lake_settings: Settings, stream: Stream, order: str, taken: tuple[int, int]
) -> None:
    """`taken` is how many rows each of bronze's files has, and how many micro-batches take them."""
    rows_a_file, micro_batches = taken
    run = Run(lake, lake_settings, stream)
    old = LANDED_MS - 8 * DAY_MS
    records = [paid("b", 1, at_ms=old), paid("a", 1), paid("a", 1), paid("c", 1, at_ms=old)]
    for second, record in enumerate(records):
        pipeline.land(
            lake.spark,
            lake_settings,
            [[record]],
            landed_at=LANDED + timedelta(seconds=second),
            first_offset=second,
            source=stream.sources[0],
        )
    run.rearrange_bronze(order, rows_a_file)
    path, log = lake.path("bronze", "payments"), Log(lake.path("bronze", "payments"))
    log.refresh()
    in_order = [entries.landings_of(file)[0] for file in tables.files_at(lake.spark, path, log.version)]
    assert in_order == sorted(in_order) == [file.landed for file in log.files_at(log.version) or ()]

    assert run.catch_up() == micro_batches

    is_plain = stream is PLAIN
    assert run.rows == ([0, 1, 2] if is_plain else [0, 1])
    repeated = {} if is_plain else {2: ("duplicate", "duplicate")}
    assert run.letters == {**repeated, 3: ("open", "late")}


OLD = LANDED_MS - 8 * DAY_MS


def assert_late(run: Run, offset: int) -> None:
    """Check that a record is late to the live run, a replay, and a rebuild with or without its letter."""
    now, (source,) = LANDED + timedelta(hours=2), CORRECTED.sources
    assert run.letters[offset] == ("open", "late")

    assert replay(run.lake, [CORRECTED], Selection(rule="late"), now).failed == 1
    done = rebuild_silver(run.lake, CORRECTED, Landed(), now)
    assert done == SilverRebuilt(judged=done.judged)
    assert [one.is_clean for one in check_records(run.lake, CORRECTED, source)] == [True]

    letters = run.lake.path(LETTERS.layer, LETTERS.name)
    assert tables.delete(run.lake.spark, letters, F.col("offset") == offset) == 1
    (check,) = check_records(run.lake, CORRECTED, source)
    assert [(one.key["offset"], one.what) for one in check.examples] == [
        (offset, "neither in silver nor a dead letter")
    ]
    assert rebuild_silver(run.lake, CORRECTED, Landed(), now) == replace(done, newly_refused=1)
    assert run.letters[offset] == ("open", "late")


@pytest.mark.soak
def test_a_record_that_is_no_longer_a_row_moves_the_front_for_good(
    lake: Lake, lake_settings: Settings
) -> None:
    run, corrected = Run(lake, lake_settings, CORRECTED), paid("b", 2, at_ms=OLD + 1)

    run.take([paid("a", 1, at_ms=OLD + 1)], [paid("b", 1)], [corrected], [paid("c", 1, at_ms=OLD)])

    assert run.letters[1] == ("superseded", "superseded")
    assert_late(run, 3)


@pytest.mark.soak
def test_what_retention_takes_moves_the_front_for_good(lake: Lake, lake_settings: Settings) -> None:
    """The record at the front has been deleted; then retention takes it from bronze, and its letter."""
    run = Run(lake, lake_settings, CORRECTED)
    run.take([paid("a", 1, at_ms=OLD + 1)], [paid("b", 1)], [deleted("b", sent_s=60)])
    later, (source,) = LANDED + timedelta(days=3), CORRECTED.sources
    cut = retention.bronze_cut(source, days=1)
    assert retention.take(lake, bronze.spec(source), cut, later, dry_run=False) == 3
    assert retained.taken_of(lake, "bronze", "payments").front == LANDED
    cut = retention.letters_cut([CORRECTED], days=1)
    assert retention.take(lake, LETTERS, cut, later, dry_run=False) == 2
    assert run.letters == {}

    run.take([paid("c", 1, at_ms=OLD)])

    assert_late(run, 3)


@pytest.mark.soak
def test_a_conflicting_record_moves_the_front_even_if_a_person_gives_it_up(
    lake: Lake, lake_settings: Settings
) -> None:
    run = Run(lake, lake_settings, CORRECTED)
    run.take([paid("a", 1, at_ms=OLD + 1)], [paid("a", 1, 2)])
    assert run.letters == {1: ("open", "conflicting_id")}
    assert discard(lake, [CORRECTED], Selection(), LANDED + timedelta(hours=1)).count == 1

    run.take([paid("c", 1, at_ms=OLD)])

    assert_late(run, 2)


@pytest.mark.soak
def test_a_replayed_row_that_an_unfinished_micro_batch_removes_is_not_without_a_letter(
    lake: Lake, lake_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(lake, lake_settings, CORRECTED)
    old, now, (source,) = LANDED_MS - 8 * DAY_MS, LANDED + timedelta(hours=2), CORRECTED.sources
    run.take([paid("a", 1)], [paid("b", 1, at_ms=old)])
    assert replay(lake, [CORRECTED], Selection(), now, allow_late=True).passed == 1

    with monkeypatch.context() as patch:
        patch.setattr(identities, "put", crash_at(identities.put, 1, after=False))
        with pytest.raises(CrashError):
            run.take([paid("b", 2, at_ms=old)])
    assert (run.rows, run.letters) == ([0, 1], {1: ("superseded", "superseded")})

    assert [one.is_clean for one in check_records(lake, CORRECTED, source)] == [True]
    assert rebuild_silver(lake, CORRECTED, Landed(), now) == SilverRebuilt(judged=2)
    run.catch_up()
    assert (run.rows, run.letters) == ([0, 2], {1: ("superseded", "superseded")})


@pytest.mark.soak
def test_silver_waits_while_a_replay_decides_about_ids(
    lake: Lake, lake_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the deletion would find no row, and the replay would admit a row that precedes it."""
    run = Run(lake, lake_settings, CORRECTED)
    run.take([paid("a", 1)], [paid("b", 1, at_ms=LANDED_MS - 8 * DAY_MS)])
    pipeline.land(
        lake.spark,
        lake_settings,
        [[deleted("b", sent_s=60)]],
        landed_at=LANDED,
        first_offset=2,
        source=CORRECTED.sources[0],
    )
    clean = lake.path("silver", "payments")
    put, names, looks, taken = identities.put, storage.names, list[str](), list[int]()
    silver = Thread(target=lambda: taken.append(run.catch_up()))

    def overtaken(*arguments: Any) -> int | None:
        if current_thread() is not silver:
            silver.start()
            await_(lambda: bool(taken) or looks.count(f"{clean}/_lakehouse_lease") > 2)
        return put(*arguments)

    def noting(spark: SparkSession, directory: str) -> list[str]:
        if current_thread() is silver:
            looks.append(directory)
        return names(spark, directory)

    monkeypatch.setattr(identities, "put", overtaken)
    monkeypatch.setattr(storage, "names", noting)
    now = LANDED + timedelta(hours=2)
    done = replay(lake, [CORRECTED], Selection(rule="late"), now, allow_late=True)
    silver.join(300)

    assert done.passed == 1
    assert run.rows == [0]
    assert run.letters == {1: ("superseded", "superseded"), 2: ("deletion", "deletion")}
    assert rebuild_silver(lake, CORRECTED, Landed(), now) == SilverRebuilt(judged=3)


@pytest.mark.soak
def test_a_rebuild_writes_the_letter_of_a_replayed_row_again(lake: Lake, lake_settings: Settings) -> None:
    run = Run(lake, lake_settings, CORRECTED)
    now, (source,) = LANDED + timedelta(hours=2), CORRECTED.sources
    run.take([paid("a", 1)], [paid("b", 1, at_ms=LANDED_MS - 8 * DAY_MS)])
    assert replay(lake, [CORRECTED], Selection(), now, allow_late=True).passed == 1
    (row,) = (one for one in pipeline.rows_of(lake_settings, "silver.payments") if one["offset"] == 1)
    after, at = (pipeline.micros(row["admitted"][name]) for name in ("after", "at"))
    assert (after, at) == (pipeline.micros(LANDED) + 1, pipeline.micros(now))
    letters = lake.path(LETTERS.layer, LETTERS.name)
    assert tables.delete(lake.spark, letters, F.col("offset") == 1) == 1

    (check,) = check_records(lake, CORRECTED, source)
    done = rebuild_silver(lake, CORRECTED, Landed(), now)

    assert [(one.key["offset"], one.what) for one in check.examples] == [
        (1, "replayed, but its dead letter is missing")
    ]
    assert done == SilverRebuilt(judged=2, newly_accepted=1)
    assert (run.rows, run.letters) == ([0, 1], {1: ("replayed", "lost")})
    assert [one.is_clean for one in check_records(lake, CORRECTED, source)] == [True]
    assert rebuild_silver(lake, CORRECTED, Landed(), now) == SilverRebuilt(judged=2)


@pytest.mark.soak
def test_an_id_that_is_noted_again_keeps_the_greatest_bar_and_none_once_its_row_is_taken(
    lake: Lake, lake_settings: Settings
) -> None:
    run = Run(lake, lake_settings, CORRECTED)
    run.take([paid("c", 1)])
    (source,) = CORRECTED.sources

    def note(id_: str, bar: int | None, until_s: int | None, since_s: int | None) -> None:
        times = (None if one is None else LANDED + timedelta(seconds=one) for one in (until_s, since_s))
        types = "id string, bar long, until timestamp, since timestamp"
        retained.note_ids(lake, source, lake.spark.createDataFrame([(id_, bar, *times)], types))

    def noted() -> dict[str, tuple[int | None, ...]]:
        start = pipeline.micros(LANDED)
        names = {sha256(one.encode()).digest()[:16]: one for one in "ab"}

        def seconds(at: int | None) -> int | None:
            return None if at is None else (at - start) // 1_000_000

        return {
            names[bytes(row["fingerprint"])]: (row["bar"], seconds(row["until"]), seconds(row["since"]))
            for row in pipeline.rows_of(lake_settings, "ops.retained_ids")
        }

    note("a", 5, 60, 0)
    note("a", 3, 70, 10)
    note("b", 5, None, 0)
    assert noted() == {"a": (5, 70, 0), "b": (5, None, 0)}

    note("b", None, None, None)
    note("b", 7, 60, 0)
    assert noted() == {"a": (5, 70, 0), "b": (None, None, None)}

    run.take([paid("a", 5, sent_s=80)], [paid("a", 6, sent_s=80)], [paid("b", 9, sent_s=80)])
    assert run.rows == [0, 2]
    assert run.letters == {1: ("open", "retained"), 3: ("open", "retained")}

    other = payments(unique_by="id", sequence_by="header:turn")
    assert [row.bar for row in retained.ids_taken(lake, other.sources[0]).collect()] == [None, None]


@pytest.mark.soak
def test_gold_follows_corrections_through_a_combine_that_selects_columns(
    lake: Lake, lake_settings: Settings
) -> None:
    (table,) = CORRECTED.gold
    picked = replace(table, combine=lambda rows: only(rows).select("user", "amount", "event_time"))
    stream = replace(CORRECTED, gold=(picked,))
    run = Run(lake, lake_settings, stream)

    def totals() -> list[tuple[str, int, int]]:
        take_next(gold_of(lake.spark, lake_settings, stream), now=LANDED + timedelta(hours=1))
        rows = pipeline.rows_of(lake_settings, "gold.sums")
        return [(row["user"], int(row["total_amount"]), row["count"]) for row in rows]

    run.take([paid("a", 1, 10), paid("b", 1, 5)])
    assert totals() == [("ann", 15, 2)]

    run.take([paid("a", 2, 12), deleted("b", sent_s=60)])
    assert totals() == [("ann", 12, 1)]
