"""A stream's health and its reason, derived from what has been observed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from lakehouse.common.errors import StoreWord
from lakehouse.engine.progress.sent import Lacking
from lakehouse.operations.telemetry import (
    Backlog,
    Health,
    LayerLag,
    PartitionLag,
    QueryRun,
    QueryState,
    Refused,
    StoreState,
    StreamGate,
    StreamState,
    Word,
    backlogs_of,
    summary_of,
    waiting_of,
    worst_first,
)
from lakehouse.operations.telemetry.health import health_of, store_state
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
    failing: Sequence[QueryRun] = (),
    partitions: Sequence[PartitionLag] = (),
    layers: Sequence[LayerLag] = (),
) -> Health:
    """Return the health of a stream with this many records waiting, for this many seconds.

    `partitions` and `layers` replace those that the numbers describe.
    """
    described = [
        LayerLag("silver", "silver.a", "bronze.a", *silver, reason=reason),
        LayerLag("export", "export.a", "gold.a", *export),
    ]
    one = PartitionLag("t", 0, 5, 5 + topic[0], *topic, reason=reason, open_transaction=held)
    return health_of(
        partitions or [one],
        layers or described,
        queries,
        gate=gate,
        newest_event=newest,
        unrun=unrun,
        now=NOW,
        lag_limit=timedelta(minutes=1),
        fresh=timedelta(days=1),
        refused=refused,
        failing=failing,
    )


def test_one_that_has_refused_too_much_says_how_much_and_why() -> None:
    too_much = Refused("silver.a", AGO, 2_000, 1_999, 0.05, True, ("1,990 not_json", "9 wrong_type of n"))
    enough = Refused("silver.b", AGO, 2_000, 100, 0.05, False, ("100 late of event_time",))
    said = "1,999 of 2,000 records of silver.a were refused, more than 5 %: 1,990 not_json, 9 wrong_type of n"
    assert health(unrun={}, refused=[enough]).word is Word.WELL
    assert health(unrun={}, refused=[enough, too_much]) == Health(Word.REFUSING, said, AGO)
    assert health(unrun={}, refused=[too_much], newest=NOW - timedelta(days=2)).word is Word.REFUSING
    assert health(unrun={"bronze": AGO}, refused=[too_much], topic=(1, 0.5)).word is Word.STOPPED


def test_one_with_a_failing_step_says_why_and_since_when_unless_it_stands_still() -> None:
    failing = [QueryRun("silver.a", error="the disk is full", failed_at=AGO)]
    closed = StreamGate(is_open=False, changed_at=AGO, reasons=("too few rows",))
    expected = Health(Word.FAILING, "silver.a fails: the disk is full", AGO)
    assert health(unrun={}, failing=failing) == expected
    assert health(unrun={}, failing=failing, gate=closed, silver=(None, None), reason="lost") == expected
    assert health(unrun={"gold": AGO}, failing=failing) == expected
    assert health(unrun={"silver": AGO}, failing=failing, silver=(1, 5.0)).word is Word.STOPPED
    assert health(unrun={}, failing=failing, silver=(4, 90.0)).word is Word.STALLED


def test_one_that_has_caught_up_and_is_not_run_is_idle_since_it_was_last_run() -> None:
    before = AGO - timedelta(minutes=5)
    everything = {"bronze": before, "silver": before, "gold": before, "export": AGO}
    caught_up = "every record has been processed"
    assert health(unrun={}) == Health(Word.WELL, caught_up)
    assert health(unrun=everything) == Health(
        Word.IDLE, f"{caught_up}; no process runs the stream", AGO, is_unrun=True
    )
    assert health(unrun={"silver": None, "gold": None}) == Health(
        Word.IDLE, f"{caught_up}; no process runs silver, gold", is_unrun=True
    )


def test_one_that_is_empty_or_stale_and_is_not_run_keeps_its_word() -> None:
    everything = dict.fromkeys(("bronze", "silver", "gold", "export"), AGO)
    assert health(unrun=dict.fromkeys(everything), newest=None) == Health(
        Word.EMPTY, "nothing has been accepted yet; no process runs the stream", is_unrun=True
    )
    assert health(unrun=everything, newest=NOW - timedelta(days=2)) == Health(
        Word.STALE,
        "the newest event is from 2026-11-20 09:00:00 UTC; no process runs the stream "
        "(last active at 2026-11-22 08:58:00 UTC)",
        NOW - timedelta(days=1),
        is_unrun=True,
    )


def test_one_in_which_records_wait_no_longer_than_allowed_says_that_and_not_that_all_are_processed() -> None:
    within = Health(Word.WELL, "no record has waited longer than 60 s")
    assert health(unrun={}, topic=(1, 0.5)) == within
    assert health(unrun={}, silver=(1, 59.0)) == within
    assert health(unrun={}, held=OpenTransaction(3, "shop-1", NOW)) == within
    assert health(unrun={"gold": None}, export=(1, 0.5)) == Health(
        Word.WELL, f"{within.reason}; no process runs gold", is_unrun=True
    )
    hidden = health(unrun=dict.fromkeys(query.layer for query in QUERIES), held=OpenTransaction(3, "s", NOW))
    assert hidden == Health(Word.IDLE, f"{within.reason}; no process runs the stream", is_unrun=True)


def test_a_single_record_that_nobody_will_write_on_stops_a_stream_at_once() -> None:
    assert health(unrun={"bronze": AGO}, topic=(1, 0.5)) == Health(
        Word.STOPPED,
        "1 record of t waits for bronze; no process runs it (last active at 2026-11-22 08:58:00 UTC); "
        "the oldest has waited since 2026-11-22 08:59:59 UTC",
        NOW - timedelta(seconds=0.5),
        is_unrun=True,
    )
    assert health(unrun={"silver": None}, silver=(1_200, 300.0)) == Health(
        Word.STOPPED,
        "1,200 rows of bronze.a wait for silver; no process runs it; "
        "the oldest has waited since 2026-11-22 08:55:00 UTC",
        NOW - timedelta(seconds=300),
        is_unrun=True,
    )


def test_records_of_several_topics_that_wait_for_bronze_are_one_number() -> None:
    """The page and the terminal show their sum, and a reason once named one of the topics only."""

    def of_two(*found: tuple[int | None, float | None], unrun: bool = True) -> Health:
        lags = [
            PartitionLag(topic, 0, 5, None, records, seconds, reason=None if records else "no such topic")
            for topic, (records, seconds) in zip(("analyticsTopic", "metricsTopic"), found, strict=True)
        ]
        return health(unrun={"bronze": AGO} if unrun else {}, partitions=lags)

    ran = "no process runs it (last active at 2026-11-22 08:58:00 UTC)"
    assert of_two((6_765, 780.0), (6_735, 600.0)) == Health(
        Word.STOPPED,
        "13,500 records wait for bronze (6,765 of analyticsTopic, 6,735 of metricsTopic); "
        f"{ran}; the oldest has waited since 2026-11-22 08:47:00 UTC",
        AGO,
        is_unrun=True,
    )
    assert of_two((6_765, 780.0), (6_735, 600.0), unrun=False) == Health(
        Word.STALLED,
        "13,500 records wait for bronze (6,765 of analyticsTopic, 6,735 of metricsTopic), "
        "which last wrote at 2026-11-22 08:58:00 UTC",
        NOW - timedelta(seconds=780),
    )
    assert of_two((0, 0.0), (1, 600.0)).reason.startswith("1 record of metricsTopic waits for bronze; ")
    assert of_two((6_765, None), (6_735, 600.0)).reason == (
        f"13,500 records wait for bronze (6,765 of analyticsTopic, 6,735 of metricsTopic); {ran}"
    )
    assert of_two((6_765, 780.0), (None, None)).reason.startswith(
        "at least 6,765 records of analyticsTopic wait for bronze; "
    )
    assert of_two((0, 0.0), (None, None)) == Health(Word.UNKNOWN, "metricsTopic: no such topic")


def test_rows_of_several_tables_that_wait_for_a_layer_or_a_query_are_one_number() -> None:
    lags = [
        LayerLag("gold", "gold.a", "silver.a", 5, 300.0),
        LayerLag("gold", "gold.a", "silver.b", 7, 200.0),
        LayerLag("gold", "gold.c", "silver.a", 1, 100.0),
    ]
    oldest = NOW - timedelta(seconds=300)
    assert health(unrun={"gold": None}, layers=lags) == Health(
        Word.STOPPED,
        "13 rows wait for gold (6 of silver.a, 7 of silver.b); no process runs it; "
        "the oldest has waited since 2026-11-22 08:55:00 UTC",
        oldest,
        is_unrun=True,
    )
    assert health(unrun={}, layers=lags) == Health(
        Word.STALLED,
        "12 rows wait for gold.a (5 of silver.a, 7 of silver.b), which last wrote at 2026-11-22 08:58:00 UTC",
        oldest,
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
    redis = StoreState("redis", StoreWord.FULL, "no room is left", AGO, lacks_rows=True)
    export = replace(QUERIES[3], stores=(StoreState("kafka", StoreWord.WELL, ""), redis))
    assert health(unrun={}, queries=[*QUERIES[:3], export]) == Health(
        Word.BEHIND, "redis lacks rows of export.a because it is full: no room is left", AGO
    )


AWAY = Lacking(StoreWord.AWAY, "nothing listens there", AGO)


@pytest.mark.parametrize(
    ("waits", "more", "expected"),
    [
        ((0, 0.0), {}, StoreState("s", StoreWord.WELL, "every row has been sent")),
        ((3, 60.0), {}, StoreState("s", StoreWord.WELL, "no row has waited longer than 60 s")),
        (
            (1, 120.0),
            {},
            StoreState(
                "s",
                StoreWord.BEHIND,
                "1 row waits for export.a, the oldest since 2026-11-22 08:58:00 UTC",
                AGO,
            ),
        ),
        (
            (3, 120.0),
            {"is_held": True},
            StoreState("s", StoreWord.WELL, "the gate is closed and holds rows back"),
        ),
        (
            (None, None),
            {},
            StoreState("s", StoreWord.UNKNOWN, "it is unknown how long rows have waited: gone"),
        ),
        (
            (0, 0.0),
            {"lacking": AWAY},
            StoreState("s", StoreWord.AWAY, "nothing listens there", AGO, lacks_rows=True),
        ),
        (
            (0, 0.0),
            {"lacking": AWAY, "is_run": False},
            StoreState(
                "s",
                StoreWord.AWAY,
                "nothing listens there; no process runs export.a, so this is from its last attempt",
                AGO,
                lacks_rows=True,
            ),
        ),
        ((0, 0.0), {"away": "no broker"}, StoreState("s", StoreWord.AWAY, "no broker")),
        (
            (0, 0.0),
            {"away": "no broker", "lacking": AWAY},
            StoreState("s", StoreWord.AWAY, "no broker", AGO, lacks_rows=True),
        ),
    ],
)
def test_a_store_is_what_its_export_has_noted_or_else_what_waits(
    waits: tuple[int | None, float | None], more: dict[str, Any], expected: StoreState
) -> None:
    lag = LayerLag("export", "export.a", "gold.a", *waits, reason="gone")
    given = {"lacking": None, "away": None, "is_held": False, "is_run": True, **more}
    assert store_state("s", lag, now=NOW, lag_limit=timedelta(minutes=1), **given) == expected


def test_an_open_transaction_that_hides_records_for_too_long_is_named() -> None:
    young = OpenTransaction(3, "shop-1", NOW - timedelta(seconds=59))
    assert health(unrun={}, held=young).word is Word.WELL
    assert health(unrun={}, held=OpenTransaction(1_200, "shop-1", AGO)) == Health(
        Word.BEHIND,
        "an open transaction of producer shop-1 has hidden up to 1,200 records of t "
        "since 2026-11-22 08:58:00 UTC",
        AGO,
    )


Waits = tuple[int | None, float | None]


def stream(
    word: Word, topic: Waits = (0, 0.0), *, silver: Waits | None = (0, 0.0), since: datetime | None = None
) -> StreamState:
    """Return a stream of two layers, named like its word. Without `silver`, its tables cannot be read."""
    lags = () if silver is None else (LayerLag("silver", "silver.a", "bronze.a", *silver),)
    partitions = (PartitionLag("t", 0, 5, None, *topic),)
    return StreamState(word.value, Health(word, "", since), partitions, lags, queries=tuple(QUERIES[:2]))


def test_the_worst_word_comes_first_then_the_one_that_has_applied_for_longest() -> None:
    states = [stream(Word.WELL), stream(Word.STOPPED), stream(Word.BEHIND), stream(Word.STOPPED, since=AGO)]
    ordered = [(one.name, one.health.since) for one in worst_first(states)]
    assert ordered == [("stopped", AGO), ("stopped", None), ("behind", None), ("well", None)]


def test_a_layer_that_could_not_be_read_has_an_unknown_backlog_and_not_none() -> None:
    read = stream(Word.BEHIND, (7, 60.0), silver=(3, None))
    assert backlogs_of(read) == (Backlog("bronze", 7, 60.0), Backlog("silver", 3, None))
    unread = stream(Word.UNKNOWN, silver=None)
    assert backlogs_of(unread) == (Backlog("bronze", 0, 0.0), Backlog("silver", None, None))
    assert waiting_of(unread) is None
    assert backlogs_of(StreamState("a", Health(Word.UNKNOWN, "KeyError"))) == ()
    assert waiting_of(StreamState("a", Health(Word.UNKNOWN, "KeyError"))) is None


@pytest.mark.parametrize(
    ("topic", "silver", "expected"),
    [
        ((0, 0.0), (0, 0.0), Backlog("bronze", 0, 0.0)),
        ((7, 60.0), (900, 59.0), Backlog("bronze", 7, 60.0)),
        ((7, 60.0), (9, 61.0), Backlog("silver", 9, 61.0)),
        ((7, 60.0), (9, None), Backlog("silver", 9, None)),
        ((0, 0.0), (9, 0.0), Backlog("silver", 9, 0.0)),
        ((None, None), (9, 5.0), Backlog("silver", 9, 5.0)),
        ((None, None), (0, 0.0), None),
    ],
)
def test_what_waits_is_the_backlog_with_the_longest_wait(
    topic: Waits, silver: Waits, expected: Backlog | None
) -> None:
    assert waiting_of(stream(Word.WELL, topic, silver=silver)) == expected


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ([], "There are no streams"),
        ([stream(Word.WELL)] * 4, "4 of 4 streams are well; no record waits"),
        (
            [stream(Word.STOPPED, (13_500, 780.0)), stream(Word.WELL), stream(Word.WELL)],
            "1 of 3 streams is stopped; 13,500 records wait, the oldest for 13 min",
        ),
        (
            [
                stream(Word.IDLE),
                stream(Word.BEHIND, (1_000, 7_300.0), silver=(400, 9.0)),
                stream(Word.STALLED, silver=(5, 60.0)),
                stream(Word.STALLED, (3, None)),
            ],
            (
                "2 of 4 streams are stalled, 1 is behind, 1 is idle; "
                "1,008 records wait, the oldest for at least 2 h"
            ),
        ),
        ([stream(Word.UNKNOWN, (1, None))], "1 of 1 stream is unknown; 1 record waits, for an unknown time"),
        (
            [stream(Word.UNKNOWN, (None, None), silver=(2, 5.0)), stream(Word.WELL)],
            (
                "1 of 2 streams is unknown; at least 2 records wait, the oldest for 5 s; "
                "the backlog of 1 stream is unknown"
            ),
        ),
        (
            [stream(Word.UNKNOWN, (None, None)), StreamState("a", Health(Word.UNKNOWN, "KeyError"))],
            "2 of 2 streams are unknown; the backlog of 2 streams is unknown",
        ),
    ],
)
def test_one_sentence_says_which_words_apply_what_waits_and_for_how_long(
    states: Sequence[StreamState], expected: str
) -> None:
    assert summary_of(states) == expected
