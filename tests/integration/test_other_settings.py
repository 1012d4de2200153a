"""Changes to settings that existing rows depend on are refused until a rebuild makes the rows anew."""

from __future__ import annotations

import json
from datetime import timedelta
from decimal import Decimal
from unittest.mock import patch

import pytest

from lakehouse.common.errors import PositionError, TableError
from lakehouse.engine.layers import bronze, gold, silver
from lakehouse.engine.layers.step import Permitted, StepMaker
from lakehouse.operations.audit.records import check_records
from lakehouse.operations.maintenance import retention
from lakehouse.operations.repair.rebuild_gold import WindowSpan, rebuild_gold
from lakehouse.operations.repair.rebuild_silver import Landed, SilverRebuilt, rebuild_silver
from lakehouse.settings import Settings
from lakehouse.storage import tables
from lakehouse.storage.tables import Lake
from lakehouse.streams.definition import Stream
from lakehouse.streams.kinds import Records, Side, joined_calls, running_totals
from lakehouse.testing.kills import CrashError, crash_at, take_next
from tests.support import pipeline
from tests.support.payments import CORRECTED, LANDED, LANDED_MS, PLAIN, UNIQUE, Run, deleted, paid
from tests.support.pipeline import DEAD_LETTERS, Raw

pytestmark = pytest.mark.soak

WITH_HISTORY = [
    paid("a", 1, 10),
    paid("a", 2, 12),
    paid("b", 1, 5),
    paid("b", 1, 5),
    deleted("c", sent_s=0),
    paid("d", 1, "nonsense"),
    paid("d", 2, 7),
]
"""A correction; a duplicate; a deletion of nothing; a malformed record that is then answered."""

BY_SEQUENCE = {
    0: ("superseded", "superseded"),
    3: ("duplicate", "duplicate"),
    4: ("open", "nothing_to_delete"),
    5: ("resent", "wrong_type"),
}


@pytest.fixture
def run(lake: Lake, lake_settings: Settings) -> Run:
    made = Run(lake, lake_settings, CORRECTED)
    made.take(WITH_HISTORY)
    assert (made.rows, made.letters) == ([1, 2, 6], BY_SEQUENCE)
    return made


def rebuilt(run: Run, stream: Stream, *, dry_run: bool = False) -> SilverRebuilt:
    run.stream = stream
    return rebuild_silver(run.lake, stream, Landed(), LANDED, dry_run=dry_run)


def made(run: Run, stream: Stream) -> StepMaker:
    (maker,) = silver.steps(run.lake, stream, 1, Permitted())
    return maker


def test_silver_is_refused_under_other_ids_and_says_what_to_do(run: Run) -> None:
    version = tables.version_of(run.lake.spark, run.lake.path("silver", "payments"))

    with pytest.raises(TableError) as refused:
        made(run, UNIQUE).make()

    assert str(refused.value) == (
        "silver.payments was made with sequence_by = version, but the settings say none; existing rows "
        "depend on this setting. Set sequence_by back to its old value, or recompute the rows with "
        "`lakehouse rebuild silver`; its --dry-run lists the changes"
    )
    assert tables.version_of(run.lake.spark, run.lake.path("silver", "payments")) == version


def test_a_rebuild_makes_rows_and_letters_without_ids_and_with_them_again(run: Run) -> None:
    dry = rebuilt(run, PLAIN, dry_run=True)
    assert run.rows == [1, 2, 6]

    done = rebuilt(run, PLAIN)

    assert dry == done
    assert run.rows == [0, 1, 2, 3, 6]
    assert run.letters == {
        0: ("replayed", "superseded"),
        3: ("replayed", "duplicate"),
        4: ("open", "value_null"),
        5: ("open", "wrong_type"),
    }
    found = {row["offset"]: row["unique_id"] for row in pipeline.rows_of(run.settings, DEAD_LETTERS)}
    assert found[3] is None
    run.take([paid("b", 1, 6)])  # silver continues, and the leftover columns do no harm
    assert 7 in run.rows
    assert rebuilt(run, CORRECTED).judged == 8
    standing = {place: one for place, one in run.letters.items() if one[0] != "replayed"}
    assert (run.rows, standing) == ([1, 2, 6], {**BY_SEQUENCE, 7: ("open", "conflicting_id")})
    assert not rebuilt(run, CORRECTED, dry_run=True).changed


def test_rows_whose_records_retention_has_taken_get_no_id_and_are_counted(
    lake: Lake, lake_settings: Settings
) -> None:
    run, (source,) = Run(lake, lake_settings, PLAIN), PLAIN.sources
    run.take([paid("a", 1), paid("b", 1)])
    cut = retention.bronze_cut(source, days=1)
    assert retention.take(lake, bronze.spec(source), cut, LANDED + timedelta(days=3), dry_run=False) == 2
    run.take([paid("c", 1)])

    dry = rebuilt(run, CORRECTED, dry_run=True)
    done = rebuilt(run, CORRECTED)

    assert dry == done
    assert (done.made_anew, done.without_id, done.removed) == (True, 2, 0)
    run.take([paid("a", 2)])
    assert run.rows == [0, 1, 2, 3]
    assert rebuilt(run, CORRECTED).without_id == 0  # the settings are the same as before


def test_what_runs_under_the_former_ids_writes_no_more(run: Run) -> None:
    running = made(run, CORRECTED).make()
    pipeline.land(
        run.lake.spark,
        run.settings,
        [[paid("a", 3)]],
        landed_at=LANDED,
        first_offset=7,
        source=CORRECTED.sources[0],
    )

    rebuilt(run, PLAIN)

    with pytest.raises(PositionError, match="now uses unique_by = none, but this process has id"):
        take_next(running, now=LANDED)
    assert run.rows == [0, 1, 2, 3, 6]
    run.take()
    assert run.rows == [0, 1, 2, 3, 6, 7]


def test_a_rebuild_that_was_killed_is_refused_under_all_ids_until_one_has_ended(run: Run) -> None:
    killed = crash_at(tables.replace, 1, after=True)
    with pytest.raises(CrashError), patch.object(tables, "replace", killed):
        rebuilt(run, PLAIN)

    for stream in (PLAIN, CORRECTED):
        with pytest.raises(TableError, match="was made with unique_by = a rebuild that has not ended"):
            made(run, stream).make()
    rebuilt(run, CORRECTED)
    assert (run.rows, run.letters) == ([1, 2, 6], BY_SEQUENCE)
    made(run, CORRECTED).make().close()


def test_the_audit_says_that_silver_was_made_with_other_ids(run: Run) -> None:
    (source,) = PLAIN.sources

    (check,) = check_records(run.lake, PLAIN, source)

    assert check.differences == 3
    told = "silver.payments was built with different id settings: run `lakehouse rebuild silver`"
    assert told in check.notes


def totals(threshold: int) -> Stream:
    limit = Decimal(threshold)
    return running_totals("shop", Records("shop"), by="user", value="amount", threshold=limit, to=None)


def test_gold_is_made_anew_under_another_threshold(lake: Lake, lake_settings: Settings) -> None:
    before, after = totals(100), totals(15)
    (source,), (table,) = before.sources, after.gold

    def run_gold(stream: Stream) -> None:
        for maker in (*silver.steps(lake, stream, 1, Permitted()), *gold.steps(lake, stream, 1)):
            step = maker.make()
            while take_next(step, now=LANDED) is not None:
                pass

    def told() -> list[tuple[int, Decimal]]:
        rows = pipeline.rows_of(lake_settings, "gold.shop_notifications")
        return sorted((row["offset"], row["value"]) for row in rows)

    pipeline.land(
        lake.spark, lake_settings, [[paid("a", 1, 10), paid("a", 1, 10)]], landed_at=LANDED, source=source
    )
    run_gold(before)
    assert told() == []
    with pytest.raises(TableError, match=r"with streams\.shop\.threshold = 100, but the settings say 15"):
        run_gold(after)
    with pytest.raises(TableError, match="rebuild the whole table, without --from and --to"):
        rebuild_gold(lake, table, WindowSpan(first=LANDED))

    rebuild_gold(lake, table, WindowSpan())

    assert told() == [(1, Decimal(20))]
    run_gold(after)
    with pytest.raises(TableError, match=r"with streams\.shop\.threshold = 15, but the settings say 100"):
        run_gold(before)


def calls(gap_s: int) -> Stream:
    sides = [Side(records=f"calls-{name}", payload=name) for name in ("heard", "said")]
    return joined_calls("calls", sides, pair=("one", "other"), gap=f"{gap_s}s", to=None)


def test_calls_are_made_anew_under_another_gap_and_many_are_only_taken_away_by_force(
    lake: Lake, lake_settings: Settings
) -> None:
    before, after = calls(60), calls(120)
    (table,) = after.gold
    for source, at_s in zip(before.sources, (0, 90), strict=True):
        record = {"one": "ann", "other": "bob", "timestamp": LANDED_MS + at_s * 1000}
        record |= {name: {} for name in ("heard", "said")}
        raw = Raw(json.dumps(record).encode(), timestamp_ms=LANDED_MS)
        pipeline.land(lake.spark, lake_settings, [[raw]], landed_at=LANDED, source=source)
    for maker in (*silver.steps(lake, before, 1, Permitted()), *gold.steps(lake, before, 1)):
        step = maker.make()
        while take_next(step, now=LANDED) is not None:
            pass
    assert starts(lake_settings) == [0, 90]
    with pytest.raises(TableError, match="has no records for them with the current settings"):
        rebuild_gold(lake, table, WindowSpan())
    (maker,) = gold.steps(lake, before, 1)
    maker.make().close()  # nothing was noted

    rebuild_gold(lake, table, WindowSpan(), force=True)

    assert starts(lake_settings) == [0]
    with pytest.raises(TableError, match=r"was made with streams\.calls\.gap = 2m, but the settings say 1m"):
        maker.make()


def starts(settings: Settings) -> list[int]:
    rows = pipeline.rows_of(settings, "gold.calls")
    return sorted((row["ts"] // 1000 - LANDED_MS) // 1000 for row in rows)
