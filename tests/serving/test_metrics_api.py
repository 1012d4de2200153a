"""/api/metrics: the shapes that its readers know, the same from Redis as from gold."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.support.served_lakes import MINUTE_MS, NOON_MS, NOWHERE, MakeClient, ServedLake, minute
from tests.support.streams import METRICS_1M

LATEST = "/api/metrics/latest?service=auth&metric=cpu"
SERIES = "/api/metrics/timeseries?service=auth&metric=cpu"
STATISTICS = {
    "count": 2,
    "sum": 5.0,
    "min": 1.0,
    "max": 4.0,
    "avg": 2.5,
    "variance": 4.5,
    "stddev": 4.5**0.5,
    "p50": 1.0,
    "p90": 4.0,
    "p95": 4.0,
    "p99": 4.0,
}
TIMES = {
    "windowStart": "2026-05-04T12:00:00Z",
    "windowEnd": "2026-05-04T12:01:00Z",
    "lastEventTime": "2026-05-04T12:00:30Z",
}


def get(client: TestClient, path: str) -> Any:
    found = client.get(path)
    assert found.status_code == 200, found.text
    return found.json()


def test_the_latest_window_comes_from_redis(client: TestClient, lake: ServedLake) -> None:
    lake.export(METRICS_1M, [minute(), minute(start_ms=NOON_MS - MINUTE_MS, avg=9)], version=7, generation=3)
    assert get(client, LATEST) == {
        "service": "auth",
        "metric": "cpu",
        "data": STATISTICS | TIMES,
        "source": "redis",
        "generation": 3,
        "version": 7,
        "isFinal": True,
    }


def test_gold_answers_in_the_same_words_where_redis_is_away(
    make_client: MakeClient, lake: ServedLake
) -> None:
    lake.write(METRICS_1M, [minute(avg=9, start_ms=NOON_MS - MINUTE_MS), minute("other", avg=7)])
    lake.write(METRICS_1M, [minute(is_final=False)])
    assert get(make_client(changes={"redis.url": NOWHERE}), LATEST) == {
        "service": "auth",
        "metric": "cpu",
        "data": STATISTICS | TIMES,
        "source": "gold",
        "generation": lake.generation(METRICS_1M),
        "version": 1,
        "isFinal": False,
    }


def test_what_has_left_redis_is_still_in_gold(client: TestClient, lake: ServedLake) -> None:
    lake.export(METRICS_1M, [minute("other")])
    lake.write(METRICS_1M, [minute()])
    assert get(client, LATEST)["source"] == "gold"
    assert get(client, LATEST.replace("auth", "other"))["source"] == "redis"


def test_a_version_that_is_committed_later_is_seen(make_client: MakeClient, lake: ServedLake) -> None:
    client = make_client(changes={"redis.url": NOWHERE})
    lake.write(METRICS_1M, [minute()])
    assert get(client, LATEST)["version"] == 0
    lake.write(METRICS_1M, [minute(start_ms=NOON_MS + MINUTE_MS, avg=3)])
    while get(client, LATEST)["version"] == 0:
        pass
    assert get(client, LATEST)["data"]["avg"] == 3.0


@pytest.mark.parametrize("source", ["redis", "gold"])
def test_a_series_has_the_minutes_up_to_its_newest_window(
    make_client: MakeClient, lake: ServedLake, source: str
) -> None:
    rows = [minute(start_ms=NOON_MS - gap * MINUTE_MS, avg=gap) for gap in (0, 1, 3, 4)]
    lake.write(METRICS_1M, [*rows, minute("other")])
    lake.export(METRICS_1M, rows)
    client = make_client(
        changes={
            "redis.url": lake.settings.redis.url if source == "redis" else NOWHERE,
            "redis.ttl_s": 3_000_000_000,
        }
    )
    found = get(client, f"{SERIES}&minutes=4")
    assert found["windows"] == 3
    assert [(one["timestamp"], one["avg"]) for one in found["data"]] == [
        (NOON_MS - gap * MINUTE_MS, gap) for gap in (0, 1, 3)
    ]
    assert found["source"] == source
    assert found["data"][0] == {
        "timestamp": NOON_MS,
        "isFinal": True,
        **STATISTICS,
        "avg": 0,
        "sum": 0,
        "min": -1.5,
        "max": 1.5,
        "p50": -1.5,
        "p90": 1.5,
        "p95": 1.5,
        "p99": 1.5,
    }


def test_windows_that_have_left_redis_come_from_gold_with_the_rest(
    client: TestClient, lake: ServedLake
) -> None:
    rows = [minute(start_ms=NOON_MS - gap * MINUTE_MS) for gap in range(3)]
    lake.write(METRICS_1M, rows)
    lake.export(METRICS_1M, rows[:2])
    assert get(client, f"{SERIES}&minutes=2")["source"] == "redis"
    found = get(client, f"{SERIES}&minutes=3")
    assert (found["source"], found["windows"]) == ("gold", 3)


@pytest.mark.parametrize("source", ["redis", "gold"])
def test_services_are_compared_by_their_newest_windows(
    make_client: MakeClient, lake: ServedLake, source: str
) -> None:
    older = [minute("b", start_ms=NOON_MS - MINUTE_MS, avg=8), minute("a", "memory", avg=8)]
    rows = [*older, minute("a", avg=1), minute("b", avg=2, is_final=False)]
    lake.write(METRICS_1M, rows[:3])
    lake.write(METRICS_1M, rows[3:])
    lake.export(METRICS_1M, rows)
    found = get(
        make_client(changes={"redis.url": lake.settings.redis.url if source == "redis" else NOWHERE}),
        "/api/metrics/compare?metric=cpu",
    )
    assert {name: one["avg"] for name, one in found["services"].items()} == {"a": 1.0, "b": 2.0}
    assert [found[name] for name in ("metric", "source", "isFinal")] == ["cpu", source, False]


@pytest.mark.parametrize("source", ["redis", "gold"])
def test_services_are_compared_page_by_page_in_order_of_their_names(
    make_client: MakeClient, lake: ServedLake, source: str
) -> None:
    names = ["Z", "a", "b", "ü", "€"]
    rows = [minute(name, start_ms=NOON_MS - age * MINUTE_MS, avg=age) for age in (1, 0) for name in names]
    lake.write(METRICS_1M, rows[5:8] + rows[:2])
    lake.write(METRICS_1M, rows[8:] + rows[2:5] + [minute("a", "memory")])
    lake.export(METRICS_1M, rows)
    client = make_client(changes={"redis.url": lake.settings.redis.url if source == "redis" else NOWHERE})
    path, pages = "/api/metrics/compare?metric=cpu&limit=2", list[Any]()
    while not pages or pages[-1]["next"] is not None:
        pages.append(get(client, f"{path}&cursor={pages[-1]['next']}" if pages else path))
    assert [list(page["services"]) for page in pages] == [["Z", "a"], ["b", "ü"], ["€"]]
    assert {one["avg"] for page in pages for one in page["services"].values()} == {0.0}
    assert {page["source"] for page in pages} == {source}
    other = f"/api/metrics/compare?metric=memory&cursor={pages[0]['next']}"
    assert client.get(other).status_code == 400


def test_a_redis_that_has_lost_rows_is_not_believed_of_all_services(
    client: TestClient, lake: ServedLake
) -> None:
    lake.write(METRICS_1M, [minute("a"), minute("b")])
    lake.export(METRICS_1M, [minute("a")])
    assert list(get(client, "/api/metrics/compare?metric=cpu")["services"]) == ["a"]
    with lake.redis() as redis:
        redis.set("lakehouse:metrics_1m:filled", "another run")
    assert sorted(get(client, "/api/metrics/compare?metric=cpu")["services"]) == ["a", "b"]


@pytest.mark.parametrize("name", ["a:b", "{x}", "%3A", "ü é\u2028", "a/b?c&d", "50%"])
def test_names_with_separators_are_found_in_both(
    make_client: MakeClient, lake: ServedLake, name: str
) -> None:
    lake.export(METRICS_1M, [minute(name, name)])
    lake.write(METRICS_1M, [minute(name, name)])
    clients = {"redis": make_client(), "gold": make_client(changes={"redis.url": NOWHERE})}
    for source, client in clients.items():
        for path in ("latest", "timeseries"):
            parameters = {"service": name, "metric": name, **({"minutes": "1"} if path != "latest" else {})}
            found = client.get(f"/api/metrics/{path}", params=parameters)
            assert (found.status_code, found.json().get("source")) == (200, source)
        assert list(get_compared(client, name)) == [name]


def get_compared(client: TestClient, name: str) -> Any:
    return client.get("/api/metrics/compare", params={"metric": name}).json()["services"]


def test_what_neither_has_is_not_found(client: TestClient, lake: ServedLake) -> None:
    for _ in range(2):
        for path in (LATEST, SERIES, "/api/metrics/compare?metric=cpu"):
            found = client.get(path)
            assert (found.status_code, found.headers["content-type"]) == (404, "application/problem+json")
        lake.write(METRICS_1M, [minute("other", "other")])


def test_both_stores_away_is_said_with_both_reasons(make_client: MakeClient, lake: ServedLake) -> None:
    found = make_client(changes={"redis.url": NOWHERE}).get(LATEST)
    assert found.status_code == 503
    assert found.headers["retry-after"] == "1"
    assert "Redis does not answer" in found.json()["detail"]
    assert "there is no table at" in found.json()["detail"]

    (lake.root / "gold" / "metrics_1m" / "_delta_log").mkdir(parents=True)
    (lake.root / "gold" / "metrics_1m" / "_delta_log" / f"{0:020}.json").write_text("no JSON")
    assert make_client().get(LATEST).status_code == 503


def test_files_that_are_gone_are_given_up_for_the_newest_version(
    make_client: MakeClient, lake: ServedLake
) -> None:
    client = make_client(changes={"redis.url": NOWHERE})
    lake.write(METRICS_1M, [minute()])
    assert get(client, LATEST)["data"]["avg"] == 2.5
    table = lake.write(METRICS_1M, [minute(avg=5)], mode="overwrite")
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert get(client, LATEST)["data"]["avg"] == 5.0
