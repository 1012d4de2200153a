"""/health and /metrics of the server: what it says about itself."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from prometheus_client.openmetrics import parser

from lakehouse.engine.records.dead_letters import DEAD_LETTERS
from lakehouse.operations.telemetry import Observer
from lakehouse.serving.security.access import Access
from lakehouse.serving.security.tokens import Scope, Tokens
from lakehouse.serving.telemetry import Counted, ServerMetrics
from tests.support.log_lakes import caught_up
from tests.support.served_lakes import NOWHERE, MakeClient, ServedLake, letter, minute
from tests.support.streams import METRICS_1M, STREAMS

OPENMETRICS = {"accept": "application/openmetrics-text; version=1.0.0"}
NO_REDIS = "Redis does not answer (redis.url)"
NO_GOLD = "no gold table can be read (lake)"


def samples(text: str) -> dict[str, float]:
    """Return the exposed values by name and sorted labels."""
    return {
        f"{one.name}{{{','.join(one.labels[label] for label in sorted(one.labels))}}}": one.value
        for family in parser.text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
        for one in family.samples
    }


def test_a_process_that_answers_is_alive_whatever_is_away(make_client: MakeClient) -> None:
    found = make_client(changes={"redis.url": NOWHERE}).get("/health/live")
    assert (found.status_code, found.json()) == (200, {"status": "live", "reasons": []})


@pytest.mark.parametrize(
    ("has_redis", "has_gold", "status", "reasons"),
    [
        (True, True, 200, []),
        (True, False, 200, [NO_GOLD]),
        (False, True, 200, [NO_REDIS]),
        (False, False, 503, [NO_REDIS, NO_GOLD]),
    ],
)
def test_a_server_is_ready_while_rows_can_be_had_from_one_of_both(
    make_client: MakeClient,
    lake: ServedLake,
    *,
    has_redis: bool,
    has_gold: bool,
    status: int,
    reasons: list[str],
) -> None:
    if has_gold:
        lake.write(METRICS_1M, [minute()])
    client = make_client(changes={} if has_redis else {"redis.url": NOWHERE})
    found = client.get("/health/ready")
    words = {200: "ready", 503: "not ready"}
    assert (found.status_code, found.json()) == (status, {"status": words[status], "reasons": reasons})


def test_a_server_is_ready_again_once_a_store_is_back(make_client: MakeClient, lake: ServedLake) -> None:
    client = make_client(changes={"redis.url": NOWHERE})
    assert client.get("/health/ready").status_code == 503
    lake.write(METRICS_1M, [minute()])
    found = client.get("/health/ready")
    deadline = datetime.now(UTC).timestamp() + 60
    while found.status_code != 200 and datetime.now(UTC).timestamp() < deadline:
        found = client.get("/health/ready")
    assert found.json() == {"status": "ready", "reasons": [NO_REDIS]}


def test_probes_need_no_token_and_metrics_need_one_that_reads(
    make_client: MakeClient, lake: ServedLake
) -> None:
    tokens = Tokens(lake.settings.home)
    reads = {"Authorization": f"Bearer {tokens.add('prometheus', [Scope.READ])}"}
    works = {"Authorization": f"Bearer {tokens.add('worker', [Scope.OPERATE])}"}
    client = make_client(Access(tokens))
    assert [client.get(f"/health/{probe}").status_code for probe in ("live", "ready")] == [200, 200]
    assert client.get("/metrics").status_code == 401
    assert client.get("/metrics", headers=works).status_code == 403
    assert client.get("/metrics", headers=reads).status_code == 200
    assert client.post("/health/live").status_code == 401


def test_probes_are_refused_to_pages_that_call_this_server_by_their_own_name(make_client: MakeClient) -> None:
    found = make_client().get("/health/live", headers={"Host": "evil.example"})
    assert found.status_code == 403


def test_requests_are_counted_by_route_and_never_by_what_was_asked_for(
    make_client: MakeClient, lake: ServedLake
) -> None:
    lake.write(METRICS_1M, [minute()])
    client = make_client()
    for service in ("auth", "auth", "nobody's"):
        client.get("/api/metrics/latest", params={"service": service, "metric": "cpu"})
    client.get("/")
    client.get("/nothing/of/the/kind")
    client.request("BREW", "/api/metrics/latest")
    text = client.get("/metrics", headers=OPENMETRICS).text
    found = samples(text)
    counted = {
        name: value for name, value in found.items() if name.startswith("lakehouse_http_requests_total")
    }
    assert counted == {
        "lakehouse_http_requests_total{GET,/api/metrics/latest,200}": 2.0,
        "lakehouse_http_requests_total{GET,/api/metrics/latest,404}": 1.0,
        "lakehouse_http_requests_total{GET,other,200}": 1.0,
        "lakehouse_http_requests_total{GET,other,404}": 1.0,
        "lakehouse_http_requests_total{other,/api/metrics/latest,405}": 1.0,
    }
    assert found["lakehouse_http_response_seconds_count{GET,/api/metrics/latest}"] == 3.0
    assert 0 < found["lakehouse_http_response_seconds_sum{GET,/api/metrics/latest}"] < 180
    assert "nobody" not in text


def test_a_defect_is_counted_once_as_what_it_is_answered_with(lake: ServedLake) -> None:
    metrics = ServerMetrics(Observer(STREAMS, lake.settings))
    scope: dict[str, Any] = {"type": "http", "method": "GET"}

    async def ask(app: Any) -> None:
        async def receive() -> Any:
            raise AssertionError

        async def send(_message: Any) -> None:
            pass

        with pytest.raises(ZeroDivisionError):
            await Counted(app, metrics)(scope, receive, send)

    async def breaks_at_once(_scope: Any, _receive: Any, _send: Any) -> None:
        raise ZeroDivisionError

    async def breaks_in_its_answer(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})
        raise ZeroDivisionError

    asyncio.run(ask(breaks_at_once))
    asyncio.run(ask(breaks_in_its_answer))
    count = metrics.registry.get_sample_value
    labels = {"method": "GET", "route": "other"}
    assert [count("lakehouse_http_requests_total", labels | {"status": str(n)}) for n in (200, 500)] == [1, 1]


def test_metrics_say_what_status_says_though_no_job_lives(make_client: MakeClient, lake: ServedLake) -> None:
    caught_up(lake.root)
    lake.write_spec(DEAD_LETTERS, [letter(n, stream="transactions") for n in range(3)])
    client = make_client(changes={"kafka.bootstrap_servers": "127.0.0.1:1"})
    found = client.get("/metrics", headers=OPENMETRICS)
    assert found.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    said = samples(found.text)
    assert said["lakehouse_up{broker}"] == 0.0
    assert said["lakehouse_up{lake}"] == 1.0
    assert "# TYPE lakehouse_alerts_evaluated gauge" in found.text
    assert [name for name in said if name.startswith("lakehouse_alerts_evaluated")] == []  # unknown
    lag = "lakehouse_layer_lag_records{export,gold.user_transactions_5m,transactions,user_transactions_5m}"
    assert said[lag] == 5.0
    assert said["lakehouse_dead_letters_open{transactions}"] == 3.0
