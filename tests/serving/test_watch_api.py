"""/api/v1/status, happenings, audit and alerts, for lakes that nobody runs and one broker."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import SecretStr
from starlette.testclient import TestClient

from lakehouse.common.errors import ServiceError
from lakehouse.common.events import Event
from lakehouse.dev.services.services import Endpoints
from lakehouse.engine.ops_tables.event_table import append
from lakehouse.engine.ops_tables.history import HISTORY, Sample
from lakehouse.engine.records.dead_letters import DEAD_LETTERS
from lakehouse.operations.alerts.facts import Facts, Window, step
from lakehouse.operations.alerts.publishing import Beat, Publisher
from lakehouse.operations.alerts.rules import MetricRule
from lakehouse.operations.quality.results import GATES, RESULTS
from lakehouse.serving.reading.sharing import Shared
from tests.support import served_lakes
from tests.support.log_lakes import caught_up
from tests.support.served_lakes import NOON_MS, MakeClient, ServedLake, at, letter

NOWHERE = "127.0.0.1:1"
COUNTS = ("name", "stream", "at", "differences")


def event(second: int, kind: str, stream: str | None, details: str | None = None) -> Event:
    message = f"{kind} {second}"
    return served_lakes.event(second, kind, message, actor="lakehouse audit", stream=stream, details=details)


def checks(*differences: int) -> str:
    found = [
        f'{{"name": "c{n}", "subject": "s", "compared": 9, "differences": {d}}}'
        for n, d in enumerate(differences)
    ]
    return f'{{"clean": false, "checks": [{", ".join(found)}]}}'


def test_status_is_what_is_seen_of_the_pipeline_in_camel_case(
    make_client: MakeClient, lake: ServedLake
) -> None:
    caught_up(lake.root)
    lake.write_spec(DEAD_LETTERS, [letter(n, stream="transactions") for n in range(3)])
    body = make_client(changes={"kafka.bootstrap_servers": NOWHERE}).get("/api/v1/status").json()
    assert body["brokerReason"].startswith(f"no Kafka broker at {NOWHERE}")
    assert body["lakeReason"] is None
    assert body["at"].endswith("Z")
    stream = next(one for one in body["streams"] if one["name"] == "transactions")
    assert [(lag["query"], lag["records"], lag["commits"]) for lag in stream["layers"]] == [
        ("silver.transactions", 0, 0),
        ("gold.user_transactions_5m", 0, 0),
        ("export.user_transactions_5m", 5, 1),
    ]
    *_, gold, export = stream["queries"]
    assert gold == {
        "name": "gold.user_transactions_5m",
        "layer": "gold",
        "done": 2,
        "doneAt": "2026-11-22T08:13:40Z",
        "sizeBytes": 200,
        "stores": [],
    }
    assert [(one["name"], one["word"], one["lacksRows"]) for one in export["stores"]] == [
        ("kafka", "away", False),
        ("redis", "behind", False),
    ]
    assert (export["name"], export["done"], export["doneAt"]) == ("export.user_transactions_5m", None, None)
    assert stream["backlogs"] == [
        {"layer": "bronze", "records": None, "seconds": None},
        {"layer": "silver", "records": 0, "seconds": 0.0},
        {"layer": "gold", "records": 0, "seconds": 0.0},
        {"layer": "export", "records": 5, "seconds": stream["layers"][-1]["seconds"]},
    ]
    assert stream["waiting"] == stream["backlogs"][-1]
    assert body["summary"].startswith("4 of 4 streams are stopped; at least 25 records wait, the oldest for ")
    assert body["summary"].endswith("; the backlog of 4 streams is unknown")
    assert stream["openLetters"] == 3
    assert stream["health"]["word"] == "stopped"
    silver = next(one for one in stream["tables"] if one["name"] == "silver.transactions")
    assert (silver["version"], silver["files"], silver["sizeBytes"], silver["rows"]) == (2, 2, 3800, 38)
    assert [set(one) for one in stream["eventTimes"]] == [{"table", "newest", "watermark"}]


def test_status_of_no_lake_says_so(make_client: MakeClient, lake: ServedLake) -> None:
    body = make_client(changes={"kafka.bootstrap_servers": NOWHERE}).get("/api/v1/status").json()
    assert body["lakeReason"] == f"there is no lake at {lake.root} yet"
    assert {one["health"]["word"] for one in body["streams"]} == {"unknown"}
    assert [one["waiting"] for one in body["streams"]] == [None] * 4
    assert body["summary"] == "4 of 4 streams are unknown; the backlog of 4 streams is unknown"


def test_what_many_ask_for_at_once_is_looked_at_once() -> None:
    looks: list[int] = []

    def look() -> int:
        looks.append(1)
        return len(looks)

    async def scenario() -> list[int]:
        shared = Shared(look, every_s=3600)
        return await asyncio.gather(*(shared.seen() for _ in range(50)))

    assert asyncio.run(scenario()) == [1] * 50


def test_what_cannot_be_looked_at_is_not_asked_for_by_everybody() -> None:
    looks: list[int] = []

    def look() -> int:
        looks.append(1)
        raise ServiceError("away")

    async def scenario() -> Sequence[object]:
        shared = Shared(look, every_s=3600)
        return await asyncio.gather(*(shared.seen() for _ in range(9)), return_exceptions=True)

    assert [str(one) for one in asyncio.run(scenario())] == ["away"] * 9
    assert len(looks) == 1


def test_events_are_told_newest_first_by_kind_stream_and_time(client: TestClient, lake: ServedLake) -> None:
    nothing = client.get("/api/v1/happenings")
    assert nothing.json() == {
        "happenings": [],
        "next": None,
        "source": "ops",
        "generation": None,
        "version": None,
        "isFinal": None,
    }
    append(lake.settings.lake, [event(1, "start", "sales"), event(2, "stop", None)])
    append(lake.settings.lake, [event(3, "failure", "sales", '{"an_error": NaN}')])

    def seconds(query: str = "") -> list[str]:
        return [one["id"] for one in client.get(f"/api/v1/happenings?{query}").json()["happenings"]]

    assert seconds() == ["id-3", "id-2", "id-1"]
    assert seconds("limit=2") == ["id-3", "id-2"]
    assert seconds("kind=start&kind=stop") == ["id-2", "id-1"]
    assert seconds("stream=sales") == ["id-3", "id-1"]
    assert seconds("since=2026-05-04T12:00:02Z") == ["id-3", "id-2"]
    assert seconds("since=-99999999999999") == ["id-3", "id-2", "id-1"]
    found = client.get("/api/v1/happenings?limit=1")
    assert found.json()["happenings"] == [
        {
            "id": "id-3",
            "at": "2026-05-04T12:00:03Z",
            "kind": "failure",
            "stream": "sales",
            "layer": None,
            "table": None,
            "actor": "lakehouse audit",
            "host": "here",
            "pid": 7,
            "codeVersion": "0.1.0",
            "message": "failure 3",
            "details": {"an_error": "NaN"},
        }
    ]
    assert (found.json()["source"], found.json()["version"]) == ("ops", 2)
    assert client.get("/api/v1/happenings?kind=party").status_code == 422


def test_pages_of_events_go_back_in_time_though_new_ones_come(client: TestClient, lake: ServedLake) -> None:
    path = "/api/v1/happenings?limit=2"
    append(lake.settings.lake, [event(second, "start", "sales") for second in range(1, 5)])
    first = client.get(path).json()
    append(lake.settings.lake, [event(0, "stop", "sales"), event(9, "stop", None)])
    second = client.get(f"{path}&cursor={first['next']}").json()
    third = client.get(f"{path}&cursor={second['next']}").json()
    found = [[one["id"] for one in page["happenings"]] for page in (first, second, third)]
    assert found == [["id-4", "id-3"], ["id-2", "id-1"], ["id-0"]]
    assert third["next"] is None


@pytest.mark.parametrize("name", ["audit", "gates", "expectations", "dead-letters/counts"])
def test_every_list_has_pages(client: TestClient, lake: ServedLake, name: str) -> None:
    append(lake.settings.lake, [event(1, "audit", "sales", checks(5, 6, 7))])
    gate = {"changed_at": at(NOON_MS), "is_open": True, "reasons": []}
    lake.write_spec(GATES, [gate | {"stream": stream} for stream in "abc"])
    result = {"checked_at": at(NOON_MS), "table": "gold.a", "run_id": "1", "examples": "[]"}
    lake.write_spec(RESULTS, [result | {"expectation": one} for one in "abc"])
    lake.write_spec(DEAD_LETTERS, [letter(n, rule) for n, rule in enumerate("abc")])
    lists: dict[str, Callable[[Any], list[str]]] = {
        "audit": lambda page: [check["name"] for check in page["audit"]["checks"]],
        "gates": lambda page: [gate["stream"] for gate in page["gates"]],
        "expectations": lambda page: [one["expectation"] for one in page["expectations"]],
        "dead-letters/counts": lambda page: [one["rule"] for one in page["counts"]],
    }
    named = lists[name]
    whole = client.get(f"/api/v1/{name}").json()
    first = client.get(f"/api/v1/{name}?limit=2").json()
    rest = client.get(f"/api/v1/{name}?limit=2&cursor={first['next']}").json()
    assert (len(named(first)), named(first) + named(rest)) == (2, named(whole))
    assert (len(named(whole)), whole["next"], rest["next"]) == (3, None, None)


def test_the_audit_is_the_last_one_of_each_stream(client: TestClient, lake: ServedLake) -> None:
    assert client.get("/api/v1/audit").json()["audit"] is None
    append(lake.settings.lake, [event(1, "audit", "sales", checks(5)), event(2, "audit", "calls", checks(0))])
    append(lake.settings.lake, [event(3, "audit", "sales", checks(0, 2)), event(4, "stop", "calls")])
    append(lake.settings.lake, [event(5, "audit", "metrics")])  # written by others
    audit = client.get("/api/v1/audit").json()["audit"]
    assert (audit["at"], audit["actor"], audit["isClean"]) == (
        "2026-05-04T12:00:03Z",
        "lakehouse audit",
        False,
    )
    assert [tuple(one[name] for name in COUNTS) for one in audit["checks"]] == [
        ("c0", "calls", "2026-05-04T12:00:02Z", 0),
        ("c0", "sales", "2026-05-04T12:00:03Z", 0),
        ("c1", "sales", "2026-05-04T12:00:03Z", 2),
    ]


def test_an_audit_that_could_not_compare_everything_is_not_clean(
    client: TestClient, lake: ServedLake
) -> None:
    whole, part = (
        f'{{"clean": false, "checks": [{{"name": "redis", "differences": 0, "not_compared": {reasons}}}]}}'
        for reasons in ("[]", '["Redis lacks rows"]')
    )
    append(lake.settings.lake, [event(1, "audit", "sales", whole)])
    assert client.get("/api/v1/audit").json()["audit"]["isClean"] is True
    append(lake.settings.lake, [event(2, "audit", "calls", part)])
    assert client.get("/api/v1/audit").json()["audit"]["isClean"] is False


@pytest.mark.parametrize("path", ["happenings", "audit", "gates", "expectations", "dead-letters"])
def test_a_table_that_cannot_be_read_is_a_problem_with_its_reason(
    client: TestClient, lake: ServedLake, path: str
) -> None:
    for name in ("ops/events", "ops/gates", "ops/expectation_results", "silver/dead_letters"):
        log = lake.root / name / "_delta_log"
        log.mkdir(parents=True)
        (log / "00000000000000000000.json").write_text("{", encoding="utf-8")
    found = client.get(f"/api/v1/{path}")
    assert (found.status_code, found.headers["content-type"]) == (503, "application/problem+json")
    assert "cannot be read" in found.json()["detail"]


def test_answers_of_checks_and_letters_say_their_version_and_are_not_sent_twice(
    client: TestClient, lake: ServedLake
) -> None:
    rows = [letter(1, "late"), letter(2, "late", status="replayed")]
    table = lake.write_spec(DEAD_LETTERS, rows)
    gate = {"stream": "sales", "changed_at": at(NOON_MS), "is_open": True, "reasons": []}
    lake.write_spec(GATES, [gate])
    stamp = {"source": "silver", "generation": table.metadata().created_time, "version": 0}
    for path, is_final in (
        ("dead-letters", False),
        ("dead-letters/counts", False),
        ("dead-letters/counts?status=replayed", True),
        ("dead-letters?status=replayed", True),
        (f"dead-letters/{rows[0]['id']}", False),
        (f"dead-letters/{rows[1]['id']}", True),
    ):
        found = client.get(f"/api/v1/{path}")
        said = {name: found.json()[name] for name in (*stamp, "isFinal")}
        assert said == stamp | {"isFinal": is_final}, path
        again = client.get(f"/api/v1/{path}", headers={"If-None-Match": found.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    gates = client.get("/api/v1/gates")
    assert (gates.json()["source"], gates.json()["version"], gates.json()["isFinal"]) == ("ops", 0, None)
    lake.write_spec(GATES, [gate | {"changed_at": at(NOON_MS + 1), "is_open": False}])
    etag = {"If-None-Match": gates.headers["etag"]}
    await_newer = client.get("/api/v1/gates", headers=etag)
    while await_newer.status_code == 304:
        await_newer = client.get("/api/v1/gates", headers=etag)
    assert [one["isOpen"] for one in await_newer.json()["gates"]] == [False]


def test_alerts_without_a_broker_are_a_problem_with_its_reason(make_client: MakeClient) -> None:
    found = make_client(changes={"kafka.bootstrap_servers": NOWHERE}).get("/api/v1/alerts")
    assert (found.status_code, found.headers["content-type"]) == (503, "application/problem+json")
    assert found.json()["detail"].startswith(f"no Kafka broker at {NOWHERE}")


@pytest.mark.soak
def test_alerts_are_what_the_process_has_told(make_client: MakeClient, services: Endpoints) -> None:
    topic, start = f"alerts-{uuid.uuid4().hex}", datetime(2026, 3, 1, 12, tzinfo=UTC)
    rule = MetricRule(name="cpu", kind="metric", metric="cpu", over=90)
    client = make_client(
        changes={
            "kafka.bootstrap_servers": services.kafka,
            "alerts.topic": topic,
            "alerts.rules": (rule,),
            "redis.url": SecretStr("redis://127.0.0.1:1/0"),
        }
    )
    nobody = "alerts are not evaluated: `lakehouse alert` is not running"
    assert client.get("/api/v1/alerts").json() == {
        "alerts": [],
        "isEvaluated": False,
        "evaluatedAt": None,
        "reason": nobody,
        "next": None,
    }
    with closing(Publisher(services.access, topic)) as publisher:
        state = publisher.start()
        for minute, values in enumerate(({"a": 95.0, "b": 91.0}, {"a": 96.0, "b": 2.0})):
            now = start + timedelta(minutes=minute)
            windows = [Window(name, now - timedelta(minutes=1), value) for name, value in values.items()]
            after, told = step(Facts(windows={"cpu": windows}), [rule], state, now)
            publisher.publish(state, after, told)
            state = after
        publisher.publish(state, state, [], Beat(start, 5.0))
    found: list[dict[str, Any]] = []
    while not found:  # an earlier answer is reused for at most a second
        found = client.get("/api/v1/alerts").json()["alerts"]
    names = ("rule", "state", "since", "at", "value", "threshold", "labels")
    labels = [{"metric": "cpu", "service": one} for one in "ab"]
    since = "2026-03-01T12:00:00"
    assert [tuple(one[name] for name in names) for one in found] == [
        ("cpu", "firing", f"{since}Z", f"{since}Z", 95.0, 90.0, labels[0]),
        ("cpu", "resolved", f"{since}Z", "2026-03-01T12:01:00Z", 2.0, 90.0, labels[1]),
    ]
    whole = client.get("/api/v1/alerts").json()
    while "last" not in whole["reason"]:
        whole = client.get("/api/v1/alerts").json()
    assert (whole["isEvaluated"], whole["evaluatedAt"]) == (False, f"{since}Z")
    assert whole["reason"] == f"{nobody}; the last evaluation was at 2026-03-01 12:00:00 UTC"
    with closing(Publisher(services.access, topic)) as publisher:
        publisher.publish(state := publisher.start(), state, [], Beat(datetime.now(UTC), 5.0))
    while not whole["isEvaluated"]:
        whole = client.get("/api/v1/alerts").json()
    assert (whole["reason"], len(whole["alerts"])) == (None, 2)


def test_history_has_a_list_for_each_measure_up_to_now(make_client: MakeClient, lake: ServedLake) -> None:
    client = make_client()
    nothing = client.get("/api/v1/history?hours=1&stream=sales").json()
    assert nothing["streams"] == [
        {"name": "sales", **dict.fromkeys(("word", "arrivedPerS", "landedPerS", "waitedS"), [None] * 12)}
        | {"openLetters": [None] * 12}
    ]
    slot = timedelta(minutes=5)
    start = datetime.now(UTC) - 3 * slot
    first = Sample("sales", start, "behind", 1_000, 600, 70.0, 5)
    later = replace(first, at=start + slot, word="well", arrived=1_300, landed=1_300, waited_s=0.0)
    lake.write_spec(HISTORY, [asdict(first), asdict(later), asdict(replace(first, stream="calls"))])

    found = client.get("/api/v1/history?hours=1&points=300&stream=sales").json()
    (sales,) = found["streams"]
    began = datetime.fromisoformat(found["start"])
    places = [(one.at - began) // slot for one in (first, later)]
    assert (found["stepS"], began.minute % 5, began.second, len(sales["word"])) == (300, 0, 0, 12)
    assert [sales["word"][place] for place in places] == ["behind", "well"]
    assert [sales["arrivedPerS"][place] for place in places] == [None, 1.0]
    assert [sales["landedPerS"][place] for place in places] == [None, 700 / 300]
    assert [sales["waitedS"][place] for place in places] == [70.0, 0.0]
    assert [sales["openLetters"][place] for place in places] == [5, 5]

    day = client.get("/api/v1/history").json()
    assert [one["name"] for one in day["streams"]] == ["metrics", "calls", "sales", "transactions"]
    assert (day["stepS"], len(day["streams"][0]["word"])) == (1800, 48)
    assert datetime.fromisoformat(day["start"]).minute % 30 == 0


def test_history_refuses_a_stream_or_a_span_that_it_does_not_have(make_client: MakeClient) -> None:
    client = make_client()
    for query, what in (
        ("stream=sale", "sale"),
        ("hours=0", "hours"),
        ("hours=169", "hours"),
        ("point=9", "point"),
    ):
        answer = client.get(f"/api/v1/history?{query}")
        assert answer.status_code in {400, 422}, query
        assert what in answer.text
