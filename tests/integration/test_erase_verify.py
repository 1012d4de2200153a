"""`lakehouse erase verify` on real services: every place with a planted id is named, and no id is shown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis
from deltalake import write_deltalake
from kafka import KafkaProducer
from typer.testing import CliRunner

from lakehouse.cli.main import app
from lakehouse.dev.services.services import Endpoints
from lakehouse.storage.kafka.topics import create_topics
from tests.support import redis_databases
from tests.support.processes import ROOT
from tests.support.streams import STREAMS

REDIS_DATABASE = 4  # no other test file uses it
ANNA, CAFE, NUMBER = "anna-4711", "café/4712", "4713000"
IDS = f"nobody-1\n{ANNA}\n{CAFE}\n{NUMBER}\n"
Place = Mapping[str, Any]


@pytest.fixture
def topics(services: Endpoints) -> dict[str, str]:
    """Create an input, an output and a dead-letter topic, and return the names of all topics."""
    suffix = uuid.uuid4().hex[:8]
    named = {topic: f"{topic}-{suffix}" for stream in STREAMS for topic in stream.topics}
    create_topics(services.access, {named["transactions-topic"]: 2}, {"retention.ms": "86400000"})
    create_topics(services.access, {f"letters-{suffix}": 1}, {"retention.ms": str(2**63 - 1)})
    create_topics(services.access, {named["aggregated-transactions"]: 1}, {"cleanup.policy": "compact"})
    return {**named, "letters": f"letters-{suffix}"}


@pytest.fixture
def environment(services: Endpoints, topics: Mapping[str, str], tmp_path: Path) -> Iterator[dict[str, str]]:
    """Yield the settings of a lake with one row, and an empty Redis database."""
    write_deltalake(str(tmp_path / "lake/gold/user_transactions_5m"), pa.table({"user_id": ["berta-1"]}))
    letters = topics["letters"]
    (tmp_path / "ids.txt").write_text(IDS, encoding="utf-8")
    with redis_databases.emptied(services.redis, REDIS_DATABASE) as url:
        yield {
            "LAKEHOUSE_LAKE": str(tmp_path / "lake"),
            "LAKEHOUSE_HOME": str(tmp_path / "home"),
            "LAKEHOUSE_KAFKA_BOOTSTRAP_SERVERS": services.kafka,
            "LAKEHOUSE_ONLY_STREAMS": "transactions",
            "LAKEHOUSE_KAFKA_DEAD_LETTER_TOPIC": letters,
            "LAKEHOUSE_ALERTS_TOPIC": f"alerts-{letters}",
            "LAKEHOUSE_REDIS_URL": url,
            "LAKEHOUSE_TOPICS": json.dumps(
                {name: topic for name, topic in topics.items() if name != "letters"}
            ),
            "COLUMNS": "300",
        }


def verified(environment: Mapping[str, str], *options: str) -> tuple[int, dict[str, Any]]:
    """Run the command on the ids, and return its exit code and report. No output may contain an id."""
    ids = Path(environment["LAKEHOUSE_LAKE"]).with_name("ids.txt")
    called = ["erase", "verify", "--subject", str(ids), *options]
    done = CliRunner().invoke(app, [*called, "--format", "json"], env=dict(environment))
    read = CliRunner().invoke(app, called, env=dict(environment))
    assert (done.exit_code, done.exception is None or isinstance(done.exception, SystemExit)) == (
        read.exit_code,
        True,
    )
    shown = done.stdout + done.stderr + read.stdout + read.stderr
    assert [one for one in (ANNA, CAFE, "caf\\u00e9", NUMBER) if one in shown] == []
    return done.exit_code, json.loads(done.stdout)


def places(report: Mapping[str, Any], where: str) -> dict[tuple[str, str], tuple[dict[str, int], list[int]]]:
    """Return the parts and lines of the places in a store, keyed by their names and kinds."""
    found = [one for one in report["places"] if one["where"] == where]
    return {(one["name"], one["kind"]): (one["parts"], one["lines"]) for one in found}


def test_nothing_is_found_where_nothing_was_planted(
    environment: dict[str, str], topics: Mapping[str, str]
) -> None:
    send(environment, topics["transactions-topic"], b"berta-1", b'{"userId":"berta-1"}')
    with redis.Redis.from_url(environment["LAKEHOUSE_REDIS_URL"]) as client:
        client.set("lakehouse:sums:row:berta-1:1", "{}")
        client.set("other-application", ANNA)

    code, report = verified(environment)

    unused = "topics of streams that are not in use (only_streams, enabled)"
    assert (code, report["summary"], report["out_of_reach"]) == (0, f"0 places; left out: {unused}", [])
    assert report["is_proven"] is False
    searched = {(one["where"], one["name"]): one["items"] for one in report["searched"]}
    assert searched["lake", "gold.user_transactions_5m"] == 2
    assert searched["redis", "Redis"] == 2
    assert searched["kafka", topics["transactions-topic"]] == 1
    assert f"there is no topic alerts-{topics['letters']} (alerts)" in report["notes"]


def test_every_type_of_key_in_redis_is_searched(environment: dict[str, str]) -> None:
    with redis.Redis.from_url(environment["LAKEHOUSE_REDIS_URL"]) as client:
        client.set(f"lakehouse:sums:row:{ANNA}:1", "{}", ex=3600)
        client.set("lakehouse:sums:row:x:2", json.dumps({"user": CAFE}))
        client.hset("lakehouse:sums:latest:", mapping={ANNA: "{}", "x": json.dumps({"user": ANNA})})
        client.hset("{lakehouse:sums:latest:}:stamps", f"{ANNA}", "1 2 3 deleted")
        client.zadd("{lakehouse:sums:latest:}:expiry", {ANNA: 1.0, "x": 4713000.0})
        client.sadd("lakehouse:old:set", ANNA, "x")
        client.rpush("lakehouse:old:list", "x", ANNA)
        client.xadd("lakehouse:old:stream", {"user": ANNA, CAFE: "x"})

    code, report = verified(environment, "--place", "redis")

    assert code == 1
    assert places(report, "redis") == {
        ("lakehouse:sums:row:<line 2>:1", "string"): ({"key": 1}, [2]),
        ("lakehouse:sums:row:x:2", "string"): ({"value": 1}, [3]),
        ("lakehouse:sums:latest:", "hash"): ({"field": 1, "value": 1}, [2]),
        ("{lakehouse:sums:latest:}:stamps", "hash"): ({"field": 1}, [2]),
        ("{lakehouse:sums:latest:}:expiry", "zset"): ({"member": 1, "score": 1}, [2, 4]),
        ("lakehouse:old:set", "set"): ({"member": 1}, [2]),
        ("lakehouse:old:list", "list"): ({"element": 1}, [2]),
        ("lakehouse:old:stream", "stream"): ({"field": 1, "value": 1}, [2, 3]),
    }
    untils = {one["name"]: one["until"] for one in report["places"]}
    assert untils["lakehouse:sums:row:<line 2>:1"] is not None
    assert untils["lakehouse:old:set"] is None
    assert report["left_out"] == ["lake", "kafka"]


def test_keys_values_and_headers_of_records_are_searched(
    environment: dict[str, str], topics: Mapping[str, str]
) -> None:
    sums, total, letters = topics["transactions-topic"], topics["aggregated-transactions"], topics["letters"]
    send(environment, sums, ANNA.encode(), b"{}", at_ms=1_772_366_400_000)
    send(environment, sums, None, b'{"userId":"caf\\u00e9\\/4712","n":1}')
    send(environment, sums, (4_713_000).to_bytes(8, "big"), None)
    send(environment, sums, b"x", b"{}", headers=[("trace", b"of anna-4711"), (f"h-{ANNA}", b"x")])
    send(environment, sums, b"x", json.dumps({"userId": ANNA}).encode(), is_aborted=True)
    send(environment, total, f"{ANNA}:1".encode(), None)
    send(environment, letters, None, b"xanna-4711x")

    code, report = verified(environment, "--place", "kafka")

    assert code == 1
    assert places(report, "kafka") == {
        (f"{sums}/0", "input topic"): (
            {"key": 2, "value": 2, "header trace": 1, "name of a header": 1},
            [2, 3, 4],
        ),
        (f"{total}/0", "output topic"): ({"key": 1}, [2]),
        (f"{letters}/0", "dead letters"): ({"value": 1}, [2]),
    }
    by_topic = {one["name"].removesuffix("/0"): one for one in report["places"]}
    assert by_topic[sums]["until"] is not None
    assert (by_topic[letters]["until"], by_topic[letters]["how"]) == (
        None,
        "retention.ms is 9,223,372,036,854,775,807",
    )
    assert sorted(by_topic[sums]["examples"]) == [f"{sums}/0/{offset}" for offset in (0, 1, 2, 3, 3)]
    assert (by_topic[total]["until"], "tombstone" in by_topic[total]["how"]) == (None, True)
    assert (by_topic[letters]["certain"], by_topic[letters]["uncertain"]) == (0, 1)


def test_services_that_do_not_answer_are_out_of_reach(environment: dict[str, str]) -> None:
    away = environment | {
        "LAKEHOUSE_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1",
        "LAKEHOUSE_REDIS_URL": "redis://127.0.0.1:1/0",
        "LAKEHOUSE_POSTGRES_URL": "postgresql://nobody@127.0.0.1:1/x",
    }

    code, report = verified(away)

    assert code == 1
    assert report["places"] == []
    assert {one["where"] for one in report["out_of_reach"]} == {"redis", "postgres", "kafka"}


def test_it_needs_no_java_and_reads_standard_input(environment: dict[str, str]) -> None:
    own = {**os.environ, **environment, "PATH": "/nowhere", "JAVA_HOME": "/nowhere"}
    command = [sys.executable, "-m", "lakehouse", "erase", "verify", "--subject", "-", "--place", "lake"]

    done = subprocess.run(command, input=b"berta-1\n", env=own, cwd=ROOT, capture_output=True, check=False)

    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[-1] == (b"2 places in lake (2); 0 not certain; left out: redis, kafka")
    assert b"berta" not in done.stdout + done.stderr


def send(
    environment: Mapping[str, str],
    topic: str,
    key: bytes | None,
    value: bytes | None,
    *,
    headers: list[tuple[str, bytes]] | None = None,
    at_ms: int | None = None,
    is_aborted: bool = False,
) -> None:
    """Send a record to partition 0 of a topic, if wanted in a transaction that is aborted."""
    own = {"transactional_id": f"tests-{uuid.uuid4()}"} if is_aborted else {}
    producer = KafkaProducer(bootstrap_servers=environment["LAKEHOUSE_KAFKA_BOOTSTRAP_SERVERS"], **own)
    try:
        if is_aborted:
            producer.init_transactions()
            producer.begin_transaction()
        where = {"partition": 0, "headers": headers or [], "timestamp_ms": at_ms}
        producer.send(topic, value, key=key, **where).get(60)
        if is_aborted:
            producer.abort_transaction()
    finally:
        producer.close()
