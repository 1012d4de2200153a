"""/api/v1/tables: rows by key, in pages, and the latest, of every gold table, exact, and not sent twice."""

from __future__ import annotations

import base64
import hashlib
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from starlette.testclient import TestClient

from lakehouse.serving.app import make_app
from lakehouse.serving.security.access import Access
from lakehouse.streams.declared import built
from lakehouse.streams.definition import MergedTable
from tests.support.page_streams import imported
from tests.support.served_lakes import (
    MINUTE_MS,
    NOON_MS,
    NOWHERE,
    MakeClient,
    ServedLake,
    at,
    call,
    minute,
    product,
    transactions,
)
from tests.support.streams import (
    CALL_RECORDS,
    METRICS_1M,
    PRODUCT_SALES,
    SALES_NOTIFICATIONS,
    STREAMS,
    USER_TRANSACTIONS_5M,
)

VISIT = {"request": "/tea", "order": "o1", "limit": 7}
TABLES = [table for stream in STREAMS for table in stream.tables]


def get(client: TestClient, table: str, **parameters: object) -> Any:
    found = client.get(f"/api/v1/tables/{table}", params={k: str(v) for k, v in parameters.items()})
    assert found.status_code == 200, found.text
    return found.json()


def test_a_stream_says_the_stores_that_its_tables_are_exported_to(make_client: MakeClient) -> None:
    def stores(changes: dict[str, object]) -> dict[str, list[str]]:
        streams = make_client(changes=changes).get("/api/v1/streams").json()["streams"]
        return {one["name"]: [store["label"] for store in one["stores"]] for one in streams}

    assert stores({})["sales"] == ["Kafka", "Redis"]
    only_redis: dict[str, object] = {"gold": {"user_transactions_5m": {"sinks": ["redis"], "to": False}}}
    changes = {
        "postgres.url": SecretStr("postgresql://127.0.0.1:1/lake"),
        "streams": {"transactions": only_redis},
    }
    found = stores(changes)
    assert (found["sales"], found["transactions"]) == (["Kafka", "Redis", "PostgreSQL"], ["Redis"])


def test_every_gold_table_of_every_stream_is_there(client: TestClient) -> None:
    listed = client.get("/api/v1/streams").json()["streams"]
    assert [stream["name"] for stream in listed] == [stream.name for stream in STREAMS]
    paths = client.get("/openapi.json").json()["paths"]
    for table in TABLES:
        for which in ("row", "latest", "rows"):
            parameters = {
                one["name"] for one in paths[f"/api/v1/tables/{table.name}/{which}"]["get"]["parameters"]
            }
            if which == "row":
                assert parameters == set(table.keys)
    assert listed[0]["tables"][0] == {
        "name": "metrics_1m",
        "key": ["service_id", "metric_name", "window_start"],
        "latestBy": ["metric_name", "service_id"],
        "time": "window_start",
        "windowSeconds": 60,
        "calendar": None,
        "fields": list(METRICS_1M.export.value.values),
        "columns": {},
        "settings": {"streams.metrics.quantile_k": "1600", "grace_s": "60"},
        "links": {which: f"/api/v1/tables/metrics_1m/{which}" for which in ("row", "latest", "rows")},
    }


@pytest.mark.parametrize("source", ["redis", "gold"])
@pytest.mark.parametrize(
    ("table", "row", "key", "data"),
    [
        (
            USER_TRANSACTIONS_5M,
            transactions("u:1", NOON_MS, "12345678901234567890123456789.123456789"),
            {"user_id": "u:1", "window_start": NOON_MS},
            '"totalAmount":12345678901234567890123456789.123456789,"count":1',
        ),
        (PRODUCT_SALES, product("chair", "100.500000000"), {"product": "chair"}, '"total":100.5,"count":1'),
        (PRODUCT_SALES, product("chair", None), {"product": "chair"}, '"total":null,"count":1'),
        (
            SALES_NOTIFICATIONS,
            {
                "product": "a:b",
                "value": Decimal("-0.1"),
                "partition": 3,
                "offset": 2**40,
                "event_time": at(NOON_MS),
            },
            {"product": "a:b", "partition": 3, "offset": 2**40},
            '{"product":"a:b","value":-0.1}',
        ),
        (
            CALL_RECORDS,
            call("a-b", "c", analytics='{"x":[1,2.50,"ü"],"n":1e400}', metrics="12 apples"),
            {"user1": "a-b", "user2": "c", "ts": NOON_MS},
            '"analytics":{"x":[1,2.50,"ü"],"n":1e400},"metrics":"12 apples"',
        ),
        (
            CALL_RECORDS,
            call("a", "b", analytics='"12"', metrics="NaN"),
            {"user1": "a", "user2": "b", "ts": NOON_MS},
            '"analytics":"12","metrics":"NaN"',
        ),
    ],
)
def test_a_row_is_found_by_its_key_and_says_exactly_what_was_exported(
    *,
    make_client: MakeClient,
    lake: ServedLake,
    table: MergedTable,
    row: Any,
    key: dict[str, Any],
    data: str,
    source: str,
) -> None:
    if source == "redis":
        lake.export(table, [row], version=4, generation=9)
    lake.write(table, [row])
    client = make_client(changes={} if source == "redis" else {"redis.url": NOWHERE})
    found = client.get(f"/api/v1/tables/{table.name}/row", params=key)
    assert found.status_code == 200
    assert data in found.text
    answer = get(client, f"{table.name}/row", **key)
    assert (answer["key"], answer["source"]) == (key, source)
    assert answer["version"] == (4 if source == "redis" else 0)
    if table is CALL_RECORDS:
        assert answer["isFinal"] is True
    named = {
        name: key[name] for name in (*table.export.redis.group.columns, *table.export.redis.member.columns)
    }
    assert get(client, f"{table.name}/latest", **named)["data"] == answer["data"]


def test_the_stream_of_the_page_has_its_endpoints_from_its_declaration(
    lake: ServedLake, tmp_path: Path
) -> None:
    """The stream in docs/streams-without-a-kind.md has no line about the API."""
    with imported(tmp_path) as modules:
        stream = modules["page_clicks"].CLICKS
    (table,) = stream.gold
    row = {"page": "/a", "window_start": at(NOON_MS), "count": 3}
    lake.write(table, [row])
    with TestClient(make_app(lake.settings, [stream], Access(None)), base_url="http://localhost") as client:
        path, said = "/api/v1/tables/page_views_5m", {"page": "/a", "windowStart": NOON_MS, "count": 3}
        for which, source in (("row", "gold"), ("latest", "gold"), ("row", "redis"), ("latest", "redis")):
            key: dict[str, Any] = {"page": "/a", **({"window_start": NOON_MS} if which == "row" else {})}
            answer = client.get(f"{path}/{which}", params=key).json()
            assert (answer["data"], answer["source"]) == (said, source)
            if (which, source) == ("latest", "gold"):
                lake.export(table, [row])
        assert client.get(f"{path}/rows").json()["rows"][0]["data"] == said


def test_a_row_is_found_by_any_way_to_write_its_time(client: TestClient, lake: ServedLake) -> None:
    lake.write(USER_TRANSACTIONS_5M, [transactions("u", NOON_MS, "1")])
    ways = [str(NOON_MS), "2026-05-04T12:00:00Z", "2026-05-04T14:00:00+02:00", "2026-05-04T12:00:00.000Z"]
    for way in ways:
        assert get(client, "user_transactions_5m/row", user_id="u", window_start=way)["data"]["count"] == 1
    plus = "/api/v1/tables/user_transactions_5m/row?user_id=u&window_start=2026-05-04T14:00:00+02:00"
    assert client.get(plus).status_code == 200  # here the plus stands for a space


def test_a_call_that_is_open_is_not_final_and_not_the_latest(client: TestClient, lake: ServedLake) -> None:
    rows = [call("a", "b"), call("a", "b", NOON_MS + 9 * MINUTE_MS, status="open", was_closed=False)]
    lake.write(CALL_RECORDS, rows)
    key = {"user1": "a", "user2": "b", "ts": NOON_MS + 9 * MINUTE_MS}
    assert get(client, "call_records/row", **key)["isFinal"] is False
    assert get(client, "call_records/latest", user1="a", user2="b")["data"]["ts"] == NOON_MS


def test_a_row_that_redis_knows_to_be_deleted_is_looked_for_in_gold(
    client: TestClient, lake: ServedLake
) -> None:
    lake.export(PRODUCT_SALES, [product("chair", "1")])
    with lake.redis() as redis:
        redis.set("lakehouse:product_sales:row:chair", '{"_deleted":true,"_generation":1,"_version":2}')
    lake.write(PRODUCT_SALES, [product("lamp", "1")])
    assert client.get("/api/v1/tables/product_sales/row?product=chair").status_code == 404


def test_pages_follow_each_other_without_a_gap_while_rows_come(client: TestClient, lake: ServedLake) -> None:
    rows = [transactions(f"u{n % 3}", NOON_MS + n // 3 * 5 * MINUTE_MS, "1", n + 1) for n in range(11)]
    lake.write(USER_TRANSACTIONS_5M, rows[::2])
    lake.write(USER_TRANSACTIONS_5M, rows[1::2])
    seen, cursor = [], None
    while True:
        page = get(
            client, "user_transactions_5m/rows", limit=4, **({} if cursor is None else {"cursor": cursor})
        )
        seen += [row["data"]["count"] for row in page["rows"]]
        assert page["count"] == len(page["rows"]) <= 4
        # This row is behind the cursor, so no later page may show it.
        lake.write(USER_TRANSACTIONS_5M, [transactions("u9", NOON_MS - len(seen), "1", 100)])
        cursor = page["next"]
        if cursor is None:
            break
    assert seen == list(range(1, 12))


def test_rows_include_the_columns_that_are_not_in_their_message(client: TestClient, lake: ServedLake) -> None:
    row = {"product": "tea", "value": Decimal(2000), "crossing": 2, "event_time": at(NOON_MS)}
    lake.write(SALES_NOTIFICATIONS, [row | {"partition": 0, "offset": 7}])
    closed: dict[str, Any] = {"closed_at": at(NOON_MS + 1), "analytics_events": 3}
    lake.write(CALL_RECORDS, [call("ada", "bob", **closed)])

    (found,) = get(client, "sales_notifications/rows")["rows"]
    assert found["data"] == {"product": "tea", "value": 2000}
    assert found["columns"] == {"crossing": 2, "event_time": NOON_MS}
    (found,) = get(client, "call_records/rows")["rows"]
    assert found["columns"] == {
        "analytics_events": 3,
        "metrics_events": None,
        "last_event_time": NOON_MS + 1000,
        "closed_at": NOON_MS + 1,
        "was_closed": True,
    }
    streams = client.get("/api/v1/streams").json()["streams"]
    tables = {table["name"]: table["columns"] for stream in streams for table in stream["tables"]}
    assert tables["sales_notifications"] == {"crossing": "long", "event_time": "timestamp"}
    assert tables["product_sales"] == {"reached": "timestamp", "made_anew": "boolean"}


def test_keys_may_have_the_names_of_other_parameters(make_client: MakeClient, lake: ServedLake) -> None:
    keys = {"kind": "sql", "topic": "visits", "fields": [{"name": "limit", "type": "long"}]}
    tables = [
        {
            "by": ["request", "order", "limit"],
            "gold_table": "visits",
            "to": False,
            "aggregates": {"n": "count(*)"},
        }
    ]
    lake.write(built("visits", {**keys, "tables": tables}).gold[0], [row := VISIT | {"n": 3}])
    client = make_client(changes={"streams": {"visits": {**keys, "tables": tables}}, "redis.url": NOWHERE})

    assert get(client, "visits/row", **VISIT)["data"] == row | {"lastEventTime": None}
    assert [one["key"] for one in get(client, "visits/rows", request="/tea")["rows"]] == [VISIT]
    assert get(client, "visits/rows", request="/")["rows"] == []


def test_a_page_of_large_rows_has_fewer_of_them_and_leads_to_the_others(
    client: TestClient, lake: ServedLake
) -> None:
    large = '"' + "x" * 3_000_000 + '"'
    times = [NOON_MS + n * MINUTE_MS for n in range(5)]
    lake.write(CALL_RECORDS, [call("a", "b", one, metrics=large) for one in times[::2]])
    lake.write(CALL_RECORDS, [call("a", "b", one, metrics=large) for one in times[1::2]])
    first = get(client, "call_records/rows")
    assert [row["key"]["ts"] for row in first["rows"]] == times[:2]
    second = get(client, "call_records/rows", cursor=first["next"])
    third = get(client, "call_records/rows", cursor=second["next"])
    assert [row["key"]["ts"] for row in second["rows"] + third["rows"]] == times[2:]
    assert third["next"] is None


def test_a_range_has_its_start_and_not_its_end(client: TestClient, lake: ServedLake) -> None:
    lake.write(
        USER_TRANSACTIONS_5M, [transactions("u", NOON_MS + n * 5 * MINUTE_MS, "1", n) for n in range(4)]
    )
    bounds = {"start": NOON_MS + 5 * MINUTE_MS, "end": "2026-05-04T12:15:00Z"}
    page = get(client, "user_transactions_5m/rows", **bounds)
    assert [row["data"]["count"] for row in page["rows"]] == [1, 2]
    assert page["next"] is None
    assert get(client, "user_transactions_5m/rows", user_id="other", **bounds)["rows"] == []


def test_a_range_is_exact_to_the_microsecond(client: TestClient, lake: ServedLake) -> None:
    at_300_us = datetime(2026, 5, 4, 12, 0, 0, 300, tzinfo=UTC)
    lake.write(CALL_RECORDS, [call("a", "b", ts=at_300_us)])

    def found(**bounds: str) -> int:
        return len(get(client, "call_records/rows", **bounds)["rows"])

    assert found(start="2026-05-04T12:00:00.000300Z") == 1
    assert found(start="2026-05-04T12:00:00.000301Z") == 0
    assert found(end="2026-05-04T12:00:00.000301Z") == 1
    assert found(end="2026-05-04T12:00:00.000300Z") == 0


def test_a_reader_that_has_a_version_is_not_sent_it_again(client: TestClient, lake: ServedLake) -> None:
    lake.write(METRICS_1M, [minute()])
    path = "/api/v1/tables/metrics_1m/rows"
    tag = client.get(path).headers["etag"]
    again = client.get(path, headers={"If-None-Match": f'"x", W/{tag}'})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    lake.write(METRICS_1M, [minute("other")])
    while client.get(path).headers["etag"] == tag:
        pass
    assert client.get(path, headers={"If-None-Match": tag}).json()["count"] == 2


@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=x", "limit"),
        ("start=yesterday", "start"),
        ("start=2026-05-04T12:00:00", "start"),
        ("end=99999999999999999999", "end"),
        ("end=0000-01-01T00:00:00Z", "end"),
        ("user_id=", "user_id"),
    ],
)
def test_a_parameter_that_is_wrong_is_named(client: TestClient, query: str, parameter: str) -> None:
    found = client.get(f"/api/v1/tables/user_transactions_5m/rows?{query}")
    assert (found.status_code, found.headers["content-type"]) == (422, "application/problem+json")
    assert [one["parameter"] for one in found.json()["errors"]] == [parameter]


def test_a_cursor_of_another_table_is_refused(client: TestClient, lake: ServedLake) -> None:
    lake.write(PRODUCT_SALES, [product(name, "1") for name in "abc"])
    cursor = get(client, "product_sales/rows", limit=1)["next"]
    assert get(client, "product_sales/rows", cursor=cursor, limit=5)["count"] == 2
    content = b'["product_sales","b"]'
    checked = hashlib.sha256(b"lakehouse cursor\n" + content).digest()[:8] + content  # as anybody once could
    guessed = bytes(16) + content
    forged = [base64.urlsafe_b64encode(one).rstrip(b"=").decode() for one in (checked, guessed)]
    forged += [cursor[:-2] + ("AA" if cursor[-2:] != "AA" else "BB"), "abc", "\N{GRINNING FACE}"]
    for table, text in (("user_transactions_5m", cursor), *(("product_sales", one) for one in forged)):
        found = client.get(f"/api/v1/tables/{table}/rows", params={"cursor": text})
        assert (found.status_code, found.json()["errors"][0]["parameter"]) == (400, "cursor")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("GET", "/api/v1/streams/", 404),
        ("GET", "/api/v1/tables/nothing/rows", 404),
        ("DELETE", "/api/v1/streams", 405),
        ("POST", "/produce", 404),
        ("POST", "/api/metrics/latest", 405),
    ],
)
def test_what_is_not_there_is_a_problem_too(client: TestClient, method: str, path: str, status: int) -> None:
    found = client.request(method, path)
    assert (found.status_code, found.headers["content-type"]) == (status, "application/problem+json")
    problem = found.json()
    assert {"type", "title", "status", "detail"} <= problem.keys()
    assert problem["status"] == status
