"""The export's Kafka and Redis sinks, against a real broker and a real Redis."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, overload

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType

from lakehouse.common.errors import PositionError, ServiceError
from lakehouse.dev.services.services import Endpoints
from lakehouse.sinks.change import Change, Span
from lakehouse.sinks.kafka.rows import TRANSACTION_TIMEOUT_S, KafkaSink
from lakehouse.sinks.kafka.slices import SlicedSink, last_sliced
from lakehouse.sinks.port import Slice
from lakehouse.sinks.redis.client import RedisTroubleError
from lakehouse.sinks.redis.rows import CALL_ROWS, RedisSink, filled_key
from lakehouse.storage.kafka.topics import Limits, create_topics, limits_of
from lakehouse.storage.kafka.transactions import FencedError, Record, Transactions, reported
from lakehouse.storage.tables import Position, Progress
from tests.support import redis_databases, redis_servers
from tests.support.pipeline import await_, read_topic

PARTITIONS = 3
TTL_S = 600
GENERATION = 1_795_257_559_100
FIRST = Span("table-a", Position(0), Position(1))
SECOND = Span("table-a", Position(1), Position(2))
THIRD = Span("table-a", Position(2), Position(3))

Message = tuple[str, str | None]


def change(key: str, value: str | None, version: int = 1) -> Change:
    """Return a change of which only the Kafka half matters."""
    return Change(key, value, version, row_key=key, group="g", member=key, order=1)


def changes(*messages: Message) -> list[Change]:
    return [change(key, value) for key, value in messages]


# Kafka.


@pytest.fixture
def topic(services: Endpoints) -> str:
    name = f"sinks-{uuid.uuid4().hex}"
    create_topics(services.access, {name: PARTITIONS})
    return name


@pytest.fixture
def make_kafka_sink(services: Endpoints, topic: str) -> Iterator[Callable[..., KafkaSink]]:
    """Yield a factory of exporters of one table to one topic, each like a separate process."""
    made: list[KafkaSink] = []

    def make(transaction_timeout_s: int = TRANSACTION_TIMEOUT_S) -> KafkaSink:
        sink = KafkaSink(services.access, topic, "a_table", transaction_timeout_s=transaction_timeout_s)
        made.append(sink)
        return sink

    yield make
    for sink in made:
        sink.close()


MakeSliced = Callable[..., SlicedSink]


@pytest.fixture
def make_sliced(services: Endpoints, topic: str) -> Iterator[MakeSliced]:
    """Yield a factory of exporters that send the same table to the same topic in slices."""
    made: list[SlicedSink] = []

    def make(slice_rows: int = 3, limit: int = 1_000_000) -> SlicedSink:
        limits = Limits(record_bytes=limit)
        sink = SlicedSink(
            services.access,
            topic,
            "a_table",
            limits,
            slice_rows=slice_rows,
            transaction_timeout_s=60,
        )
        made.append(sink)
        return sink

    yield make
    for sink in made:
        sink.close()


def committed(services: Endpoints, topic: str) -> list[Message]:
    return read(services, topic, "read_committed")


def uncommitted(services: Endpoints, topic: str) -> list[Message]:
    """Return everything in the log, whatever became of its transaction."""
    return read(services, topic, "read_uncommitted")


def read(services: Endpoints, topic: str, isolation_level: str) -> list[Message]:
    """Return what a consumer sees up to the end of the log, in order within each partition."""
    found = read_topic(services.kafka, topic, isolation_level)
    return [(m.key.decode(), None if m.value is None else m.value.decode()) for m in found]


def test_the_limits_of_a_topic_are_those_of_its_broker(services: Endpoints, topic: str) -> None:
    assert limits_of(services.access, topic) == Limits(record_bytes=2 * 1024 * 1024, transaction_ms=900_000)


def test_rows_and_progress_are_committed_together_and_once(
    services: Endpoints, topic: str, make_kafka_sink: Callable[[], KafkaSink]
) -> None:
    sink = make_kafka_sink()

    assert sink.write(changes(("a", "1"), ("b", "2")), FIRST) == 2
    assert sink.write(changes(("a", "3")), SECOND) == 1

    assert sorted(committed(services, topic)) == [("a", "1"), ("a", "3"), ("b", "2")]


@pytest.mark.parametrize("again_by", ["the same exporter", "a restarted exporter"])
def test_a_micro_batch_written_again_sends_nothing(
    services: Endpoints, topic: str, make_kafka_sink: Callable[[], KafkaSink], again_by: str
) -> None:
    first = make_kafka_sink()
    first.write(changes(("a", "1")), FIRST)
    first.write(changes(("a", "2")), SECOND)

    again = first if again_by == "the same exporter" else make_kafka_sink()

    assert again.write(changes(("a", "1")), FIRST) == 0
    assert again.write(changes(("a", "2")), SECOND) == 0
    assert again.write(changes(("a", "3")), THIRD) == 1
    assert uncommitted(services, topic) == [("a", "1"), ("a", "2"), ("a", "3")]


def test_the_rows_of_another_table_are_sent_though_its_versions_start_anew(
    services: Endpoints, topic: str, make_kafka_sink: Callable[[], KafkaSink]
) -> None:
    make_kafka_sink().write(changes(("a", "1")), Span("table-a", Position(0), Position(8)))

    assert make_kafka_sink().write(changes(("a", "1")), Span("table-b", Position(0), Position(1))) == 1

    assert committed(services, topic) == [("a", "1"), ("a", "1")]
    await_progress(make_kafka_sink(), "table-b", Position(1))


def test_an_empty_micro_batch_moves_the_progress(make_kafka_sink: Callable[[], KafkaSink]) -> None:
    assert make_kafka_sink().sent() is None
    assert make_kafka_sink().write([], SECOND) == 0

    assert make_kafka_sink().write(changes(("a", "1")), FIRST) == 0
    await_progress(make_kafka_sink(), "table-a", Position(2))


def await_progress(sink: KafkaSink, table: str, position: Position) -> None:
    """Wait until a sink that has sent nothing sees the progress: the broker shows a commit a moment late."""
    await_(lambda: sink.sent() == Progress(table, position), 60)


@pytest.mark.soak
def test_the_progress_tells_parts_of_the_version_with_which_an_export_begins(
    services: Endpoints, topic: str, make_kafka_sink: Callable[[], KafkaSink]
) -> None:
    """Version 5 has three files; the third micro-batch ends with the version, and the next one follows it."""
    spans = [
        Span("table-a", Position(5, 0), Position(5, 1)),
        Span("table-a", Position(5, 1), Position(5, 2)),
        Span("table-a", Position(5, 2), Position(6)),
        Span("table-a", Position(6), Position(7)),
    ]
    for number, span in enumerate(spans):
        again = make_kafka_sink()
        assert again.write(changes(("a", str(number))), span) == 1
        await_progress(again, "table-a", span.after)
        assert [make_kafka_sink().write(changes(("a", "x")), one) for one in spans[: number + 1]] == [0] * (
            number + 1
        )

    assert committed(services, topic) == [("a", str(number)) for number in range(4)]


def test_an_exporter_that_continues_where_another_one_has_gone_on_is_refused(
    services: Endpoints, topic: str, make_kafka_sink: Callable[[], KafkaSink]
) -> None:
    make_kafka_sink().write(changes(("a", "1")), FIRST)
    make_kafka_sink().write(changes(("a", "2")), SECOND)

    with pytest.raises(PositionError, match="up to version 2, but this export continues at 1") as caught:
        make_kafka_sink().write(changes(("a", "2"), ("a", "3")), Span("table-a", Position(1), Position(3)))

    assert topic in str(caught.value)
    assert "\n" not in str(caught.value)
    assert uncommitted(services, topic) == [("a", "1"), ("a", "2")]


def test_two_tables_and_two_topics_do_not_disturb_each_other(services: Endpoints, topic: str) -> None:
    other_topic = f"{topic}-other"
    create_topics(services.access, {other_topic: 1})
    made = [
        KafkaSink(services.access, topic, "a_table"),
        KafkaSink(services.access, other_topic, "a_table"),
        KafkaSink(services.access, topic, "b_table"),
    ]

    try:
        for span in (FIRST, SECOND):
            assert [sink.write(changes(("a", "1")), span) for sink in made] == [1, 1, 1]
    finally:
        for sink in made:
            sink.close()


def test_a_second_exporter_fences_the_first_which_says_so_in_one_line(
    services: Endpoints, topic: str, make_kafka_sink: Callable[[], KafkaSink]
) -> None:
    first, second = make_kafka_sink(), make_kafka_sink()
    first.write(changes(("a", "1")), FIRST)
    second.write(changes(("a", "2")), SECOND)

    with pytest.raises(ServiceError, match="taken over by another exporter of the same table") as caught:
        first.write(changes(("a", "zombie")), THIRD)

    assert topic in str(caught.value)
    assert "a_table" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert second.write(changes(("a", "3")), THIRD) == 1
    assert committed(services, topic) == [("a", "1"), ("a", "2"), ("a", "3")]


def test_a_fenced_producer_says_so_and_commits_nothing(services: Endpoints, topic: str) -> None:
    first, second = (Transactions(services.access, f"of {topic}", timeout_s=60) for _ in range(2))
    closed = []
    with (
        pytest.raises(FencedError, match="somebody else has it"),
        reported("the test", lambda: closed.append(1), "somebody else has it"),
    ):
        first.commit([Record(topic, b"zombie", b"")])
    second.commit([Record(topic, b"a", b"1")])
    for producer in (first, second):
        producer.close()

    assert committed(services, topic) == [("a", "1")]
    assert closed == [1]


def test_an_exporter_of_slices_is_fenced_by_one_that_takes_over(
    services: Endpoints, topic: str, make_kafka_sink: Callable[[], KafkaSink], make_sliced: MakeSliced
) -> None:
    first, second = make_kafka_sink(), make_kafka_sink()
    first.take_over()
    old = make_sliced(slice_rows=1).send(changes(("b", "1"), ("b", "zombie")), FIRST)
    assert next(old).sent == 1

    second.take_over()
    assert sent(make_sliced(slice_rows=1).send(changes(("b", "1"), ("b", "2")), FIRST)) == [0, 1]
    second.write([], FIRST)

    with pytest.raises(ServiceError, match="taken over by another exporter"):
        next(old)
    with pytest.raises(ServiceError, match="taken over by another exporter"):
        first.write(changes(("b", "zombie")), FIRST)
    assert committed(services, topic) == [("b", "1"), ("b", "2")]


def sent(slices: Iterable[Slice]) -> list[int]:
    return [one.sent for one in slices]


@pytest.mark.parametrize(("broken_after", "left"), [(3, 5), (7, 2)])
def test_a_crash_between_two_slices_is_made_good_exactly_once(
    services: Endpoints, topic: str, make_sliced: MakeSliced, broken_after: int, left: int
) -> None:
    rows = changes(*((f"key {number % 2}", str(number)) for number in range(8)))

    with pytest.raises(ZeroDivisionError):
        sent(make_sliced().send(Breaking(rows[:broken_after], ZeroDivisionError()), FIRST))
    assert len(committed(services, topic)) == 8 - left
    again = list(make_sliced(slice_rows=5).send(rows, FIRST))  # an upgrade may have changed the slice size

    assert (sum(sent(again)), [row for one in again for row in one.changes]) == (left, rows)
    assert by_key(committed(services, topic)) == by_key([(row.key, row.value) for row in rows])
    assert sent(make_sliced().send(rows, FIRST)) == [0, 0, 0]
    assert sent(make_sliced().send(changes(("key 0", "8")), SECOND)) == [1]


def test_slices_are_those_of_a_span_which_has_to_end_before_another_one_begins(
    services: Endpoints, topic: str, make_sliced: MakeSliced
) -> None:
    """A retry has the span of the slices already sent, so their rows are the same."""
    assert last_sliced(services.access, "a_table", topic) is None
    rows, broken = changes(("a", "1"), ("a", "2")), Span("table-a", Position(1), Position(3, 7))
    with pytest.raises(ZeroDivisionError):
        sent(make_sliced(slice_rows=1).send(Breaking(rows[:1], ZeroDivisionError()), broken))
    # The broker shows the commit a moment late. An export that looks before that chooses another span.
    with pytest.raises(
        PositionError, match="from version 1 to 7 files of 3, but this export's micro-batch is"
    ):
        sent(make_sliced(slice_rows=1).send(rows, Span("table-a", Position(1), Position(9))))
    await_(lambda: last_sliced(services.access, "a_table", topic) == broken, 60)

    assert sent(make_sliced(slice_rows=1).send(rows, broken)) == [0, 1]
    for other in (Span("table-a", Position(3, 7), Position(9)), Span("table-b", Position(0), Position(1))):
        assert sent(make_sliced(slice_rows=1).send(rows[1:], other)) == [1]

    assert committed(services, topic) == [("a", "1"), *[("a", "2")] * 3]


def test_what_was_refused_is_refused_again_though_the_topic_takes_more_by_now(
    services: Endpoints, topic: str, make_sliced: MakeSliced
) -> None:
    rows = changes(("a", "1"), ("a", "x" * 1000), ("a", "3"), ("a", "y" * 1000))

    with pytest.raises(ZeroDivisionError):
        sent(make_sliced(slice_rows=2, limit=500).send(Breaking(rows[:3], ZeroDivisionError()), FIRST))
    again = list(make_sliced(slice_rows=2, limit=5000).send(rows, FIRST))

    assert sent(again) == [0, 1]
    assert [(row.key, row.size_bytes, row.limit_bytes) for one in again for row in one.refused] == [
        ("a", 1087, 500),
        ("a", 1087, 500),
    ]
    assert committed(services, topic) == [("a", "1"), ("a", "3")]
    assert sent(make_sliced(limit=5000).send(rows[1:2], SECOND)) == [1]


def test_the_broker_takes_a_row_of_the_very_size_that_is_let_through(
    services: Endpoints, topic: str, make_kafka_sink: Callable[[], KafkaSink]
) -> None:
    set_topic(services, topic, {"max.message.bytes": "1000"})
    sink = make_kafka_sink()
    # 61 bytes for a batch, 21 for a record, one for no headers, one and two for the lengths.
    fitting, larger, refused = ("a", "x" * 913), ("b", "x" * 914), ("c", "é" * 457)

    weighed = sink.weigh(changes(fitting, larger, refused))

    assert weighed.fitting == changes(fitting)
    assert [(row.key, row.size_bytes, row.limit_bytes) for row in weighed.refused] == [
        ("b", 1001, 1000),
        ("c", 1001, 1000),
    ]
    assert sink.write(weighed.fitting, FIRST) == 1
    with pytest.raises(ServiceError, match="MSG_SIZE_TOO_LARGE"):  # the client's estimate is a little high
        sink.write(changes(("b", "x" * 914 + "y" * 20)), SECOND)


def test_the_limit_is_looked_up_again_where_a_row_is_too_large(
    services: Endpoints, topic: str, make_kafka_sink: Callable[[], KafkaSink]
) -> None:
    set_topic(services, topic, {"max.message.bytes": "500"})
    sink, rows = make_kafka_sink(), changes(("a", "x" * 2_000_000))
    assert len(sink.weigh(rows).refused) == 1
    assert sink.write([], FIRST) == 0

    set_topic(services, topic, {"max.message.bytes": "3000000"})

    assert sink.weigh(rows).fitting == rows
    assert sink.write(rows, SECOND) == 1
    assert committed(services, topic) == [("a", "x" * 2_000_000)]


@pytest.mark.parametrize(("asked_s", "has_s"), [(TRANSACTION_TIMEOUT_S, 600), (7, 7), (1_000_000, 900)])
def test_the_broker_knows_how_long_a_transaction_may_be_open(
    services: Endpoints,
    topic: str,
    make_kafka_sink: Callable[[int], KafkaSink],
    asked_s: int,
    has_s: int,
) -> None:
    make_kafka_sink(asked_s).write(changes(("a", "1")), FIRST)

    group = f"lakehouse-export-a_table-to-{topic}"
    with closing(KafkaAdminClient(bootstrap_servers=services.kafka)) as admin:
        described = admin.describe_transactions([group])[group]
    assert described.transaction_timeout_ms == 1000 * has_s


class Breaking(Sequence[Change]):
    """Changes that raise a failure after the last one, once `awaited` returns true."""

    def __init__(
        self,
        whole: Sequence[Change],
        failure: BaseException,
        awaited: Callable[[], object] = lambda: True,
    ) -> None:
        self._whole = whole
        self._failure = failure
        self._awaited = awaited

    def __len__(self) -> int:
        return len(self._whole) + 1

    @overload
    def __getitem__(self, position: int) -> Change: ...
    @overload
    def __getitem__(self, position: slice) -> Sequence[Change]: ...
    def __getitem__(self, position: int | slice) -> Change | Sequence[Change]:
        if position == len(self._whole):
            await_(self._awaited, 60)
            raise self._failure
        return self._whole[position]


@pytest.mark.parametrize(
    ("failure", "retried_by"),
    [(ZeroDivisionError(), "the same exporter"), (KeyboardInterrupt(), "a restarted exporter")],
)
def test_an_unfinished_transaction_is_invisible_and_its_retry_is_not(
    services: Endpoints,
    topic: str,
    make_kafka_sink: Callable[[], KafkaSink],
    failure: BaseException,
    retried_by: str,
) -> None:
    sink = make_kafka_sink()
    sink.write(changes(("a", "1")), FIRST)

    with pytest.raises(type(failure)):
        sink.write(
            Breaking(changes(("b", "1")), failure, lambda: len(uncommitted(services, topic)) > 1), SECOND
        )

    retrying = sink if retried_by == "the same exporter" else make_kafka_sink()
    assert retrying.write(changes(("a", "2")), SECOND) == 1
    assert committed(services, topic) == [("a", "1"), ("a", "2")]


def test_a_row_that_the_broker_refuses_fails_its_whole_micro_batch(
    services: Endpoints, topic: str, make_kafka_sink: Callable[[], KafkaSink]
) -> None:
    set_topic(services, topic, {"max.message.bytes": "500"})
    sink = make_kafka_sink()
    rows = changes(("a", "1"), ("a", "x" * 1000), ("b", "2"))

    with pytest.raises(ServiceError, match=f"export to topic {topic} failed: MSG_SIZE_TOO_LARGE") as caught:
        sink.write(rows, FIRST)

    assert "\n" not in str(caught.value)
    set_topic(services, topic, {"max.message.bytes": "1000000"})
    assert sink.write(rows, FIRST) == 3
    assert sorted(committed(services, topic)) == [("a", "1"), ("a", "x" * 1000), ("b", "2")]


def set_topic(services: Endpoints, topic: str, configuration: dict[str, str]) -> None:
    with closing(KafkaAdminClient(bootstrap_servers=services.kafka)) as admin:
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configuration)])


def test_rows_of_a_key_keep_their_order_over_many_batches(
    services: Endpoints, topic: str, make_kafka_sink: Callable[[], KafkaSink]
) -> None:
    sink = make_kafka_sink()
    sent = [(f"key-{number % 7}", f"{number} {'x' * 100}") for number in range(4000)]

    sink.write(changes(*sent[:3000]), FIRST)
    sink.write(changes(*sent[3000:]), SECOND)

    assert by_key(committed(services, topic)) == by_key(sent)


def by_key(messages: Sequence[Message]) -> dict[str, list[str | None]]:
    grouped: dict[str, list[str | None]] = defaultdict(list)
    for key, value in messages:
        grouped[key].append(value)
    return grouped


def test_a_row_lands_where_any_other_producer_sends_a_record_with_its_key(
    services: Endpoints, topic: str, make_kafka_sink: Callable[[], KafkaSink]
) -> None:
    """A row that names another key in `partition_by` lands with the records of that key."""
    keys = [*(f"key-{number}" for number in range(20)), "größe", "検索"]
    with closing(KafkaProducer(bootstrap_servers=services.kafka, acks="all")) as producer:
        chosen = {key: producer.send(topic, b"other", key=key.encode()).get(30).partition for key in keys}
    assert set(chosen.values()) == set(range(PARTITIONS))

    rows = [replace(change(f"{key} and more", "1"), partition_by=key) for key in keys]
    make_kafka_sink().write([*changes(*((key, "1") for key in keys)), *rows], FIRST)

    landed = {
        one.key.decode(): one.partition for one in read_topic(services.kafka, topic) if one.value == b"1"
    }
    assert landed == chosen | {f"{key} and more": partition for key, partition in chosen.items()}


def test_deletes_leave_as_tombstones_and_text_as_utf8(
    services: Endpoints, topic: str, make_kafka_sink: Callable[[], KafkaSink]
) -> None:
    sent: list[Message] = [
        ("检索-доставка-🚚", '{"größe":"π"}'),
        ("检索-доставка-🚚", None),
        ("", "empty key"),
    ]

    make_kafka_sink().write(changes(*sent), FIRST)

    assert by_key(committed(services, topic)) == by_key(sent)


# Redis. Its keys are spelled out here as in docs/redis.md.

REDIS_DATABASE = 10  # no other test file uses it


def row_key(table: str, row: str) -> str:
    return f"lakehouse:{table}:row:{row}"


def latest_key(table: str, group: str) -> str:
    return f"lakehouse:{table}:latest:{group}"


@pytest.fixture(scope="module")
def redis_url(services: Endpoints) -> str:
    return redis_databases.url_of(services.redis, REDIS_DATABASE)


@pytest.fixture
def table() -> str:
    """Return a table name of the test's own, so that nobody else uses its keys."""
    return f"table_{uuid.uuid4().hex}"


@pytest.fixture
def reader(redis_url: str) -> Iterator[redis.Redis]:
    """Yield a client that shares nothing with the sink."""
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        yield client


@pytest.fixture
def make_redis_sink(redis_url: str, table: str) -> Iterator[Callable[..., RedisSink]]:
    made: list[RedisSink] = []

    def make(ttl_s: int = TTL_S, generation: int = GENERATION, *, rows_move: bool = False) -> RedisSink:
        made.append(RedisSink(redis_url, table, ttl_s, generation=generation, rows_move=rows_move))
        return made[-1]

    yield make
    for sink in made:
        sink.close()


def window(service: str, start: int, version: int, *, deleted: bool = False, metric: str = "cpu") -> Change:
    """Return a change of the row (metric, service, start) whose value tells its version."""
    value = None if deleted else json.dumps({"service": service, "start": start, "state": f"v{version}"})
    row = f"{service}:{metric}:{start}"
    return Change("k", value, version, row_key=row, group=metric, member=service, order=start)


def expected(one: Change, generation: int = GENERATION) -> dict[str, Any]:
    """Return what readers must find for a change."""
    row = {"_deleted": True} if one.value is None else json.loads(one.value)
    return {**row, "_generation": generation, "_version": one.version}


def stored(reader: redis.Redis, table: str, one: Change) -> dict[str, Any]:
    text = reader.get(row_key(table, one.row_key))
    assert text is not None, "the row is not in Redis"
    row: dict[str, Any] = json.loads(text)
    return row


def latest(reader: redis.Redis, table: str, group: str = "cpu") -> dict[str, dict[str, Any]]:
    return {str(member): json.loads(row) for member, row in reader.hgetall(latest_key(table, group)).items()}


def test_an_older_or_equal_version_does_not_replace_a_newer(
    reader: redis.Redis, table: str, make_redis_sink: Callable[..., RedisSink]
) -> None:
    sink = make_redis_sink()
    newer = window("auth", 60, 10)  # 9 < 10, though not as text

    assert sink.write([newer]).rows == 1
    assert sink.write([window("auth", 60, 9)]).rows == 0
    assert sink.write([replace(newer, value='{"state":"forged"}')]).rows == 0

    assert stored(reader, table, newer) == expected(newer)
    assert latest(reader, table) == {"auth": expected(newer)}
    assert sink.write([window("auth", 60, 11)]).rows == 1
    assert stored(reader, table, newer)["state"] == "v11"


def test_a_table_made_anew_replaces_the_rows_of_the_old_one_though_its_versions_begin_again(
    reader: redis.Redis, table: str, make_redis_sink: Callable[..., RedisSink]
) -> None:
    old, new = make_redis_sink(), make_redis_sink(generation=GENERATION + 1)
    old.write([window("auth", 60, 900), window("auth", 120, 901), window("billing", 120, 902)])

    assert new.write([window("auth", 60, 2)]).rows == 1
    put = old.write([window("auth", 60, 903), window("auth", 180, 904), window("billing", 120, 903)])
    assert put.rows == 2  # the new table holds back the first row, and the second one as its member's latest
    assert (put.held, put.held_key) == (2, row_key(table, "auth:cpu:180"))
    with pytest.raises(RedisTroubleError, match=rf"gold\.{table} .* hold back 2 rows .*auth:cpu:180"):
        old.refuse_held(put)

    assert stored(reader, table, window("auth", 60, 2)) == expected(window("auth", 60, 2), GENERATION + 1)
    assert latest(reader, table) == {
        "auth": expected(window("auth", 60, 2), GENERATION + 1),
        "billing": expected(window("billing", 120, 903)),
    }
    again = new.write([window("auth", 60, 2)])
    assert (again.rows, again.held) == (0, 0)
    assert new.write([window("auth", 60, 3)]).rows == 1
    older = new.write([window("auth", 60, 2), window("billing", 120, 4)])
    assert (older.rows, older.held) == (1, 0)


def test_a_fill_stands_until_redis_loses_its_keys(
    reader: redis.Redis, table: str, make_redis_sink: Callable[..., RedisSink]
) -> None:
    sink = make_redis_sink()
    assert not sink.is_filled()

    with sink.filling():
        assert not sink.is_filled()
        reader.delete(f"lakehouse:{table}:filled")
    assert not sink.is_filled()  # rows put before the loss are gone, so this fill does not count

    with sink.filling():
        pass
    assert sink.is_filled()
    assert sink.seems_filled()
    assert 0 < reader.ttl(f"lakehouse:{table}:filled") <= TTL_S
    assert not make_redis_sink(ttl_s=2 * TTL_S).is_filled()  # rows with a longer TTL must be put again
    with pytest.raises(ZeroDivisionError), sink.filling():
        _ = 1 / 0
    assert not sink.seems_filled()


@pytest.mark.soak
def test_a_fill_of_a_newer_table_stands_until_it_expires_and_the_older_table_is_refused(
    reader: redis.Redis, table: str, make_redis_sink: Callable[..., RedisSink]
) -> None:
    filled = f"lakehouse:{table}:filled"
    old, new = make_redis_sink(), make_redis_sink(ttl_s=3, generation=GENERATION + 1)
    with old.filling():
        pass
    assert not new.is_filled()
    assert not new.seems_filled()
    with new.filling():
        assert not new.is_filled()
        with pytest.raises(RedisTroubleError, match="from a lake that is newer than this one"):
            old.is_filled()
    assert new.is_filled()

    assert not old.seems_filled()
    for refused in (old.is_filled, old.require):
        with pytest.raises(RedisTroubleError, match=r"created or adopted at \d{4}-\d\d-\d\d .* \(FLUSHDB\)"):
            refused()
    assert reader.ttl(filled) <= 3  # the older table has not renewed it

    await_(lambda: not reader.exists(filled), 60)
    old.require()
    assert not old.is_filled()
    with old.filling():
        pass
    assert old.is_filled()


VERSIONS = [
    window(service, start, version, deleted=version == 8)
    for service, start, version in [
        ("gone", 60, 2),
        ("gone", 60, 8),
        ("back", 180, 5),
        ("back", 60, 6),
        ("back", 240, 1),
        ("back", 240, 8),
        ("auth", 60, 1),
        ("auth", 60, 3),
        ("auth", 60, 12),
        ("auth", 120, 2),
        ("auth", 120, 8),
        ("auth", 120, 11),
        ("billing", 120, 3),
        ("billing", 60, 7),
        ("billing", 60, 8),
        ("billing", -60, 9),
        ("billing", -60, 10),
    ]
]
# Rows of one member with the same order: the newest change is the latest.
VERSIONS += [replace(window("cart", 60, version), row_key=f"cart-{version}") for version in (4, 6, 5)]
DELIVERIES = st.tuples(
    st.permutations(VERSIONS), st.lists(st.sampled_from(VERSIONS), max_size=6), st.integers(1, len(VERSIONS))
)


@pytest.mark.cases
@settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(DELIVERIES)
def test_whatever_the_order_of_delivery_the_newest_stands(
    redis_url: str, reader: redis.Redis, delivery: tuple[list[Change], list[Change], int]
) -> None:
    """The remaining rows of a member whose latest row was deleted are put again, as the export does."""
    order, repeated, cut = delivery
    newest = {one.row_key: one for one in sorted(VERSIONS, key=lambda one: one.version)}
    standing = [one for one in newest.values() if one.value is not None]
    table = f"table_{uuid.uuid4().hex}"
    with closing(RedisSink(redis_url, table, TTL_S, generation=GENERATION)) as sink:
        for part in (order[:cut], order[cut:] + repeated):
            open_ = sink.write(part).open
            again = [one for one in standing if (one.group, one.member) in open_]
            assert sink.write(again, are_all=True).open == frozenset()

    assert {row: stored(reader, table, one) for row, one in newest.items()} == {
        row: expected(one) for row, one in newest.items()
    }
    last = {one.member: one for one in sorted(standing, key=lambda one: (one.order, one.version))}
    assert latest(reader, table) == {member: expected(one) for member, one in last.items()}
    assert {member: one.version for member, one in last.items()} == {
        "auth": 11,
        "back": 5,
        "billing": 3,
        "cart": 6,
    }


@pytest.mark.cases
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(DELIVERIES, st.sets(st.integers(0, 30)))
def test_a_fill_puts_what_redis_has_evicted(
    redis_url: str,
    reader: redis.Redis,
    delivery: tuple[list[Change], list[Change], int],
    evicted: set[int],
) -> None:
    """Redis evicts single keys: the hash of a group's latest rows without its stamps, or the stamps alone."""
    order, repeated, cut = delivery
    newest = {one.row_key: one for one in sorted(VERSIONS, key=lambda one: one.version)}
    existing = [one for one in newest.values() if one.value is not None]
    latest_first = sorted(existing, key=lambda one: (one.order, one.version), reverse=True)
    table = f"table_{uuid.uuid4().hex}"
    with closing(RedisSink(redis_url, table, TTL_S, generation=GENERATION)) as sink:
        for part in (order[:cut], order[cut:] + repeated):
            open_ = sink.write(part).open
            sink.write([one for one in existing if (one.group, one.member) in open_], are_all=True)
            for number, key in enumerate(sorted(reader.keys(f"*lakehouse:{table}:*"))):
                if number in evicted:
                    reader.delete(key)
        with sink.filling():
            sink.write([*latest_first, *(one for one in newest.values() if one.value is None)], are_all=True)

    assert {row: stored(reader, table, one) for row, one in newest.items()} == {
        row: expected(one) for row, one in newest.items()
    }
    last = {one.member: one for one in reversed(latest_first)}
    assert latest(reader, table) == {member: expected(one) for member, one in last.items()}


def test_the_latest_row_comes_back_though_its_stamp_was_left(
    reader: redis.Redis, table: str, make_redis_sink: Callable[..., RedisSink]
) -> None:
    sink, row = make_redis_sink(), window("auth", 60, 3)
    sink.write([row])
    reader.delete(latest_key(table, "cpu"))

    sink.write([row], are_all=True)

    assert latest(reader, table) == {"auth": expected(row)}


def test_a_latest_row_that_was_deleted_while_its_stamp_was_lost_goes_with_the_next_fill(
    reader: redis.Redis, table: str, make_redis_sink: Callable[..., RedisSink]
) -> None:
    sink, gone = make_redis_sink(), window("auth", 60, 4, deleted=True)
    sink.write([window("auth", 60, 3)])
    reader.delete(f"{{{latest_key(table, 'cpu')}}}:stamps")
    sink.write([gone])

    sink.write([gone], are_all=True)

    assert latest(reader, table) == {}


@pytest.mark.parametrize("rows_move", [False, True])
def test_after_a_delete_of_the_latest_the_next_one_is_the_latest_until_all_that_stand_are_put(
    reader: redis.Redis, table: str, make_redis_sink: Callable[..., RedisSink], *, rows_move: bool
) -> None:
    """If rows move, the row of the same commit is known to be the latest."""
    sink, is_open = make_redis_sink(rows_move=rows_move), frozenset({("cpu", "auth")})
    moved = [window("auth", 120, 5, deleted=True), window("auth", 60, 5)]
    assert sink.write([window("auth", 90, 3), window("auth", 120, 4)]).open == frozenset()

    assert sink.write(moved).open == (frozenset() if rows_move else is_open)
    assert latest(reader, table) == {"auth": expected(moved[1])}
    assert sink.write([window("auth", 60, 6)]).open == (frozenset() if rows_move else is_open)
    assert sink.write([window("auth", 90, 3), window("auth", 60, 6)], are_all=True).open == frozenset()
    assert latest(reader, table)["auth"]["state"] == "v3"

    gone = [window("auth", 90, 7, deleted=True), window("auth", 60, 8, deleted=True)]
    assert sink.write(gone).open == sink.write(gone).open == is_open  # repeated, as after a crash
    assert latest(reader, table) == {}
    assert sink.write([window("auth", 180, 9)]).open == frozenset()  # later than the latest so far


def test_every_key_has_a_time_to_live_which_an_update_begins_again(
    reader: redis.Redis, table: str, make_redis_sink: Callable[..., RedisSink]
) -> None:
    make_redis_sink(ttl_s=50).write([window("auth", 60, 1)])
    keys = sorted(reader.keys(f"*lakehouse:{table}:*"))
    latest_hash = latest_key(table, "cpu")
    own = [f"{{{latest_hash}}}:expiry", f"{{{latest_hash}}}:stamps"]
    assert keys == sorted([latest_hash, row_key(table, "auth:cpu:60"), *own])
    assert all(45 < reader.ttl(key) <= 50 for key in keys)

    make_redis_sink(ttl_s=5000).write([window("auth", 60, 2)])

    assert all(4990 < reader.ttl(key) <= 5000 for key in keys)


@pytest.mark.soak
def test_a_member_that_nothing_is_heard_of_leaves_the_latest_after_its_row(
    reader: redis.Redis, table: str, make_redis_sink: Callable[..., RedisSink]
) -> None:
    quiet, busy, versions = window("quiet", 60, 1), window("busy", 60, 2), count(3)
    sink = make_redis_sink(ttl_s=60)
    sink.write([busy])
    make_redis_sink(ttl_s=3).write([quiet])
    sink.write([window("busy", 60, next(versions))])  # keeps the hash itself alive, and its own member in it
    assert latest(reader, table)["quiet"] == expected(quiet)

    def only_others_are_left() -> bool:
        sink.write([window("other", 60, next(versions))])
        members = sorted(latest(reader, table))  # read first: the row may expire at any moment
        row_is_gone = not reader.exists(row_key(table, quiet.row_key))
        assert row_is_gone or "quiet" in members
        return row_is_gone and members == ["busy", "other"]

    await_(only_others_are_left, 60)

    assert sorted(reader.hkeys(f"{{{latest_key(table, 'cpu')}}}:stamps")) == ["busy", "other"]
    assert sorted(reader.zrange(f"{{{latest_key(table, 'cpu')}}}:expiry", 0, -1)) == ["busy", "other"]
    sink.write([quiet])
    assert latest(reader, table)["quiet"] == expected(quiet)


def test_everything_is_gone_after_the_time_to_live(
    reader: redis.Redis, table: str, make_redis_sink: Callable[..., RedisSink]
) -> None:
    make_redis_sink(ttl_s=1).write([window("auth", 60, 1), window("billing", 60, 1)])

    await_(lambda: reader.keys(f"*lakehouse:{table}:*") == [], 60)


def test_more_rows_than_one_call_takes_arrive_whole(
    reader: redis.Redis, table: str, make_redis_sink: Callable[..., RedisSink]
) -> None:
    many = 2 * CALL_ROWS + 1
    rows = [
        window("auth", 60 * number, version=number, metric=f"m{number % 3}") for number in range(1, many + 1)
    ]

    assert make_redis_sink().write(iter(rows)).rows == many

    assert sum(1 for _ in reader.scan_iter(row_key(table, "*"), count=1000)) == many
    assert stored(reader, table, rows[-1]) == expected(rows[-1])
    assert latest(reader, table, rows[-1].group) == {"auth": expected(rows[-1])}


def test_a_reader_needs_one_round_trip_for_each_question(
    reader: redis.Redis, table: str, make_redis_sink: Callable[..., RedisSink]
) -> None:
    services = ["auth", "検索", "größen-tabelle 🚚"]
    starts = [60, 120, 180]
    rows = [window(service, start, 7) for service in services for start in starts]
    make_redis_sink().write(rows)

    newest = json.loads(str(reader.hget(latest_key(table, "cpu"), "検索")))
    comparison = reader.hgetall(latest_key(table, "cpu"))
    series = reader.mget([row_key(table, f"検索:cpu:{start}") for start in [*starts, 240]])

    assert newest == {
        "service": "検索",
        "start": 180,
        "state": "v7",
        "_generation": GENERATION,
        "_version": 7,
    }
    assert {member: json.loads(row)["start"] for member, row in comparison.items()} == dict.fromkeys(
        services, 180
    )
    assert [row and json.loads(row)["start"] for row in series] == [60, 120, 180, None]


def test_redis_that_lost_its_scripts_is_given_them_again(
    reader: redis.Redis, make_redis_sink: Callable[..., RedisSink]
) -> None:
    sink = make_redis_sink()
    sink.write([window("auth", 60, 1)])

    reader.script_flush()

    assert sink.write([window("auth", 60, 2)]).rows == 1


def test_an_unreachable_redis_is_one_line_without_the_password() -> None:
    with socket.socket() as reserved:  # bound but not listening: nobody else can answer here
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        url = f"redis://user:secret@127.0.0.1:{port}/0"
        with (
            closing(RedisSink(url, "t", TTL_S, generation=GENERATION, retries=1)) as sink,
            pytest.raises(ServiceError, match=r"redis\.url") as caught,
        ):
            sink.write([window("auth", 60, 1)])
    assert f"127.0.0.1:{port}" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_redis_that_answers_with_an_error_is_not_said_to_be_out_of_reach(
    reader: redis.Redis, table: str, make_redis_sink: Callable[..., RedisSink]
) -> None:
    change, latest_hash = window("auth", 60, 1), latest_key(table, "cpu")
    keys = [
        row_key(table, change.row_key),
        latest_hash,
        f"{{{latest_hash}}}:stamps",
        f"{{{latest_hash}}}:expiry",
    ]
    for key in keys:
        reader.delete(key)  # the previous call may have written it
        reader.rpush(key, "of another type")

        with pytest.raises(ServiceError, match=f"WRONGTYPE {re.escape(key)}; .* delete the key") as caught:
            make_redis_sink().write([window("cart", 60, 1), change])

        assert "unreachable" not in str(caught.value)
        assert "redis.url" not in str(caught.value)
        reader.delete(key)

    reader.rpush(filled_key(table), "of another type")
    with pytest.raises(ServiceError, match=f"{filled_key(table)}.*WRONGTYPE.* delete the key"):
        make_redis_sink().is_filled()


@pytest.mark.soak
def test_expired_members_leave_a_hundred_at_a_time(
    reader: redis.Redis, table: str, make_redis_sink: Callable[..., RedisSink]
) -> None:
    make_redis_sink(ttl_s=1).write([window(f"quiet {number}", 60, 1) for number in range(250)])
    sink, versions = make_redis_sink(ttl_s=60), count(2)
    sink.write([window("busy", 60, next(versions))])  # keeps the hash itself alive
    await_(lambda: not reader.exists(row_key(table, "quiet 249:cpu:60")), 60)
    time.sleep(2.1)  # members expire up to two seconds after their rows

    left = []
    for _ in range(3):
        sink.write([window("busy", 60, next(versions))])
        left.append(len(latest(reader, table)))

    assert left == [151, 51, 1]


def test_rows_wait_for_a_redis_that_comes_back(tmp_path: Path) -> None:
    """It has the test's own socket, and is started once the sink has tried in vain to connect."""
    path = str(tmp_path / "redis.sock")
    with ExitStack() as started:

        def come_back() -> None:
            with socket.socket(socket.AF_UNIX) as down:
                down.bind(path)
                down.listen()
                down.settimeout(60)
                down.accept()[0].close()
            Path(path).unlink()
            started.enter_context(redis_servers.at_socket(tmp_path))

        restart = threading.Thread(target=come_back)
        restart.start()
        await_(Path(path).exists, 60)
        try:
            with closing(RedisSink(f"unix://{path}", "t", TTL_S, generation=GENERATION)) as sink:
                assert sink.write([window("auth", 60, 1), window("auth", 120, 1)]).rows == 2
        finally:
            restart.join(120)
