"""/api/v1/records: one record in every layer, without its content."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from lakehouse.engine.layers import bronze, silver
from lakehouse.engine.records.dead_letters import DEAD_LETTERS
from lakehouse.serving.security.access import Access
from lakehouse.serving.security.tokens import Scope, Tokens
from tests.support.served_lakes import NOON_MS, MakeClient, ServedLake, at, letter, transactions
from tests.support.streams import TRANSACTIONS, USER_TRANSACTIONS_5M

PATH = "/api/v1/records"
TOPIC = "transactions-topic"
AWAY = {"kafka.bootstrap_servers": "127.0.0.1:1"}
(SOURCE,) = TRANSACTIONS.sources


def write(lake: ServedLake) -> None:
    """Land the records 7 and 8: the first is merged, and the second is a letter."""
    places = [{"topic": TOPIC, "partition": 0, "offset": offset} for offset in (7, 8)]
    times = {"timestamp": at(NOON_MS), "ingested_at": at(NOON_MS + 1500)}
    raw = [{**place, **times, "key": b"secret", "value": b"secret"} for place in places]
    lake.write_spec(bronze.spec(SOURCE), raw, noted={f"bronze.transactions reads {TOPIC}:9Zc/0": 9})
    lake.write_spec(silver.spec(SOURCE), [{**places[0], "event_time": at(NOON_MS), "user_id": "u1"}])
    lake.write(USER_TRANSACTIONS_5M, [transactions("u1", NOON_MS, "3")])
    lake.write_spec(DEAD_LETTERS, [letter(1, "late", stream="transactions", topic=TOPIC, offset=8)])


def test_a_record_is_told_layer_by_layer_in_camel_case_with_the_columns_of_its_key(
    make_client: MakeClient, lake: ServedLake
) -> None:
    write(lake)
    found = make_client(changes=AWAY).get(f"{PATH}/{TOPIC}/0/7")
    assert (found.status_code, found.headers["content-type"]) == (200, "application/json")
    assert "secret" not in found.text
    body = found.json()
    assert (body["topic"], body["partition"], body["offset"]) == (TOPIC, 0, 7)
    (stream,) = body["streams"]
    assert stream["bronze"] == {
        "table": "bronze.transactions",
        "isThere": True,
        "kafkaTimestamp": "2026-05-04T12:00:00Z",
        "ingestedAt": "2026-05-04T12:00:01.500000Z",
        "reason": None,
    }
    assert (stream["silver"]["isThere"], stream["silver"]["eventTime"]) == (True, "2026-05-04T12:00:00Z")
    assert stream["letters"] == []
    (row,) = stream["gold"]
    assert (row["table"], row["isThere"]) == ("gold.user_transactions_5m", True)
    assert row["key"] == {"user_id": "u1", "window_start": "2026-05-04T12:00:00Z"}
    assert row["sent"] == {
        "topic": "aggregated-transactions",
        "stores": ["redis"],
        "version": 0,
        "sentVersion": None,
        "sentAt": None,
        "rowsWaiting": 1,
        "behind": [],
        "reason": "nothing has been sent yet",
    }


def test_a_refused_record_and_one_that_has_not_landed_are_no_errors(
    make_client: MakeClient, lake: ServedLake
) -> None:
    write(lake)
    client = make_client(changes=AWAY)
    (refused,) = client.get(f"{PATH}/{TOPIC}/0/8").json()["streams"]
    assert refused["letters"] == [
        {
            "id": f"{1:064x}",
            "status": "open",
            "firstSeen": "2026-05-04T12:00:01Z",
            "reasons": [{"rule": "late", "column": None, "message": "it is late"}],
        }
    ]
    assert refused["silver"]["reason"] == "it is a dead letter"
    (later,) = client.get(f"{PATH}/{TOPIC}/0/9").json()["streams"]
    assert later["bronze"]["reason"] == "not landed yet: bronze reads partition 0 from offset 9 on"


def test_a_lake_without_tables_has_an_answer(make_client: MakeClient) -> None:
    (found,) = make_client(changes=AWAY).get(f"{PATH}/{TOPIC}/0/9").json()["streams"]
    assert found["bronze"]["reason"].startswith("bronze has no position in partition 0: there is no lake at ")


def test_a_topic_that_no_stream_reads_is_not_found(client: TestClient) -> None:
    found = client.get(f"{PATH}/transaction-topic/0/9")
    assert (found.status_code, found.headers["content-type"]) == (404, "application/problem+json")
    assert found.json()["detail"].startswith(
        "no stream reads topic 'transaction-topic', only analyticsTopic, "
    )
    assert found.json()["detail"].endswith("; did you mean transactions-topic?")


@pytest.mark.parametrize(
    ("place", "parameter"),
    [
        ("transactions-topic/-1/0", "partition"),
        ("transactions-topic/2147483648/0", "partition"),
        ("transactions-topic/0/9223372036854775808", "offset"),
        ("transactions-topic/0/x", "offset"),
        ("transactions%20topic/0/0", "topic"),
    ],
)
def test_a_place_that_no_record_can_have_is_refused(client: TestClient, place: str, parameter: str) -> None:
    found = client.get(f"{PATH}/{place}")
    assert found.status_code == 422
    assert [one["parameter"] for one in found.json()["errors"]] == [parameter]


def test_records_are_for_those_who_may_read(make_client: MakeClient, lake: ServedLake) -> None:
    write(lake)
    tokens = Tokens(lake.settings.home)
    headers = {"Authorization": f"Bearer {tokens.add('reader', [Scope.READ])}"}
    client = make_client(Access(tokens), changes=AWAY)
    assert client.get(f"{PATH}/{TOPIC}/0/7").status_code == 401
    assert client.get(f"{PATH}/{TOPIC}/0/7", headers=headers).status_code == 200


def test_records_are_found_by_their_id_or_by_the_id_of_their_letter(
    make_client: MakeClient, lake: ServedLake
) -> None:
    write(lake)
    same: dict[str, Any] = {"stream": "transactions", "topic": TOPIC, "unique_id": "a7"}
    lake.write_spec(DEAD_LETTERS, [letter(2, "late", offset=9, **same), letter(3, "late", offset=10, **same)])
    client = make_client(changes=AWAY | {"streams": {"transactions": {"unique_by": "id"}}})

    found = client.get(f"{PATH}?id=a7").json()["records"]

    assert [(one["topic"], one["partition"], one["offset"]) for one in found] == [
        (TOPIC, 0, 9),
        (TOPIC, 0, 10),
    ]
    assert found[0] == client.get(f"{PATH}/{TOPIC}/0/9").json()
    (one,) = client.get(f"{PATH}?letter={1:064x}").json()["records"]
    assert one["offset"] == 8
    for query, what in (
        ("id=b", "record with the id 'b'"),
        ("letter=ffffff", "dead letter whose id begins with 'ffffff'"),
    ):
        nothing = client.get(f"{PATH}?{query}")
        assert (nothing.status_code, nothing.json()["detail"]) == (404, f"there is no {what}")
    for query in ("", "?id=a7&letter=ffffff", "?letter=ff"):
        assert client.get(f"{PATH}{query}").status_code == 422


def test_an_id_of_a_lake_without_ids_is_refused(client: TestClient) -> None:
    found = client.get(f"{PATH}?id=a7")
    assert (found.status_code, found.json()["detail"]) == (
        422,
        "id: no stream's records have ids (unique_by); use topic, partition and offset",
    )
