"""Alerts fire once, resolve once, and are the same wherever a process resumed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.operations.alerts.evaluating import (
    MOST_FIRING,
    Alert,
    AlertStatus,
    Judged,
    Key,
    Notification,
    evaluate,
)
from lakehouse.operations.alerts.rules import GateRule, Severity
from lakehouse.operations.alerts.wording import alert_as_json, alert_in, as_message, key_of, message_in

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
TICK_S = 10
SALES = (("stream", "sales"),)
SO = {"x": True, ".": False, "?": None}


def rule(for_s: float = 0, name: str = "gate") -> GateRule:
    return GateRule(name=name, kind="gate_closed", for_s=for_s, severity=Severity.CRITICAL)


def run(line: str, for_s: float, restarts: Sequence[int] = ()) -> list[Notification]:
    """Evaluate a line of ticks: x true, . false, ? unknown, - the subject is gone, ! nothing can be known."""
    state: dict[Key, Alert] = {}
    told = []
    for tick, sign in enumerate(line):
        if tick in restarts:
            state = {key: read_again(alert) for key, alert in state.items()}
        found = [] if sign == "-" else None if sign == "!" else [Judged(SALES, SO[sign], sign)]
        now = START + timedelta(seconds=TICK_S * tick)
        state, notifications = evaluate([rule(for_s)], {"gate": found}, state, now)
        told += notifications
    return told


def read_again(alert: Alert) -> Alert:
    """Return an alert as the next process reads it."""
    found = alert_in(key_of(alert.key), alert_as_json(alert))
    assert found is not None
    return found


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
        (20, "xx.xx.xx", "        "),  # never that long without a break
        (20, "x??x..  ".strip(), "   FR "),  # an unknown tick breaks nothing and fires nothing
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
    assert fired.alert.id == "e5552a920eed4afeb7e087c17011c1e3"  # receivers store these ids


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
    assert [(one.status, one.alert.what) for one in told] == [(AlertStatus.RESOLVED, "its rule was removed")]


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
    """The oracle works by stretches: each ends at a tick that is false or whose subject is gone."""
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


class Services:
    """Many services judged against a threshold minute by minute, and the state of their alerts."""

    def __init__(self, for_s: float = 0) -> None:
        self.rule = rule(for_s)
        self.state: dict[Key, Alert] = {}
        self.minute = 0

    def judge(self, over: int | None, of: int = 4_012) -> list[tuple[str, str]]:
        """Judge them all, with the first `over` above the threshold; None means nothing is known of any."""
        is_so = [None if over is None else number < over for number in range(of)]
        found = [Judged((("service", f"{n:04}"),), one, "") for n, one in enumerate(is_so)]
        now = START + timedelta(minutes=self.minute)
        self.state, told = evaluate([self.rule], {"gate": found}, self.state, now)
        self.minute += 1
        return [(one.status.value, dict(one.alert.labels).get("service", one.alert.what)) for one in told]


def test_of_thousands_of_alerts_a_hundred_are_told_and_the_others_as_one() -> None:
    services = Services()
    told = services.judge(over=4_012)
    first = [("firing", f"{number:04}") for number in range(MOST_FIRING)]
    more = "more: a rule sends at most 100 alerts individually"
    assert told == [*first, ("firing", f"and 3,912 {more}")]
    assert services.judge(over=4_012) == services.judge(over=None) == []
    assert services.judge(over=102) == []
    assert [one.what for one in services.state.values() if one.fires and not one.labels] == [f"and 2 {more}"]
    assert services.judge(over=99) == [("resolved", "0099"), ("resolved", "no further alerts")]
    assert services.judge(over=100) == [("firing", "0099")]


def test_alerts_that_had_no_room_fire_when_there_is_the_oldest_first() -> None:
    services = Services(for_s=60)
    services.judge(over=101)
    services.judge(over=101)
    assert services.judge(over=0, of=100) == [
        *(("resolved", f"{number:04}") for number in range(MOST_FIRING)),
        ("resolved", "no further alerts"),
    ]
    services = Services()
    services.judge(over=101)
    found = {"gate": [Judged((("service", f"{number:04}"),), True, "") for number in range(1, 102)]}
    _, told = evaluate([services.rule], found, services.state, START + timedelta(hours=1))
    assert [(one.status.value, dict(one.alert.labels).get("service")) for one in told] == [
        ("resolved", "0000"),
        ("firing", "0100"),
    ]


OURS = Alert("gate", SALES, START, True, "critical", "closed")
MESSAGE = as_message(Notification(OURS, AlertStatus.FIRING, START, 1.5))
FOREIGN = [
    b"",
    b"no json",
    b"[1]",
    b"null",
    b"\xff",
    b'["gate", [], "2026-03-01T12:00:00", true, "critical", "without a zone"]',
    json.dumps(
        [["gate", [["stream", "sales"]], START.isoformat(), True, "critical", "a list of alerts"]]
    ).encode(),
    b"[" * 100_000,
    json.dumps(MESSAGE | {"event_id": "two\r\nlines"}).encode(),
    json.dumps(MESSAGE | {"at": 1}).encode()[:-1],
    json.dumps({name: value for name, value in MESSAGE.items() if name != "rule"}).encode(),
]


def test_what_others_write_is_neither_an_alert_nor_a_notification() -> None:
    assert [alert_in(key_of(OURS.key), body) for body in FOREIGN] == [None] * len(FOREIGN)
    assert [message_in(body) for body in (None, *FOREIGN)] == [None] * (len(FOREIGN) + 1)
    assert [alert_in(key, alert_as_json(OURS)) for key in (None, b"gate")] == [None, None]
    found = message_in(json.dumps(MESSAGE).encode())
    assert found == MESSAGE | {"since": START.isoformat(), "at": START.isoformat()}


def test_a_value_that_json_does_not_know_is_null() -> None:
    assert as_message(Notification(OURS, AlertStatus.FIRING, START, float("inf")))["value"] is None
