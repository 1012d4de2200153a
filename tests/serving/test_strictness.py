"""A request naming what does not exist is refused with the nearest name, not answered with everything."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

import lakehouse
from lakehouse.engine.records.dead_letters import DEAD_LETTERS, RULES
from tests.support.served_lakes import MakeClient, ServedLake, letter

LETTERS, HAPPENINGS = "/api/v1/dead-letters", "/api/v1/happenings"


@pytest.mark.parametrize(
    ("url", "detail"),
    [
        (
            "/api/v1/tables/metrics_1m/rows?serviceid=a",
            "no parameter 'serviceid': did you mean service_id?",
        ),
        ("/api/metrics/latest?serviceid=a", "no parameter 'serviceid': did you mean service?"),
        (f"{LETTERS}?Topic=a", "no parameter 'Topic': did you mean topic?"),
        (
            f"{LETTERS}?offset=1",
            "no parameter 'offset': cursor, limit, rule, since, status, stream, text, topic, until or values",
        ),
        (f"{LETTERS}/counts?Stream=sales", "no parameter 'Stream': did you mean stream?"),
        (f"{HAPPENINGS}?kinds=start", "no parameter 'kinds': did you mean kind?"),
        ("/api/v1/gates?stream=sales", "no parameter 'stream': cursor or limit"),
        ("/api/v1/status?x=", "no parameter 'x': there are none"),
        ("/health/live?verbose", "no parameter 'verbose': there are none"),
        (
            f"{LETTERS}?stream=sales&stream=calls",
            "the parameter 'stream' was given 2 times; it takes one value",
        ),
        (f"{LETTERS}?limit=5&limit=5", "the parameter 'limit' was given 2 times; it takes one value"),
        (
            "/api/v1/gates?a%1b%5b2J=1&cursr=x",
            r"no parameter 'a\x1b[2J': cursor or limit; no parameter 'cursr': did you mean cursor?",
        ),
    ],
)
def test_a_parameter_that_the_route_does_not_have_is_refused(
    client: TestClient, url: str, detail: str
) -> None:
    found = client.get(url)
    assert (found.status_code, found.headers["content-type"]) == (400, "application/problem+json")
    assert found.json()["detail"] == detail


def test_no_route_takes_a_parameter_that_it_does_not_declare(make_client: MakeClient) -> None:
    client = make_client(produces=True)
    app = client.app
    assert isinstance(app, FastAPI)
    paths = app.openapi()["paths"]
    asked = [(method.upper(), path) for path, methods in paths.items() for method in methods]
    asked += [("GET", path) for path in ("/docs", "/openapi.json", "/data-docs/index.html")]
    found = {
        (method, path): client.request(method, path.replace("{id}", "x"), params={"nosuch": "1"})
        for method, path in asked
    }
    assert len(found) > 30
    assert {one for one, answer in found.items() if answer.status_code != 400} == set()
    details = {answer.json()["detail"].split(":")[0] for answer in found.values()}
    assert details == {"no parameter 'nosuch'"}


@pytest.mark.parametrize(
    ("url", "detail"),
    [
        (f"{LETTERS}?stream=slaes", "stream: no stream 'slaes': did you mean sales?"),
        (
            f"{LETTERS}?topic=sales-events-v2",
            "topic: no topic 'sales-events-v2': did you mean sales-events-v1?",
        ),
        (
            f"{LETTERS}/counts?topic=Metrics-Events",
            "topic: no topic 'Metrics-Events': did you mean metrics-events?",
        ),
        (
            f"{LETTERS}/counts?rule=not_jsn",
            "rule: no dead-letter rule 'not_jsn': did you mean not_json?",
        ),
        (f"{HAPPENINGS}?stream=sales&stream=metrix", "stream: no stream 'metrix': did you mean metrics?"),
        (
            "/api/v1/expectations?table=gold.metrics_1min",
            "table: no table 'gold.metrics_1min': did you mean gold.metrics_1m or gold.metrics_summary_10m?",
        ),
    ],
)
def test_a_filter_that_names_nothing_is_refused(client: TestClient, url: str, detail: str) -> None:
    found = client.get(url)
    assert (found.status_code, found.json()["detail"]) == (400, detail)


@pytest.mark.parametrize(
    ("method", "url", "body"),
    [
        ("POST", "/produce?stream=slaes", None),
        ("POST", "/api/v1/actions", {"action": "audit", "stream": ["slaes"]}),
    ],
)
def test_what_would_be_done_to_a_stream_that_does_not_exist_is_refused(
    make_client: MakeClient, method: str, url: str, body: object
) -> None:
    found = make_client(produces=True).request(method, url, json=body)
    assert found.status_code == 400
    assert found.json()["detail"] == "stream: no stream 'slaes': did you mean sales?"


def test_a_value_that_is_not_among_several_is_told_the_nearest(client: TestClient) -> None:
    for url in (f"{LETTERS}?status=opn", f"{HAPPENINGS}?kind=audti"):
        found = client.get(url)
        assert found.status_code == 422
        assert found.json()["detail"].endswith(("did you mean open?", "did you mean audit?"))
    found = client.get("/api/v1/tables/metrics_1min/rows")
    assert found.status_code == 404
    said = (
        "there is nothing at /api/v1/tables/metrics_1min/rows; did you mean /api/v1/tables/metrics_1m/rows? "
        "/docs"
    )
    assert found.json()["detail"].startswith(said)


def test_streams_topics_and_rules_of_letters_are_known_even_if_nothing_declares_them_any_more(
    client: TestClient, lake: ServedLake
) -> None:
    gone: dict[str, Any] = {"stream": "shops", "topic": "shop.floor"}
    lake.write_spec(DEAD_LETTERS, [letter(1, "too_cheap", **gone), letter(2, "late")])
    in_letters = ("stream=shops", "topic=shop.floor", "rule=too_cheap")
    declared = ("stream=sales", "topic=sales-events-v1", "rule=future")
    for query, count in (*((one, 1) for one in in_letters), *((one, 0) for one in declared)):
        found = client.get(f"{LETTERS}?{query}")
        assert (found.status_code, found.json()["count"]) == (200, count), query
    found = client.get(f"{LETTERS}?stream=shop")
    assert found.json()["detail"] == "stream: no stream 'shop': did you mean shops?"
    found = client.get(f"{LETTERS}?topic=shop-floor")
    assert found.json()["detail"] == "topic: no topic 'shop-floor': did you mean shop.floor?"


def test_a_topic_is_known_by_the_name_that_the_settings_give_it(make_client: MakeClient) -> None:
    client = make_client(changes={"topics": {"sales-events-v1": "shop.sales"}})
    assert client.get(f"{LETTERS}?topic=shop.sales").status_code == 200
    found = client.get(f"{LETTERS}?topic=shop.sale")
    assert found.json()["detail"] == "topic: no topic 'shop.sale': did you mean shop.sales?"
    assert client.get(f"{LETTERS}?topic=sales-events-v1").status_code == 400


def test_every_rule_that_the_code_gives_as_a_reason_is_a_known_one() -> None:
    files = Path(lakehouse.__file__).parent.rglob("*.py")
    named = {name for file in files for name in re.findall(r"\breason\(\s*\"([a-z_]+)\"", file.read_text())}
    assert len(named) > 15
    assert named - RULES == set()
