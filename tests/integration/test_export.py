"""Export through the engine: changes to a gold table arrive in Kafka and Redis once and in order.

Rows are written to gold.metrics_1m directly, one Delta commit per call, so every version is known: creating
the table is version 0, the first write version 1. A row's count tells its states apart.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import deltalake
import pytest
import redis
from kafka import KafkaProducer
from pydantic import SecretStr
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from lakehouse.common.errors import (
    AccessDeniedError,
    LakehouseError,
    PositionError,
    ServiceError,
    StoreWord,
    TableError,
)
from lakehouse.dev.services.services import Endpoints
from lakehouse.engine.layers import Allow
from lakehouse.engine.layers import export as export_layer
from lakehouse.engine.layers.step import Permitted
from lakehouse.engine.progress import sent
from lakehouse.engine.runtime.runner import RunOptions, run, utc_now
from lakehouse.engine.runtime.signals import Stop
from lakehouse.operations.audit import Check
from lakehouse.operations.audit.stores import check_lead
from lakehouse.sinks.outgoing import newest_since
from lakehouse.sinks.redis.client import RedisTroubleError
from lakehouse.storage import tables
from lakehouse.storage.kafka.topics import Limits
from lakehouse.storage.kafka.transactions import Transactions
from tests.support import delta_commands as commands
from tests.support import redis_databases, redis_servers
from tests.support.batches import planned, write
from tests.support.exporting import (
    EVERY_COMMIT,
    ONE_TABLE,
    START,
    Export,
    State,
    of_key,
)
from tests.support.pipeline import await_
from tests.support.settings import MakeSettings
from tests.support.streams import METRICS, METRICS_1M

REDIS_DATABASE = 5  # no other test uses it, since all have the same keys of gold.metrics_1m


@pytest.fixture
def redis_url(services: Endpoints) -> Iterator[str]:
    with redis_databases.emptied(services.redis, REDIS_DATABASE) as url:
        yield url


@pytest.fixture
def export(spark: SparkSession, make_settings: MakeSettings, redis_url: str) -> Export:
    return Export(spark, make_settings({"redis.url": SecretStr(redis_url)}))


@pytest.fixture
def export_to_its_own(spark: SparkSession, make_settings: MakeSettings, tmp_path: Path) -> Iterator[Export]:
    """Yield an export to a Redis whose limits may be changed."""
    with redis_servers.at_socket(tmp_path / "redis") as url:
        yield Export(spark, make_settings({"redis.url": SecretStr(url)}))


@pytest.mark.soak
def test_every_commit_in_a_micro_batch_of_its_own_leaves_state_by_state(export: Export) -> None:
    export.put(State("auth", 0), State("auth", 1), State("検索", 0))  # version 1
    export.put(State("auth", 0, count=2), State("auth", 2))  # version 2
    export.take_away(State("auth", 1))  # version 3
    export.put(State("auth", 0, count=3))  # version 4

    # A new stream begins with the table as it stands; after that it follows the commits.
    began = export.run(EVERY_COMMIT)
    export.put(State("auth", 0, count=4))  # version 5
    export.delete(State("検索", 0))  # version 6
    export.put(State("auth", 0, count=5), State("auth", 1, count=7))  # version 7
    done = export.run(EVERY_COMMIT)

    assert sum(batch.result.rows for batch in began) == 3
    assert [(batch.batch, batch.result.written) for batch in done] == [
        (5, {export.topic: 1, "redis": 1}),
        (6, {export.topic: 1, "redis": 1}),
        (7, {export.topic: 2, "redis": 2}),
    ]
    messages = export.messages()
    assert of_key(messages, "検索") == [State("検索", 0).message(), None]
    assert of_key(messages, "auth")[-3:] == [
        State("auth", 0, count=4).message(),
        State("auth", 0, count=5).message(),
        State("auth", 1, count=7).message(),
    ]
    assert sorted(str(value) for value in of_key(messages, "auth")[:-3]) == sorted(
        str(state.message()) for state in (State("auth", 0, count=3), State("auth", 2))
    )
    assert export.in_redis() == {
        State("auth", 0).row_key: {**State("auth", 0, count=5).message(), "_version": 7},
        State("auth", 1).row_key: {**State("auth", 1, count=7).message(), "_version": 7},
        State("auth", 2).row_key: {**State("auth", 2).message(), "_version": 4},
        State("検索", 0).row_key: {"_deleted": True, "_version": 6},
    }
    assert export.latest() == {"auth": {**State("auth", 2).message(), "_version": 4}}
    # A null is sent as null, and the fields are in the documented order.
    assert {tuple(value) for _, value in messages if value} == {tuple(State("auth", 0).message())}
    assert export.run() == []


@pytest.mark.soak
def test_the_latest_row_of_a_member_is_one_that_stands(export: Export) -> None:
    export.put(*(State("auth", window) for window in (0, 1, 9)), State("cart", 0))
    export.run()
    assert export.latest()["auth"]["windowStart"] == State("auth", 9).start_ms

    export.take_away(State("auth", 9))
    export.take_away(State("cart", 0))
    export.run()

    assert export.latest() == {"auth": {**State("auth", 1).message(), "_version": 1}}
    export.put(State("cart", -1))
    export.run()
    assert export.latest()["cart"]["windowStart"] == State("cart", -1).start_ms


def test_one_micro_batch_sends_only_the_newest_state_of_each_row_in_the_order_of_versions(
    export: Export,
) -> None:
    export.put(State("auth", 9))
    assert [batch.batch for batch in export.run()] == [1]
    note = export.note.read_text()
    export.put(*(State("auth", window) for window in range(4)))  # version 2
    export.put(State("auth", 1, count=2), State("billing", 0))  # version 3
    export.put(State("auth", 0, count=3))  # version 4
    export.put(State("auth", 1, count=4), State("auth", 0, count=4))  # version 5
    export.put(State("auth", 0, count=5))  # version 6
    export.take_away(State("auth", 2))  # version 7
    export.put(State("cart", 0))  # version 8
    export.take_away(State("cart", 0))  # version 9
    export.take_away(State("billing", 0))  # version 10
    export.put(State("billing", 0, count=8))  # version 11

    done = export.run()

    assert [(batch.batch, batch.result.rows) for batch in done] == [(11, 6)]
    messages = export.messages()
    assert of_key(messages, "auth") == [
        State("auth", 9).message(),
        State("auth", 3).message(),  # version 2
        State("auth", 1, count=4).message(),  # version 5
        State("auth", 0, count=5).message(),  # version 6
        None,  # version 7
    ]
    assert of_key(messages, "cart") == [None]
    assert of_key(messages, "billing") == [State("billing", 0, count=8).message()]
    assert {key: row["_version"] for key, row in export.in_redis().items()} == {
        State("auth", 9).row_key: 1,
        State("auth", 3).row_key: 2,
        State("auth", 1).row_key: 5,
        State("auth", 0).row_key: 6,
        State("auth", 2).row_key: 7,
        State("cart", 0).row_key: 9,
        State("billing", 0).row_key: 11,
    }

    # The same micro-batch once more: nothing is sent, and Redis is unchanged.
    sent, stored, latest = messages, export.in_redis(), export.latest()
    export.put_note_back(note)
    again = export.run()
    assert [batch.result.written for batch in again] == [{export.topic: 0, "redis": 0}]
    assert sorted(export.messages(), key=repr) == sorted(sent, key=repr)  # across several partitions
    assert (export.in_redis(), export.latest()) == (stored, latest)


@pytest.mark.soak
def test_whatever_a_user_corrects_leaves_and_a_clearing_does_not(export: Export) -> None:
    """Auth's rows are corrected after their state was cleared; those of three other services change keys."""
    export.put(*(State(name, 0) for name in ("auth", "billing", "cart", "search")), State("auth", 1))
    export.run()
    export.put(State("late", 0))  # version 2, not yet sent when its state is cleared
    tables.clear(export.spark, export.path, ("m2", "sketch"), F.lit(True))  # version 3
    assert [one.result.rows for one in export.run()] == [1]
    before = export.counts()

    export.correct("count = 7", "service_id = 'auth'")  # version 4
    export.correct("service_id = 'invoicing'", "service_id = 'billing'")  # version 5
    names = "CASE service_id WHEN 'cart' THEN 'search' ELSE 'cart' END"
    export.correct(f"service_id = {names}, sum = sum + 1", "service_id IN ('cart', 'search')")  # version 6
    export.put(State("late", 0, count=2))  # version 7
    export.correct("m2 = NULL, sketch = NULL, count = 3", "service_id = 'late'")  # version 8, not a clearing
    export.run()

    gone = f"billing:latency:{State('billing', 0).start_ms}"
    moved = [(f"{name}:latency", 1) for name in ("invoicing", "cart", "search")]
    assert export.counts() - before == Counter(
        [("auth:latency", 7), ("auth:latency", 7), (gone, None), ("late:latency", 3), *moved]
    )
    stored = export.in_redis()
    assert stored[State("billing", 0).row_key] == {"_deleted": True, "_version": 5}
    assert {stored[State(name, 0).row_key]["sum"] for name in ("cart", "search")} == {3.5}
    assert stored[State("late", 0).row_key]["count"] == 3
    assert export.latest().keys() == {"auth", "invoicing", "cart", "search", "late"}
    assert [one.differences for one in export.audited()] == [0, 0]


REDIS_WRITE = "lakehouse.sinks.redis.rows.RedisSink.write"
NOTE = "lakehouse.engine.progress.sent.note"


@pytest.mark.parametrize(
    ("broken", "in_redis"),
    [
        pytest.param(REDIS_WRITE, 0, id="between both", marks=pytest.mark.soak),
        pytest.param(NOTE, 3, id="before the note"),
    ],
)
def test_a_crash_after_kafka_has_a_micro_batch_is_made_good_by_the_next_run(
    export: Export,
    monkeypatch: pytest.MonkeyPatch,
    broken: str,
    in_redis: int,
) -> None:
    export.put(State("auth", 0), State("cart", 0))  # version 1
    export.run()
    export.put(*(State("auth", window, count=2) for window in range(3)))  # version 2
    with monkeypatch.context() as patch:
        patch.setattr(broken, crash)
        with pytest.raises(ServiceError, match="pulled out"):
            export.run()
    assert len(export.messages()) - 2 == 3
    assert [row["_version"] for row in export.in_redis().values()].count(2) == in_redis
    export.put(State("auth", 1, count=3))  # version 3

    again = export.run()

    # The same changes again, and then what came since.
    assert [tuple(one.result.written.values()) for one in again] == [(0, 3 - in_redis), (1, 1)]
    counts = [value and value["count"] for value in of_key(export.messages(), "auth")]
    assert counts == [1, 2, 2, 2, 3]
    assert len(of_key(export.messages(), "cart")) == 1
    assert {key: (row["count"], row["_version"]) for key, row in export.in_redis().items()} == {
        State("auth", 0).row_key: (2, 2),
        State("auth", 1).row_key: (3, 3),
        State("auth", 2).row_key: (2, 2),
        State("cart", 0).row_key: (1, 1),
    }
    assert {name: row["windowStart"] for name, row in export.latest().items()} == {
        "auth": State("auth", 2).start_ms,
        "cart": State("cart", 0).start_ms,
    }
    assert export.run() == []


@pytest.mark.parametrize("broken", [REDIS_WRITE, pytest.param(NOTE, marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    "is_new",
    [
        pytest.param(True, id="of the first table"),
        pytest.param(False, id="of a table made anew", marks=pytest.mark.soak),
    ],
)
def test_a_crash_in_the_very_first_micro_batch_is_made_good_too(
    export: Export, monkeypatch: pytest.MonkeyPatch, broken: str, *, is_new: bool
) -> None:
    """No note in the lake says yet where it began; Redis may still hold an earlier table's rows."""
    before = 0
    if not is_new:
        export.put(State("auth", 0, count=7), State("cart", 0, count=7), State("gone", 0))
        export.run()
        export.make_anew()
        before = len(export.messages())
    export.put(State("auth", 0), State("cart", 0))
    with monkeypatch.context() as patch:
        patch.setattr(broken, crash)
        with pytest.raises(ServiceError, match="pulled out"):
            export.run(EVERY_COMMIT, allow=[Allow.RESEND])
    export.put(State("auth", 1, count=3))

    export.run(allow=[Allow.RESEND])

    assert len(export.messages()) == before + 3
    with export.redis() as client:
        if not is_new:
            client.delete(State("gone", 0).row_key)  # the earlier table's row, which nobody has deleted
    assert {key: (row["count"], row["_version"]) for key, row in export.in_redis().items()} == {
        State("auth", 0).row_key: (1, 1),
        State("cart", 0).row_key: (1, 1),
        State("auth", 1).row_key: (3, 2),
    }


def crash(*_arguments: object, **_named: object) -> int:
    raise ServiceError("the plug was pulled out")


@pytest.mark.soak
def test_the_notes_in_kafka_and_in_the_lake_stand_in_for_each_other(export: Export) -> None:
    """Either may be missing, or the lake's may be outdated; nothing is sent twice."""

    def audited() -> Check:
        (check,) = check_lead(export.lake, METRICS, METRICS_1M, export.settings)
        return check

    assert audited().notes == ("nothing has been exported yet",)
    export.put(State("auth", 0))
    export.run()
    first = export.note.read_text()
    losses: tuple[Callable[[], None], ...] = (
        export.forget_progress,
        lambda: export.put_note_back(None),
        lambda: export.put_note_back(first),
        lambda: export.put_note_back('{"table": "ab'),  # the power failed
        lambda: None,
    )

    for number, lose in enumerate(losses, start=1):
        lose()
        assert (audited().compared, audited().differences) == (number, 0)
        export.put(State("auth", number))
        assert sum(one.result.written.get(export.topic, 0) for one in export.run()) == 1
    assert len(export.messages()) == len(export.in_redis()) == 1 + len(losses)

    export.forget_progress()
    export.put_note_back(None)
    (example,) = audited().examples
    assert (
        example.what == "rows were sent, but neither Kafka nor the lake has a record of the last version sent"
    )


@pytest.mark.soak
def test_a_table_made_anew_is_refused_until_sending_again_is_allowed_and_then_replaces_the_old_one(
    export: Export,
) -> None:
    for count in (1, 2):
        export.put(State("auth", 0, count))
    export.run()
    table_id = tables.table_id(export.spark, export.path)
    export.make_anew()
    export.put(State("auth", 0, count=7))

    for _ in range(2):  # the refused run leaves nothing that the next one could mistake for its own
        with pytest.raises(PositionError, match=r"was deleted and recreated.* --allow resend") as caught:
            export.run()
        assert f"(table id {table_id})" in str(caught.value)
        assert export.topic in str(caught.value)
        assert "\n" not in str(caught.value)
    assert len(export.messages()) == 1

    export.run(allow=[Allow.RESEND])

    assert [value and value["count"] for value in of_key(export.messages(), "auth")] == [2, 7]
    assert export.in_redis() == {State("auth", 0).row_key: {**State("auth", 0, 7).message(), "_version": 1}}
    assert export.latest() == {"auth": {**State("auth", 0, 7).message(), "_version": 1}}
    export.put(State("auth", 1))
    assert [one.result.rows for one in export.run()] == [1]  # the export follows the new table from now on


@pytest.mark.soak
@pytest.mark.parametrize("knows", ["the lake and Kafka", "Kafka alone", "the lake alone"])
def test_an_older_copy_of_the_table_is_refused_by_name_and_the_newer_one_goes_on(
    export: Export, tmp_path: Path, knows: str
) -> None:
    """The lake's note is in the table's directory, so it may be as old as the copy, or newer."""
    export.put(State("auth", 0))  # version 1
    export.run()
    shutil.copytree(export.path, tmp_path / "older")
    export.put(State("auth", 1))  # version 2
    export.put(State("auth", 2))  # version 3
    export.run()
    newest, newer = export.note.read_text(), Path(export.path).rename(tmp_path / "newer")
    shutil.copytree(tmp_path / "older", export.path)
    export.forget_logs()
    if knows != "Kafka alone":
        export.put_note_back(newest)
    if knows == "the lake alone":
        export.forget_progress()

    for _ in range(2):
        with pytest.raises(PositionError) as caught:
            export.run()
        said = (
            f"export.metrics_1m has sent version 3 of {export.path}, whose newest version is 1: an older copy"
        )
        assert str(caught.value).startswith(said)
        assert "\n" not in str(caught.value)
    assert len(export.messages()) == 3

    shutil.rmtree(export.path)
    newer.rename(export.path)
    export.forget_logs()
    export.put(State("auth", 3))
    assert [(one.batch, one.result.rows) for one in export.run()] == [(4, 1)]
    assert len(export.messages()) == 4


# Fewer commits than are waiting, after the heap was full.


def test_a_micro_batch_for_which_the_heap_was_full_is_taken_in_fewer_commits(export: Export) -> None:
    export.put(State("auth", 9))
    export.run()
    for window in range(4):
        export.put(State("auth", window))
    with export.stepping() as step:
        batch = planned(step)
        step.limit = batch.size // 4
        first = planned(step)

    assert (batch.reads, first.reads) == ("gold.metrics_1m 2 to 6", "gold.metrics_1m 2 to 3")
    assert (batch.size > 0, first.size) == (True, 0)


def test_a_micro_batch_is_written_as_it_was_planned_whatever_was_planned_after_it(export: Export) -> None:
    export.put(State("auth", 9))
    export.run()
    for window in range(2):
        export.put(State("auth", window))
    with export.stepping() as step:
        batch = planned(step)
        step.limit = 1
        assert planned(step).reads == "gold.metrics_1m 2 to 3"
        assert write(step, batch, now=utc_now()).rows == 2
        assert step.plan({}) is None


# In slices.


@pytest.fixture
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send micro-batches of four or more rows in slices of two."""
    monkeypatch.setattr(export_layer, "LARGE_FROM_ROWS", 4)
    monkeypatch.setattr("lakehouse.sinks.kafka.sink.SLICE_ROWS", 2)


@pytest.mark.soak
@pytest.mark.usefixtures("few_are_many")
def test_slices_that_were_sent_before_a_failure_are_left_out_when_the_micro_batch_comes_again(
    export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    services, refused = [f"service {number}" for number in range(12)], "z" * 200_000  # the last row
    export.put(State("auth", 9))
    assert [batch.result.written for batch in export.run()] == [{export.topic: 1, "redis": 1}]
    export.put(*(State(service, 0) for service in services))
    export.put(*(State(service, window, 2) for service in services for window in (0, 1)), State(refused, 0))
    export.set_topic({"max.message.bytes": "140000"})  # more than a client batch, less than that row

    with monkeypatch.context() as patch:
        # The topic accepted more when the export looked, and less when the row arrived.
        patch.setattr("lakehouse.sinks.kafka.rows.limits_of", lambda *_: Limits(record_bytes=1_000_000))
        with pytest.raises(ServiceError, match=f"export to topic {export.topic} failed: MSG_SIZE_TOO_LARGE"):
            export.run()
    before, stored = len(export.messages()), len(export.in_redis())
    assert before in (1 + 23, 1 + 24)  # all but that row's slice of two
    export.set_topic({"max.message.bytes": "1000000"})
    export.put(State("service 0", 1, 3))
    (again, after) = export.run(EVERY_COMMIT)

    assert again.result.rows == 25
    assert again.result.written == {export.topic: 26 - before, "redis": 26 - stored}
    assert after.result.written == {export.topic: 1, "redis": 1}
    sent = export.messages()
    assert len(sent) == 1 + 25 + 1
    for service in services[1:]:
        assert of_key(sent, service) == [State(service, window, 2).message() for window in (0, 1)]
    assert [value and value["count"] for value in of_key(sent, "service 0")] == [2, 2, 3]
    assert {key: row["count"] for key, row in export.in_redis().items()} == {
        State("auth", 9).row_key: 1,
        State(refused, 0).row_key: 1,
        **{State(service, window).row_key: 2 for service in services for window in (0, 1)},
        State("service 0", 1).row_key: 3,
    }


@pytest.mark.soak
@pytest.mark.usefixtures("few_are_many")
@pytest.mark.parametrize("before", ["nothing", "an empty table", "a lost note", "a commit of no rows"])
def test_slices_go_on_exactly_where_they_were_broken_off_whatever_waits_by_then(
    export: Export, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    """A look that finds nothing to send is not noted, and a table may begin elsewhere by then.

    nothing              the table has its rows when the export first sees it
    an empty table       the export looked at it before it had rows
    a commit of no rows  it has sent something and then looked at a commit without rows
    a lost note          it has sent something; the lake's note of that is gone after the crash
    """
    there, rows = 0, [State(f"service {number}", 0) for number in range(8)]
    if before in ("a commit of no rows", "a lost note"):
        export.put(State("auth", 9))
        export.run()
        there = 1
    if before == "a commit of no rows":
        tables.begin(export.spark, export.path).set_properties({"a": "b"})
    commits, commit = 0, Transactions.commit

    def breaking(producer: Transactions, *records: Any) -> None:
        nonlocal commits
        commits += 1
        if commits == 3:
            crash()
        commit(producer, *records)

    with export.stepping() as step:
        if before != "nothing":
            assert step.plan({}) is None
        export.put(*rows)
        with monkeypatch.context() as patch:
            patch.setattr(Transactions, "commit", breaking)
            with pytest.raises(ServiceError, match="pulled out"):
                write(step, planned(step), now=utc_now())
    assert len(export.messages()) == there + 4
    with export.stepping() as step:
        assert planned(step).size == 0  # the slices belong to this micro-batch, which ends where it did
    if before == "a lost note":
        export.put_note_back(None)
    export.put(State("service 0", 0, count=2), State("service 9", 0))

    done = export.run()

    by_the_clock = 1 if before == "a lost note" else 0  # Redis may lack rows, so it is filled
    assert [one.result.written.get(export.topic) for one in done] == [4, 2] + by_the_clock * [None]
    sent = export.messages()
    assert len(sent) == there + 8 + 2
    assert [value and value["count"] for value in of_key(sent, "service 0")] == [1, 2]
    assert len(export.in_redis()) == there + 9
    assert export.run() == []


@pytest.mark.soak
def test_rows_of_many_bytes_leave_in_slices(export: Export, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_layer, "LARGE_FROM_BYTES", 1_000)
    monkeypatch.setattr("lakehouse.sinks.kafka.sink.SLICE_ROWS", 2)
    transactions, commit = list[Transactions](), Transactions.commit

    def counting(producer: Transactions, *records: Any) -> None:
        transactions.append(producer)
        commit(producer, *records)

    monkeypatch.setattr(Transactions, "commit", counting)
    export.put(State("auth", 0), State("auth", 1))
    export.run()
    assert len(transactions) == 1

    export.put(*(State("auth", window) for window in range(2, 10)))
    export.run()

    assert len(transactions) == 1 + 4 + 1  # the last one notes the position
    assert len(export.messages()) == 10


@pytest.mark.usefixtures("few_are_many")
def test_a_crash_after_all_slices_and_before_the_progress_sends_nothing_twice(
    export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    export.put(*(State(f"service {number}", 0) for number in range(8)))
    with monkeypatch.context() as patch:
        patch.setattr("lakehouse.sinks.kafka.rows.KafkaSink.write", crash)
        with pytest.raises(ServiceError, match="pulled out"):
            export.run()
    assert len(export.messages()) == 8

    (again,) = export.run()

    assert again.result.written == {export.topic: 0, "redis": 0}
    assert len(export.messages()) == len(export.in_redis()) == 8


@pytest.mark.soak
def test_half_a_million_rows_leave_though_a_transaction_may_be_open_for_seconds_only(
    export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows take far longer; the broker looks for expired transactions every ten seconds."""
    monkeypatch.setattr("lakehouse.sinks.kafka.sink.TRANSACTION_TIMEOUT_S", 5)
    monkeypatch.setattr("lakehouse.sinks.kafka.sink.SLICE_ROWS", 5_000)
    named = F.concat(F.lit("service "), F.col("id") % 5000)
    start = F.timestamp_micros(
        F.lit(int(START.timestamp()) * 1_000_000) + F.floor(F.col("id") / 5000) * 60_000_000
    )
    row = {**State("", 0).row(), "service_id": named, "window_start": start}
    values = {name: one if isinstance(one, Column) else F.lit(one) for name, one in row.items()}
    export.spark.range(500_000).select(
        *(values[field.name].cast(field.dataType).alias(field.name) for field in METRICS_1M.schema)
    ).write.format("delta").mode("append").save(export.path)

    (done,) = export.run()

    assert done.result.written == {export.topic: 500_000, "redis": 500_000}
    (check,) = check_lead(export.lake, METRICS, METRICS_1M, export.settings)
    assert (check.compared, check.differences) == (500_000, 0)


# An emptied Redis.


@pytest.mark.soak
def test_an_emptied_redis_is_filled_again_while_nothing_new_comes(export: Export) -> None:
    export.put(*(State("auth", window) for window in range(3)), State("cart", 0))
    stop, failures = Stop(), list[LakehouseError]()

    def live() -> None:
        try:
            run(export.lake, [ONE_TABLE], ["export"], export.settings, RunOptions("200 ms", stop=stop))
        except LakehouseError as failure:
            failures.append(failure)

    running = threading.Thread(target=live)
    running.start()
    try:
        await_(lambda: len(export.in_redis()) == 4)
        export.put(State("auth", 1, count=2))
        export.delete(State("auth", 2))
        await_(lambda: export.latest().get("auth", {}).get("count") == 2)  # after the row itself
        whole, latest, sent = export.in_redis(), export.latest(), len(export.messages())
        assert whole[State("auth", 2).row_key]["_deleted"]
        export.flush()
        await_(lambda: (export.in_redis(), export.latest()) == (whole, latest))
        assert len(export.messages()) == sent
    finally:
        stop.request()
        running.join(300)
    assert failures == []


def test_an_emptied_redis_is_seen_though_the_clock_was_set_back(
    export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    export.put(State("auth", 0))
    export.run()
    (maker,) = export_layer.steps(export.lake, ONE_TABLE, export.settings, Permitted())
    with closing(maker.make()) as step:
        assert step.ticker is not None
        now = utc_now()
        assert not step.ticker.is_due(now)
        export.flush()
        assert not step.ticker.is_due(now), "it has looked just now"
        monkeypatch.setattr("lakehouse.sinks.redis.sink._LOOK_EVERY_S", 0.0)
        assert step.ticker.is_due(now - timedelta(hours=1))


@pytest.mark.soak
def test_a_redis_that_should_have_more_than_vacuum_has_left_gets_the_rest_and_kafka_everything(
    export: Export,
) -> None:
    """The time to live now exceeds how long files are kept, or nothing has changed for longer than that."""
    export.put(State("auth", 0), State("auth", 1))
    export.put(State("auth", 0, count=2))
    export.run()
    standing = {Path(file).name for file in deltalake.DeltaTable(export.path).file_uris()}
    for file in Path(export.path).rglob("*.parquet"):
        if file.name not in standing:
            file.unlink()
    export.put(State("cart", 0))  # version 3, the first whose changes are still there
    export.run()
    export.flush()
    export.put(State("cart", 1))

    assert [done.result.written for done in export.run()] == [{export.topic: 1, "redis": 1}, {"redis": 1}]
    assert [notice.partition("; ")[0] for notice in export.notices] == [
        "export.metrics_1m: Redis is missing rows from gold.metrics_1m"
    ]
    assert sorted(export.in_redis()) == [State("cart", window).row_key for window in range(2)]
    check = export.checked()
    assert (check.differences, check.is_clean) == (0, False)
    assert "are not compared: VACUUM has removed them" in check.not_compared[0]


def test_what_redis_has_evicted_is_put_again_though_its_mark_was_not_evicted(
    export_to_its_own: Export,
) -> None:
    """Redis evicts keys with a time to live, as managed servers do by default, and then gets more memory."""
    export = export_to_its_own
    export.put(*(State("auth", window) for window in range(3)))
    export.run()
    whole = export.in_redis()
    with export.configured(**{"maxmemory-policy": "volatile-lru", "maxmemory": "0"}) as client:
        filled = "lakehouse:metrics_1m:filled"
        assert 0 < client.ttl(filled) <= export.settings.redis.ttl_s
        client.persist(filled)  # as in earlier versions: then it alone is left
        client.config_set("maxmemory", "1")
        with suppress(redis.ResponseError):
            client.set("more", "than fits")
        client.config_set("maxmemory", "0")
        assert (len(export.in_redis()), client.exists(filled)) == (0, 1)
        (done,) = export.run()

    assert (done.batch, done.result.written, export.in_redis()) == (None, {"redis": 3}, whole)
    assert "Redis has evicted" in export.notices[0]
    assert "maxmemory-policy volatile-lru" in export.notices[0]
    assert (export.run(), export.notices) == ([], [])


@pytest.fixture
def newer(export: Export, tmp_path: Path) -> Export:
    """Return the export of a lake created later, to a topic of its own and to the same database of Redis."""
    topics = {**export.settings.topics, "metrics-aggregated-1m": f"{export.topic}-of-newer"}
    time.sleep(0.002)  # generations count milliseconds
    return Export(export.spark, export.settings.changed({"lake": str(tmp_path / "newer"), "topics": topics}))


def counts_in_redis(export: Export) -> dict[str, int]:
    """Return the count of each row, whichever lake has written it."""
    with export.redis() as client:
        keys = list(client.scan_iter("lakehouse:metrics_1m:row:*"))
        return {str(key): json.loads(str(client.get(key)))["count"] for key in keys}


@pytest.mark.soak
def test_a_lake_that_is_older_than_the_rows_in_redis_says_so_and_changes_nothing_there(
    export: Export, newer: Export
) -> None:
    export.put(State("auth", 0), State("auth", 1))
    export.run()
    newer.put(State("auth", 0, count=7))
    newer.run()
    both = {State("auth", 0).row_key: 7, State("auth", 1).row_key: 1}
    assert counts_in_redis(export) == both

    said = "Redis has rows of gold.metrics_1m from a lake that is newer than this one, created or adopted at "
    with pytest.raises(RedisTroubleError, match=said):  # though it has nothing to send
        export.run()
    export.put(State("auth", 1, count=2), State("cart", 0))
    with pytest.raises(RedisTroubleError, match=said) as caught:
        export.run()
    assert "\n" not in str(caught.value)
    assert len(export.messages()) == 4  # Kafka does not wait
    assert counts_in_redis(export) == both
    assert newer.run() == []
    assert newer.checked().differences == 0
    check = export.checked()
    assert not check.is_clean
    assert "or refused rows" in check.not_compared[0]

    export.flush()  # the newer lake is gone
    (filled,) = export.run()
    assert (filled.batch, filled.result.written) == (None, {"redis": 3})
    assert export.checked().is_clean
    assert (export.run(), export.notices) == ([], [])


@pytest.mark.soak
def test_a_lake_whose_rows_a_newer_lake_holds_back_fills_another_database(
    export: Export, newer: Export, tmp_path: Path
) -> None:
    export.put(State("auth", 0))
    export.run()
    newer.put(State("auth", 0, count=7))
    newer.run()
    export.put(State("cart", 0))
    with pytest.raises(RedisTroubleError, match="from a lake that is newer than this one"):
        export.run()

    with redis_servers.at_socket(tmp_path / "redis") as url:
        moved = Export(export.spark, export.settings.changed({"redis.url": SecretStr(url)}))
        (filled,) = moved.run()
        assert (filled.batch, filled.result.written) == (None, {"redis": 2})
        assert moved.checked().is_clean
    assert newer.checked().is_clean


@pytest.mark.soak
def test_rows_that_a_newer_lake_holds_back_are_counted_though_its_mark_is_lost(
    export: Export, newer: Export
) -> None:
    """Redis has evicted the newer lake's mark, or both lakes write at the same moment."""
    newer.put(State("auth", 0, count=7), State("auth", 2, count=7))
    newer.run()
    export.put(State("auth", 0), State("auth", 1), State("cart", 0))
    with export.redis() as client:
        client.delete("lakehouse:metrics_1m:filled")

    held = "which hold back 2 rows of this lake, such as lakehouse:metrics_1m:row:auth:latency:[0-9]+; "
    with pytest.raises(RedisTroubleError, match=held):
        export.run()
    assert len(export.messages()) == 3

    assert newer.run() == []  # a fill that finds all of its rows, and puts its mark back
    with pytest.raises(RedisTroubleError, match="created or adopted at"):
        export.run()
    assert counts_in_redis(export) == {
        State("auth", 0).row_key: 7,
        State("auth", 1).row_key: 1,  # not held back, but auth's latest row is the newer lake's
        State("auth", 2).row_key: 7,
        State("cart", 0).row_key: 1,
    }


@pytest.mark.soak
def test_rows_whose_changes_wait_for_the_export_are_compared_as_they_were_sent(export: Export) -> None:
    """An UPDATE of every row and its RESTORE are waiting; meanwhile someone changes a row in each store."""
    export.put(State("auth", 0), State("auth", 1), State("cart", 0))  # version 1
    export.run()
    export.correct("count = 7", "true")
    export.spark.sql(f"RESTORE TABLE delta.`{export.path}` TO VERSION AS OF 1")
    assert [(one.compared, one.differences) for one in export.audited()] == [(3, 0), (5, 0)]

    forged = {**State("auth", 0).message(), "count": 99}
    with export.redis() as client:
        text = str(client.get(State("auth", 0).row_key))
        client.set(State("auth", 0).row_key, text.replace('"count":1', '"count":99'))
        client.hdel("lakehouse:metrics_1m:latest:latency", "cart")
    producer = KafkaProducer(bootstrap_servers=export.settings.kafka.bootstrap_servers, acks="all")
    with closing(producer):
        producer.send(export.topic, json.dumps(forged).encode(), key=b"auth:latency").get(30)

    topic, in_redis = export.audited()
    assert (topic.compared, topic.differences, in_redis.compared, in_redis.differences) == (3, 1, 5, 2)
    assert topic.examples[0].what.startswith("the topic has ")
    assert '"count": 99' in topic.examples[0].what
    row, latest = (f"{one.key['row']}: {one.what}" for one in in_redis.examples)
    assert row.startswith(f'auth:latency:{State("auth", 0).start_ms}: Redis has {{"serviceId":"auth"')
    assert latest == f"latest:latency cart: not in Redis; gold has cart:latency:{State('cart', 0).start_ms}"

    export.run()  # the newest state of each row mends both stores
    assert [one.is_clean for one in export.audited()] == [True, True]


def test_a_full_redis_is_its_own_trouble_and_is_filled_once_it_takes_rows(export_to_its_own: Export) -> None:
    export = export_to_its_own
    export.put(State("auth", 0))
    export.run()
    export.put(State("auth", 0, count=2), State("auth", 1))
    with export.configured(**{"maxmemory-policy": "noeviction", "maxmemory": "1"}):
        with export.stepping() as step:
            assert write(step, planned(step), now=utc_now()).written == {export.topic: 2, "redis": 0}
            assert step.plan({}) is None
            for _ in range(2):  # what fails by the clock is retried
                assert step.ticker is not None
                assert step.ticker.is_due(utc_now())
                with pytest.raises(RedisTroubleError, match="used memory > 'maxmemory'"):
                    step.ticker.tick(utc_now())
        noted = sent.lacking_in(export.note.read_text())["redis"]
        assert (noted.word, noted.since is None) == (StoreWord.FULL, False)
        assert noted.reason.startswith("Redis is full, so rows wait: ")
        with export.stepping() as step:  # another process, which finds it noted in the lake
            assert step.plan({}) is None
            assert step.ticker is not None
            assert step.ticker.is_due(utc_now())
    check = export.checked()
    assert (check.compared, check.differences, check.is_clean) == (0, 0, False)
    assert "unavailable or full" in check.not_compared[0]

    at = sent.at_in(export.note.read_text())
    assert [done.result.written for done in export.run()] == [{"redis": 2}]
    assert {key: row["_version"] for key, row in export.in_redis().items()} == {
        State("auth", 0).row_key: 2,
        State("auth", 1).row_key: 2,
    }
    assert len(export.messages()) == 3
    assert sent.lacking_in(export.note.read_text()) == {}
    assert sent.at_in(export.note.read_text()) == at, "filling a store is no micro-batch"


def test_a_lead_that_refuses_rows_is_noted_until_it_works_again(
    export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deny(*_: object) -> None:
        raise AccessDeniedError("User:lakehouse may not Write topic t")

    export.put(State("auth", 0))
    export.run()
    before = json.loads(export.note.read_text())
    export.put(State("auth", 0, count=2))
    with monkeypatch.context() as patch:
        patch.setattr("lakehouse.sinks.kafka.rows.KafkaSink.write", deny)
        for _ in range(2):
            with export.stepping() as step, pytest.raises(AccessDeniedError):
                write(step, planned(step), now=utc_now())
    noted = sent.lacking_in(export.note.read_text())
    assert {name: (one.word, one.reason) for name, one in noted.items()} == {
        "kafka": (StoreWord.REFUSED, "User:lakehouse may not Write topic t")
    }
    assert {**before, "kafka_is_behind": None} == {
        **json.loads(export.note.read_text()),
        "kafka_is_behind": None,
    }
    with export.stepping():  # which reaches Kafka
        assert sent.lacking_in(export.note.read_text()) == {}
    assert [done.result.written for done in export.run()] == [{export.topic: 1, "redis": 1}]


@pytest.mark.soak
def test_changes_that_vacuum_has_removed_are_told_and_the_newest_state_of_their_rows_leaves(
    export: Export,
) -> None:
    export.put(*(State(name, window) for name in ("auth", "cart") for window in range(3)), State("idle", 0))
    export.run()
    export.put(State("auth", 0, count=2))
    export.take_away(State("auth", 1))  # no longer known after the VACUUM
    commands.vacuum(export.spark, export.settings, "gold.metrics_1m", everything=True)
    export.put(State("auth", 0, count=3), State("cart", 0, count=2))
    export.take_away(State("cart", 1))

    with export.stepping() as step, pytest.raises(TableError, match=r"removed them. .* --allow resend"):
        write(step, planned(step), now=utc_now())
    (stuck,) = export.audited_topic()
    before = export.counts()
    (done,) = export.run(allow=[Allow.RESEND])

    # Unchanged rows share files with changed ones.
    gone = f"cart:latency:{State('cart', 1).start_ms}"
    states = [("auth:latency", 3), ("cart:latency", 2), (gone, None)]
    neighbours = [(f"{name}:latency", 1) for name in ("auth", "cart", "idle")]
    assert export.counts() - before == Counter([*states, *neighbours])
    assert done.result.written == {export.topic: 6, "redis": 6}
    (went_on,) = export.audited_topic()
    assert (stuck.differences, went_on.differences) == (0, 0)
    assert stuck.not_compared == ("not compared: VACUUM has removed files of gold's change feed",)
    assert not stuck.is_clean
    assert went_on.notes[1].startswith("1 rows are not in gold; VACUUM has removed")
    export.put(State("auth", 9))
    assert [one.result.rows for one in export.run()] == [1]


@pytest.mark.soak
@pytest.mark.usefixtures("few_are_many")
def test_slices_begin_anew_if_vacuum_has_removed_the_changes_that_they_counted(
    export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first slice had a delete that is no longer known, so rows have different positions by then."""
    services, commit, commits = (
        [f"service {number}" for number in range(6)],
        Transactions.commit,
        [0],
    )
    export.put(*(State(service, 0) for service in services))
    export.run()
    export.take_away(State(services[0], 0))
    export.put(*(State(service, 0, count=2) for service in services[1:]))

    def breaking(producer: Transactions, *records: Any) -> None:
        commits[0] += 1
        if commits[0] == 2:
            crash()
        commit(producer, *records)

    with monkeypatch.context() as patch:
        patch.setattr(Transactions, "commit", breaking)
        with pytest.raises(ServiceError, match="pulled out"), export.stepping() as step:
            write(step, planned(step), now=utc_now())
    commands.vacuum(export.spark, export.settings, "gold.metrics_1m", everything=True)
    export.run(allow=[Allow.RESEND])

    left = export.counts()
    assert {service for service in services if left[f"{service}:latency", 2]} == set(services[1:])


def test_the_newest_changes_since_a_time_are_those_committed_from_then_on(export: Export) -> None:
    before = datetime.now(UTC)
    export.put(State("auth", 0), State("auth", 1), State("auth", 2))
    first_commit = Path(export.path, "_delta_log", f"{1:020}.json").stat()
    between = datetime.fromtimestamp(first_commit.st_mtime, UTC) + timedelta(milliseconds=1)
    export.put(State("auth", 0, count=2))
    export.put(State("auth", 0, count=3), State("cart", 0))
    export.delete(State("auth", 1))

    def since(moment: datetime) -> set[tuple[str, int, int, str, int]]:
        changed = newest_since(export.spark, export.path, METRICS_1M, moment)
        minute = F.unix_micros("window_start") / 60_000_000 - int(START.timestamp()) // 60
        return {
            tuple(row)
            for row in changed.select(
                "service_id", minute.cast("int"), "count", "_change_type", "_commit_version"
            ).collect()
        }

    late = {
        ("auth", 0, 3, "update_postimage", 3),
        ("cart", 0, 1, "insert", 3),
        ("auth", 1, 1, "delete", 4),
    }
    assert since(between) == late
    assert since(before) == since(before - timedelta(days=400)) == late | {("auth", 2, 1, "insert", 1)}
    assert since(datetime.now(UTC) + timedelta(days=1)) == set()
