"""Alerts fire once, resolve once, and are the same wherever a process went on from."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.alerts.evaluating import (
    Alert,
    AlertStatus,
    Judged,
    Key,
    Notification,
    as_message,
    evaluate,
    state_as_json,
    state_from_json,
)
from lakehouse.alerts.rules import GateRule, Severity

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
TICK_S = 10
SALES = (("stream", "sales"),)
SO = {"x": True, ".": False, "?": None}


def rule(for_s: float = 0, name: str = "gate") -> GateRule:
    return GateRule(name=name, kind="gate_closed", for_s=for_s, severity=Severity.CRITICAL)


def run(line: str, for_s: float, restarts: Sequence[int] = ()) -> list[Notification]:
    """Judge a line of ticks: x so, . not so, ? unknown, - the thing is gone, ! nothing can be known."""
    state: dict[Key, Alert] = {}
    told = []
    for tick, sign in enumerate(line):
        if tick in restarts:
            state = state_from_json(state_as_json(list(state.values())))
        found = [] if sign == "-" else None if sign == "!" else [Judged(SALES, SO[sign], sign)]
        now = START + timedelta(seconds=TICK_S * tick)
        state, notifications = evaluate([rule(for_s)], {"gate": found}, state, now)
        told += notifications
    return told


def drawn(told: Sequence[Notification], length: int) -> str:
    at = {
        int((one.at - START).total_seconds()) // TICK_S: "F" if one.status is AlertStatus.FIRING else "R"
        for one in told
    }
    return "".join(at.get(tick, " ") for tick in range(length))


@pytest.mark.parametrize(
    ("for_s", "line", "expected"),
    [
        (0, ".xxx..x.", " F  R FR"),
        (20, "xxxx....", "  F R   "),
        (20, "xx.xx.xx", "        "),  # never without a break for so long
        (20, "x??x..  ".strip(), "   FR "),  # what is unknown breaks nothing, and fires nothing
        (0, "x??!!x.", "F     R"),
        (0, "x-.x", "FR F"),
        (20, "xx-xxx.", "     FR"),
        (0, "x!!-", "F  R"),
    ],
)
def test_what_is_told_of_a_line_of_ticks(for_s: float, line: str, expected: str) -> None:
    assert drawn(run(line, for_s), len(line)) == expected


def test_a_notification_says_what_fires_since_when_and_under_which_id() -> None:
    fired, resolved = run("xx.", for_s=10)
    assert as_message(fired) == {
        "event_id": f"{fired.alert.id}-firing",
        "alert_id": fired.alert.id,
        "status": "firing",
        "rule": "gate",
        "severity": "critical",
        "labels": {"stream": "sales"},
        "what": "x",
        "value": None,
        "since": "2026-03-01T12:00:00.000000Z",
        "at": "2026-03-01T12:00:10.000000Z",
    }
    assert resolved.id == f"{fired.alert.id}-resolved"
    assert fired.alert.id == "e5552a920eed4afeb7e087c17011c1e3"  # receivers keep them


def test_a_clock_that_is_set_back_delays_no_alert_by_more_than_its_own_time() -> None:
    state: dict[Key, Alert] = {}
    told = []
    for after_s in (0, -3600, -3590, -3580):
        now = START + timedelta(seconds=after_s)
        state, notifications = evaluate([rule(20)], {"gate": [Judged(SALES, True, "x")]}, state, now)
        told.append(len(notifications))
    assert told == [0, 0, 0, 1]


def test_an_alert_whose_rule_is_gone_resolves() -> None:
    state, _ = evaluate([rule()], {"gate": [Judged(SALES, True, "closed")]}, {}, START)
    later = START + timedelta(seconds=1)
    after, told = evaluate([rule(name="other")], {"other": []}, state, later)
    assert after == {}
    assert [(one.status, one.alert.what) for one in told] == [(AlertStatus.RESOLVED, "its rule is gone")]


lines = st.text("x.?-!", max_size=30)


@pytest.mark.cases
@given(line=lines, for_s=st.sampled_from([0, 10, 25, 30]), data=st.data())
def test_each_firing_resolves_once_and_restarts_change_nothing(
    line: str, for_s: float, data: st.DataObject
) -> None:
    told = run(line + "-", for_s)
    statuses = [one.status for one in told]
    assert statuses == [AlertStatus.FIRING, AlertStatus.RESOLVED] * (len(told) // 2)
    firings, ends = told[::2], told[1::2]
    assert [one.alert.id for one in firings] == [one.alert.id for one in ends]
    assert len({one.alert.id for one in firings}) == len(firings)
    restarts = data.draw(st.lists(st.integers(0, 30)))
    assert run(line + "-", for_s, restarts) == told


@pytest.mark.cases
@given(line=lines, for_s=st.sampled_from([0, 10, 25, 30]))
def test_no_break_and_no_stretch_that_is_long_enough_is_lost(line: str, for_s: float) -> None:
    """An oracle that goes by stretches: each ends at a tick that is not so or has nothing to judge."""
    expected, begun, fired = [], None, False
    for tick, sign in enumerate(line):
        if sign == "x":
            begun = tick if begun is None else begun
            if not fired and (tick - begun) * TICK_S >= for_s:
                fired = True
                expected.append((tick, "firing"))
        elif sign in ".-":
            if fired:
                expected.append((tick, "resolved"))
            begun, fired = None, False
    found = [(int((one.at - START).total_seconds()) // TICK_S, one.status.value) for one in run(line, for_s)]
    assert found == expected
