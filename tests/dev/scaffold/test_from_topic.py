"""`lakehouse new stream --from-topic`: a stream from the newest records of a real topic."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from lakehouse.common.record_lines import Record
from lakehouse.settings import Settings
from lakehouse.storage.kafka.clients import Producer
from lakehouse.storage.kafka.newest import newest_records
from lakehouse.storage.kafka.topics import create_topics
from tests.support.commands import Ended, run_command
from tests.support.settings import MakeSettings

AT_MS = 1_774_746_300_000


@pytest.fixture
def settings(make_settings: MakeSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.chdir(tmp_path)
    return make_settings()


def topic_with(settings: Settings, *records: Record, aborted: int = 0) -> str:
    """Return a new topic with three partitions and these records, followed by aborted ones."""
    topic = f"cards-{uuid4().hex[:8]}"
    create_topics(settings.kafka.access, {topic: 3})
    producer = Producer(settings.kafka.access, {"transactional.id": topic})
    producer.init_transactions()
    for is_aborted, several in ((False, records), (True, [Record(b"{}", partition=0)] * aborted)):
        producer.begin_transaction()
        for one in several:
            producer.produce(
                topic,
                one.value,
                key=one.key,
                headers=list(one.headers),
                partition=one.partition or 0,
                timestamp=one.timestamp_ms or AT_MS,
            )
        producer.flush()
        if is_aborted:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    return topic


def new_stream(settings: Settings, topic: str, *options: str) -> Ended:
    servers = {"LAKEHOUSE_KAFKA_BOOTSTRAP_SERVERS": settings.kafka.bootstrap_servers}
    given = ("new", "stream", "shop", "--kind", "windowed-sums", "--from-topic", topic, *options)
    return run_command(servers, *given)


def payment(number: int, partition: int = 0) -> Record:
    value = b'{"card": "c%d", "amount": %d.50, "at": %d}' % (number % 2, number, AT_MS + number)
    return Record(value, partition=partition, timestamp_ms=AT_MS + number)


def test_a_stream_begins_from_the_newest_records_of_a_topic(settings: Settings) -> None:
    older = [payment(number) for number in range(5)]
    bad = Record(b"\xff", b"c1", (("trace", b"7f"),), partition=1, timestamp_ms=AT_MS)
    topic = topic_with(settings, *older, bad, aborted=9)

    ended = new_stream(settings, topic, "--records", "4")

    assert ended.returncode == 0, ended.stderr
    left_out = f"{topic}/1/0 is not UTF-8: invalid start byte at position 0"
    assert ended.stderr == f"1 of 4 samples is left out: {left_out}\n"
    assert (
        Path("shop.jsonl").read_text(encoding="utf-8")
        == f"""\
{{"topic": "{topic}", "partition": 0, "offset": 2, "timestamp_ms": 1774746300002, \
"value": {{"card": "c0", "amount": 2.50, "at": 1774746300002}}}}
{{"topic": "{topic}", "partition": 0, "offset": 3, "timestamp_ms": 1774746300003, \
"value": {{"card": "c1", "amount": 3.50, "at": 1774746300003}}}}
{{"topic": "{topic}", "partition": 0, "offset": 4, "timestamp_ms": 1774746300004, \
"value": {{"card": "c0", "amount": 4.50, "at": 1774746300004}}}}
{{"topic": "{topic}", "partition": 1, "offset": 0, "timestamp_ms": 1774746300000, "key": "c1", \
"headers": [["trace", "7f"]], "value_base64": "/w=="}}
"""
    )
    assert (
        Path("lakehouse.toml").read_text(encoding="utf-8")
        == f"""\
[streams.shop]
kind = "windowed_sums"
topic = "{topic}"
event_time = "at"  # guess: in all 3 samples, a number of ms since 1970
# guess: a string or whole number in all 3 samples
by = "card"
# guess: a number in all 3 samples
value = "amount"
length = "5m"  # guess: five minutes of event time
"""
    )
    assert ended.stdout.startswith(f"shop.jsonl: the records from {topic}\nlakehouse.toml: [streams.shop]\n")
    assert ended.stdout.endswith("then try the stream: lakehouse try shop --envelope shop.jsonl\n")
    again = new_stream(settings, topic)
    assert again.stderr == "error: ./shop.jsonl already exists: remove it, or use it with --sample\n"


def test_unusable_topics_and_options_are_refused_and_nothing_is_written(settings: Settings) -> None:
    empty = topic_with(settings)
    framed = topic_with(settings, Record(b"\x00\x00\x00\x00\x07\x02a"))

    for topic, options, why in (
        (f"{empty[:-1]}_", (), f"no topic '{empty[:-1]}_': did you mean {empty}?"),
        (empty, (), f"topic {empty} has no records at the moment"),
        (
            framed,
            (),
            f"the records in topic {framed} begin with the id of a schema, so they are Avro, Protobuf",
        ),
        ("a b", (), "--from-topic a b: 'a b' cannot be a topic's name"),
        (empty, ("--sample", "s"), "specify either --sample or --from-topic"),
        (empty, ("--envelope",), "--envelope describes the lines of --sample, so it cannot be used with"),
    ):
        ended = new_stream(settings, topic, *options)
        assert ended.returncode == 2
        assert ended.stderr.startswith(f"error: {why}")
    assert list(Path().iterdir()) == []


def test_an_unreachable_broker_is_named(settings: Settings) -> None:
    away = settings.changed({"kafka.bootstrap_servers": "127.0.0.1:1"})

    ended = new_stream(away, "cards")

    assert ended.returncode == 1
    assert ended.stderr.startswith(
        "error: no Kafka broker at 127.0.0.1:1 (nothing accepts connections there)"
    )


def test_a_topic_with_fewer_records_is_read_whole(settings: Settings) -> None:
    topic = topic_with(settings, payment(1), payment(2, 2), aborted=3)

    found = newest_records(settings.kafka.access, topic, 1_000)

    assert [(one.topic, one.partition, one.offset, one.value) for one in found] == [
        (topic, 0, 0, payment(1).value),
        (topic, 2, 0, payment(2).value),
    ]
