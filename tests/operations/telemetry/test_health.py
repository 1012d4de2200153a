"""A stream's health and its reason, derived from what has been observed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from lakehouse.operations.telemetry import (
    Health,
    LayerLag,
    PartitionLag,
    QueryState,
    Refused,
    StreamGate,
    Word,
)
from lakehouse.operations.telemetry.health import health_of
from lakehouse.operations.telemetry.values import OpenTransaction
from tests.support import pipeline

NOW = pipeline.utc("2026-11-22T09:00:00")
AGO = NOW - timedelta(minutes=2)
QUERIES = [QueryState(f"{layer}.a", layer, 3, AGO) for layer in ("bronze", "silver", "gold", "export")]


def health(
    *,
    unrun: Mapping[str, datetime | None],
    topic: tuple[int, float | None] = (0, 0.0),
    silver: tuple[int | None, float | None] = (0, 0.0),
    reason: str | None = None,
    export: tuple[int, float] = (0, 0.0),
    newest: datetime | None = NOW,
    gate: StreamGate | None = None,
    held: OpenTransaction | None = None,
    queries: Sequence[QueryState] = QUERIES,
    refused: Sequence[Refused] = (),
) -> Health:
    """Return the health of a stream with this many records waiting, for this many seconds."""
    layers = [
        LayerLag("silver", "silver.a", "bronze.a", *silver, reason=reason),
        LayerLag("export", "export.a", "gold.a", *export),
    ]
    return health_of(
        [PartitionLag("t", 0, 5, 5 + topic[0], *topic, reason=reason, open_transaction=held)],
        layers,
        queries,
        gate=gate,
        newest_event=newest,
        unrun=unrun,
        now=NOW,
        lag_limit=timedelta(minutes=1),
        fresh=timedelta(days=1),
        refused=refused,
    )


def test_one_that_has_refused_too_much_says_how_much_and_why() -> None:
    too_much = Refused("silver.a", AGO, 2_000, 1_999, 0.05, True, ("1,990 not_json", "9 wrong_type of n"))
    enough = Refused("silver.b", AGO, 2_000, 100, 0.05, False, ("100 late of event_time",))
    said = "1,999 of 2,000 records of silver.a were refused, more than 5 %: 1,990 not_json, 9 wrong_type of n"
    assert health(unrun={}, refused=[enough]).word is Word.WELL
    assert health(unrun={}, refused=[enough, too_much]) == Health(Word.REFUSING, said, AGO)
    assert health(unrun={}, refused=[too_much], newest=NOW - timedelta(days=2)).word is Word.REFUSING
    assert health(unrun={"bronze": AGO}, refused=[too_much], topic=(1, 0.5)).word is Word.STOPPED


def test_one_that_has_caught_up_and_is_not_run_is_well_and_says_so() -> None:
    everything = dict.fromkeys(("bronze", "silver", "gold", "export"), AGO)
    caught_up = "every record has been processed"
    assert health(unrun={}) == Health(Word.WELL, caught_up)
    assert health(unrun=everything) == Health(
        Word.WELL, f"{caught_up}; no process has run it since 2026-11-22 08:58:00 UTC", is_unrun=True
    )
    assert health(unrun={"silver": None, "gold": None}) == Health(
        Word.WELL, f"{caught_up}; no process runs silver, gold", is_unrun=True
    )
    assert health(unrun=dict.fromkeys(everything), newest=None) == Health(
        Word.EMPTY, "nothing has been accepted yet; no process runs it", is_unrun=True
    )


def test_one_in_which_records_wait_no_longer_than_allowed_says_that_and_not_that_all_are_processed() -> None:
    within = Health(Word.WELL, "no record has waited longer than 60 s")
    assert health(unrun={}, topic=(1, 0.5)) == within
    assert health(unrun={}, silver=(1, 59.0)) == within
    assert health(unrun={}, held=OpenTransaction(3, "shop-1", NOW)) == within
    assert health(unrun={"gold": None}, export=(1, 0.5)) == Health(
        Word.WELL, f"{within.reason}; no process runs gold", is_unrun=True
    )


def test_a_single_record_that_nobody_will_write_on_stops_a_stream_at_once() -> None:
    assert health(unrun={"bronze": AGO}, topic=(1, 0.5)) == Health(
        Word.STOPPED,
        "1 records of t wait for bronze, which no process has run since 2026-11-22 08:58:00 UTC",
        NOW - timedelta(seconds=0.5),
        is_unrun=True,
    )
    assert health(unrun={"silver": None}, silver=(1_200, 300.0)) == Health(
        Word.STOPPED,
        "1,200 rows of bronze.a wait for silver.a, which no process runs",
        NOW - timedelta(seconds=300),
        is_unrun=True,
    )


def test_what_is_run_may_take_its_time_and_stands_still_after_that() -> None:
    assert health(unrun={"bronze": None}, silver=(1, 59.0)).word is Word.WELL
    assert health(unrun={"bronze": None}, silver=(1, 61.0)).word is Word.STALLED


def test_what_waits_in_unknown_number_leaves_a_stream_unknown_with_the_reason() -> None:
    lost = "log retention removed version 2 before it was read"
    assert health(unrun={}, silver=(None, None), reason=lost) == Health(Word.UNKNOWN, f"silver.a: {lost}")


def test_what_waits_for_an_unknown_time_leaves_a_stream_unknown_unless_it_is_worse() -> None:
    """Bronze, stuck for an hour, was once reported as well because its records' times could not be read."""
    untold = "the time of the record at offset 5 is unknown"
    assert health(unrun={}, topic=(5_000_000, None), reason=untold) == Health(
        Word.UNKNOWN, f"5,000,000 records of t wait for bronze; their age is unknown: {untold}"
    )
    assert health(unrun={}, silver=(2, None), reason=untold).word is Word.UNKNOWN
    assert health(unrun={"bronze": AGO}, topic=(1, None)).word is Word.STOPPED
    assert health(unrun={}, topic=(1, None), silver=(1, 61.0)).word is Word.STALLED


def test_a_closed_gate_holds_what_waits_whoever_runs_it() -> None:
    closed = StreamGate(is_open=False, changed_at=AGO, reasons=("too few rows",))
    assert health(unrun={"export": None}, export=(4, 300.0), gate=closed).word is Word.BLOCKED
    assert health(unrun={"export": None}, export=(4, 300.0)).word is Word.STOPPED


def test_a_store_that_lacks_rows_which_others_have_is_behind_whatever_was_sent() -> None:
    export = replace(QUERIES[3], behind=("redis",))
    assert health(unrun={}, queries=[*QUERIES[:3], export]) == Health(
        Word.BEHIND,
        "redis lacks rows that export.a sent to other stores (unavailable or full); "
        "the export sends them once it can",
    )
    both = [*QUERIES[:3], replace(export, behind=("postgres", "redis"))]
    assert health(unrun={}, queries=both).reason.startswith("postgres and redis lack rows that export.a sent")


def test_an_open_transaction_that_hides_records_for_too_long_is_named() -> None:
    young = OpenTransaction(3, "shop-1", NOW - timedelta(seconds=59))
    assert health(unrun={}, held=young).word is Word.WELL
    assert health(unrun={}, held=OpenTransaction(1_200, "shop-1", AGO)) == Health(
        Word.BEHIND,
        "an open transaction of producer shop-1 has hidden up to 1,200 records of t "
        "since 2026-11-22 08:58:00 UTC",
        AGO,
    )
