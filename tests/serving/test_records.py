"""One record in every layer, on small tables, and the reasons why it is not in one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from lakehouse.common.errors import StoreWord
from lakehouse.engine.layers import bronze, silver
from lakehouse.engine.ops_tables.data_losses import DATA_LOSSES
from lakehouse.engine.ops_tables.retained import RETENTION
from lakehouse.engine.records.dead_letters import DEAD_LETTERS
from lakehouse.operations.telemetry import (
    Health,
    LayerLag,
    Observation,
    PartitionLag,
    QueryState,
    StoreState,
    StreamGate,
    StreamState,
    TableState,
    Word,
)
from lakehouse.serving.reading.dead_letters import Letters
from lakehouse.serving.reading.found_records import InGold, InStream, Place
from lakehouse.serving.reading.gold import Gold
from lakehouse.serving.reading.records import RecordSearch
from lakehouse.settings import load_settings
from lakehouse.streams.definition import Field, FieldType, Source, Stream
from tests.support.served_lakes import (
    MINUTE_MS,
    NOON_MS,
    Row,
    ServedLake,
    at,
    letter,
    minute,
    product,
    transactions,
)
from tests.support.streams import (
    CALLS,
    METRICS,
    METRICS_1M,
    PRODUCT_SALES,
    SALES,
    STREAMS,
    TRANSACTIONS,
    USER_TRANSACTIONS_5M,
)

TOPIC = "transactions-topic"
NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
(SOURCE,) = TRANSACTIONS.sources


@pytest.fixture
def lake(tmp_path: Path) -> ServedLake:
    return ServedLake(load_settings().changed({"lake": str(tmp_path / "lake"), "home": tmp_path / "home"}))


def raw(offset: int, topic: str = TOPIC, partition: int = 0) -> Row:
    """Return a bronze row that was sent at noon and landed a second later."""
    place = {"topic": topic, "partition": partition, "offset": offset}
    return place | {"value": b"secret", "timestamp": at(NOON_MS), "ingested_at": at(NOON_MS + 1000)}


def clean(offset: int, topic: str = TOPIC, event_ms: int = NOON_MS, **columns: Any) -> Row:
    place = {"topic": topic, "partition": 0, "offset": offset}
    return place | {"event_time": at(event_ms), "own_time": at(event_ms)} | columns


def land(lake: ServedLake, source: Source, *offsets: int, **of: Any) -> None:
    lake.write_spec(bronze.spec(source), [raw(offset, **of) for offset in offsets])


def state(
    stream: Stream, position: int | None = 10, end: int | None = 10, **waiting: int | None
) -> StreamState:
    """Return the state of a stream with one partition; `waiting` has the rows that wait for each layer."""
    queries = [(f"silver.{one.table}", f"bronze.{one.table}", "silver") for one in stream.sources]
    queries += [(f"gold.{one.name}", f"silver.{name}", "gold") for one in stream.gold for name in one.reads]
    queries += [(f"export.{one.name}", f"gold.{one.name}", "export") for one in stream.tables]
    layers = (
        LayerLag(layer, query, source, waiting.get(layer, 0), 0.0, 0) for query, source, layer in queries
    )
    topics = [source.topic for source in stream.sources]
    return StreamState(
        stream.name,
        Health(Word.WELL, ""),
        partitions=tuple(PartitionLag(topic, 0, position, end, 0, 0.0) for topic in topics),
        layers=tuple(layers),
        tables=tuple(TableState(f"gold.{one.name}", 4, NOON, 1, 1, 1) for one in stream.tables),
        queries=tuple(QueryState(f"export.{one.name}", "export", 4, NOON) for one in stream.tables),
    )


def find(
    lake: ServedLake,
    offset: int,
    seen: StreamState,
    *,
    topic: str = TOPIC,
    partition: int = 0,
    streams: Sequence[Stream] = STREAMS,
) -> InStream:
    """Return the record in the only stream that reads its topic."""
    search = searching(lake, streams)
    others = [state(one) for one in streams if one.name != seen.name]
    found = search.find(Place(topic, partition, offset), Observation(NOON, (seen, *others)))
    assert (found.topic, found.partition, found.offset) == (topic, partition, offset)
    (only,) = found.streams
    return only


def searching(lake: ServedLake, streams: Sequence[Stream] = STREAMS) -> RecordSearch:
    gold = Gold(lake.settings.lake, [table for stream in streams for table in stream.tables])
    return RecordSearch(streams, lake.settings, gold, Letters(lake.settings.lake))


def test_a_record_is_found_in_every_layer_with_its_gold_row_and_how_far_that_is_sent(
    lake: ServedLake,
) -> None:
    land(lake, SOURCE, 6, 7)
    event_ms = NOON_MS + 7 * MINUTE_MS + 1
    lake.write_spec(silver.spec(SOURCE), [clean(7, event_ms=event_ms, user_id="u1", amount=Decimal(3))])
    lake.write(USER_TRANSACTIONS_5M, [transactions("u1", NOON_MS + 5 * MINUTE_MS, "3")])

    found = find(lake, 7, state(TRANSACTIONS))

    assert found.stream == "transactions"
    assert found.bronze.is_there
    assert (found.bronze.kafka_timestamp, found.bronze.ingested_at) == (NOON, NOON.replace(second=1))
    assert (found.silver.is_there, found.silver.event_time) == (True, at(event_ms))
    assert found.letters == ()
    (row,) = found.gold
    assert (row.table, row.is_there, row.reason) == ("gold.user_transactions_5m", True, None)
    assert row.key == {"user_id": "u1", "window_start": NOON.replace(minute=5)}
    assert (row.sent.topic, row.sent.version, row.sent.sent_version) == ("aggregated-transactions", 4, 4)
    assert (row.sent.rows_waiting, row.sent.reason) == (0, None)


def test_a_refused_record_has_its_letter_and_no_payload(lake: ServedLake) -> None:
    land(lake, SOURCE, 7)
    mine: dict[str, Any] = {"stream": "transactions", "topic": TOPIC, "offset": 7}
    lake.write_spec(
        DEAD_LETTERS,
        [
            letter(1, "late", "not_positive", **mine),
            letter(2, "late", **mine | {"offset": 8}),
            letter(7, "late"),
        ],
    )

    found = find(lake, 7, state(TRANSACTIONS))

    (refused,) = found.letters
    assert (refused.id, refused.status, refused.first_seen) == (f"{1:064x}", "open", NOON.replace(second=1))
    assert [one["rule"] for one in refused.reasons] == ["late", "not_positive"]
    assert (found.silver.is_there, found.silver.reason) == (False, "it is a dead letter")
    (row,) = found.gold
    assert (row.key, row.is_there) == (None, None)
    assert row.reason == "the key is unknown, because silver.transactions has no row for the record"
    assert "secret" not in str(found)


def why_absent(lake: ServedLake, offset: int, seen: StreamState, **of: Any) -> str | None:
    found = find(lake, offset, seen, **of)
    assert not found.bronze.is_there
    assert not found.silver.is_there
    return found.bronze.reason


def test_a_record_beyond_bronzes_position_has_not_landed_yet(lake: ServedLake) -> None:
    land(lake, SOURCE, 7)
    not_yet = "not landed yet: bronze reads partition 0 from offset 10 on"
    assert why_absent(lake, 10, state(TRANSACTIONS, end=12)) == not_yet
    assert why_absent(lake, 10, state(TRANSACTIONS, end=None)) == not_yet
    beyond = f"{not_yet}, and the partition's last committed record is before offset 12"
    assert why_absent(lake, 12, state(TRANSACTIONS, end=12)) == beyond


def test_a_partition_that_is_not_known_is_told_from_one_that_does_not_exist(lake: ServedLake) -> None:
    found = why_absent(lake, 1, state(TRANSACTIONS), partition=3)
    assert found == "topic transactions-topic has no partition 3, only 0"
    away = replace(state(TRANSACTIONS), partitions=(PartitionLag(TOPIC, 0, 4, None, None, None, "away"),))
    assert why_absent(lake, 1, away, partition=3) == "bronze has no position in partition 3: away"


def test_a_record_that_bronze_has_read_past_was_deleted_skipped_or_never_there(lake: ServedLake) -> None:
    land(lake, SOURCE, 6, 8)
    seen = state(TRANSACTIONS)
    never = why_absent(lake, 7, seen)
    assert never is not None
    assert never.startswith("bronze has read past this offset: it is a transaction marker")
    first = "before the first record that bronze read: Kafka no longer had it"
    assert why_absent(lake, 5, seen) == first
    late = replace(TRANSACTIONS, sources=(replace(SOURCE, start="latest"),))
    assert why_absent(lake, 5, seen, streams=[late]) == f"{first}, or start = 'latest' excluded it"
    gone = [{"topic": TOPIC, "partition": 0, "last": 3}, {"topic": TOPIC, "partition": 1, "last": 9}]
    lake.write_spec(RETENTION, [{"table": "bronze.transactions", "gone": gone, "at": NOON}])
    deleted = "deleted by retention, which has deleted the partition up to offset 3"
    assert why_absent(lake, 3, seen) == deleted
    assert why_absent(lake, 4, seen) == first
    lost = {
        "topic": TOPIC,
        "partition": 0,
        "first_offset": 4,
        "last_offset": 5,
        "query": "bronze.transactions",
    }
    lake.write_spec(DATA_LOSSES, [lost])
    skipped = "skipped: ops.data_losses lists offsets 4 to 5, recorded by bronze.transactions"
    assert [why_absent(lake, offset, seen) for offset in (4, 5)] == [skipped, skipped]


def test_a_landed_record_without_row_and_letter_waits_for_silver_or_is_one_for_the_audit(
    lake: ServedLake,
) -> None:
    land(lake, SOURCE, 7)
    waits = find(lake, 7, state(TRANSACTIONS, silver=3)).silver
    assert waits.reason == "3 rows of bronze.transactions wait for silver.transactions"
    one = find(lake, 7, state(TRANSACTIONS, silver=1)).silver
    assert one.reason == "1 row of bronze.transactions waits for silver.transactions"
    gone = find(lake, 7, state(TRANSACTIONS)).silver.reason
    assert gone is not None
    assert gone.startswith("silver.transactions has read all of bronze.transactions, so another writer")


def test_a_row_that_is_not_in_gold_waits_or_was_removed(lake: ServedLake) -> None:
    lake.write_spec(silver.spec(SOURCE), [clean(7, user_id="u1")])
    lake.write(USER_TRANSACTIONS_5M, [transactions("u2", NOON_MS, "3")])

    def row(seen: StreamState) -> tuple[bool | None, str | None]:
        (found,) = find(lake, 7, seen).gold
        return found.is_there, found.reason

    waiting = (False, "2 rows of silver.transactions wait for gold.user_transactions_5m")
    assert row(state(TRANSACTIONS, gold=2)) == waiting
    removed = "every row is merged; later records, retention or a rebuild have removed the row with this key"
    assert row(state(TRANSACTIONS)) == (False, removed)
    lake.write(USER_TRANSACTIONS_5M, [transactions("u1", NOON_MS, "3")])
    assert row(state(TRANSACTIONS, gold=2)) == (True, waiting[1])


def test_rows_that_are_not_sent_are_told_with_the_reason(lake: ServedLake) -> None:
    whole = state(TRANSACTIONS, export=5)

    def why(seen: StreamState) -> str | None:
        (found,) = find(lake, 7, seen).gold
        return found.sent.reason

    def exported(done: int | None, *behind: str) -> StreamState:
        name = "export.user_transactions_5m"
        stores = tuple(StoreState(one, StoreWord.AWAY, "", lacks_rows=True) for one in behind)
        return replace(whole, queries=(QueryState(name, "export", done, None, stores=stores),))

    waits = "5 rows of gold.user_transactions_5m wait for export.user_transactions_5m"
    assert why(exported(None)) == "nothing has been sent yet"
    assert why(exported(3)) == waits
    closed = replace(exported(3), gate=StreamGate(is_open=False, changed_at=NOON, reasons=("keys repeat",)))
    assert why(closed) == f"{waits}; the gate is closed: keys repeat"
    assert why(exported(4, "redis")) == "redis may lack rows that were sent to other stores"
    assert why(replace(whole, queries=(), lake_reason="broken")) == (
        "it is unknown which version of gold.user_transactions_5m has been sent: broken"
    )


def gold_of(lake: ServedLake, stream: Stream, source: Source, row: Row, topic: str) -> dict[str, InGold]:
    lake.write_spec(silver.spec(source), [row])
    return {one.table: one for one in find(lake, 7, state(stream), topic=topic).gold}


def test_a_record_is_in_a_row_of_each_table_and_a_null_key_column_has_its_default(lake: ServedLake) -> None:
    topic = "metrics-events"
    lake.write(METRICS_1M, [minute("auth", "cpu")])
    row = clean(7, topic, NOON_MS + 59_999, service_id="auth", metric_name="cpu", value=1.0)
    found = gold_of(lake, METRICS, METRICS.sources[0], row, topic)
    assert found["gold.metrics_1m"].key == {"service_id": "auth", "metric_name": "cpu", "window_start": NOON}
    assert found["gold.metrics_1m"].is_there
    summary = {"environment": "default", "metric_name": "cpu", "window_start": NOON}
    assert found["gold.metrics_summary_10m"].key == summary
    assert found["gold.metrics_summary_10m"].is_there is False


def test_a_table_without_windows_has_the_key_of_the_record_and_a_side_table_may_have_no_row(
    lake: ServedLake,
) -> None:
    topic = "sales-events-v1"
    lake.write(PRODUCT_SALES, [product("book", "5")])
    found = gold_of(lake, SALES, SALES.sources[0], clean(7, topic, product="book"), topic)
    assert (found["gold.product_sales"].key, found["gold.product_sales"].is_there) == (
        {"product": "book"},
        True,
    )
    told = found["gold.sales_notifications"]
    assert told.key == {"product": "book", "partition": 0, "offset": 7}
    assert told.is_there is False
    assert told.reason == (
        "gold.product_sales has merged every row, but this record has no row in gold.sales_notifications"
    )


def test_a_key_that_several_tables_make_together_is_not_guessed(lake: ServedLake) -> None:
    topic = "analyticsTopic"
    found = gold_of(lake, CALLS, CALLS.sources[0], clean(7, topic, user1="a", user2="b"), topic)
    row = found["gold.call_records"]
    assert (row.key, row.is_there) == (None, None)
    assert row.reason == (
        "a row of gold.call_records combines rows of silver.call_analytics and silver.call_metrics, "
        "so a single silver row does not determine its key"
    )


def test_windows_before_1970_start_at_or_before_their_event(lake: ServedLake) -> None:
    row = clean(7, event_ms=-1, user_id="u1")
    found = gold_of(lake, TRANSACTIONS, SOURCE, row, TOPIC)
    start = datetime(1969, 12, 31, 23, 55, tzinfo=UTC)
    assert found["gold.user_transactions_5m"].key == {"user_id": "u1", "window_start": start}


def test_a_topic_that_no_stream_reads_is_refused_with_those_that_are_read(lake: ServedLake) -> None:
    search = searching(lake)
    assert search.unread_topic(TOPIC) is None
    assert search.unread_topic("transaction-topic") == (
        "no stream reads topic 'transaction-topic', only analyticsTopic, metrics-events, metricsTopic, "
        "sales-events-v1, transactions-topic; did you mean transactions-topic?"
    )
    assert search.find(Place("x", 0, 0), Observation(NOON, tuple(map(state, STREAMS)))).streams == ()


def test_records_are_found_by_their_id_in_silver_and_in_letters(lake: ServedLake) -> None:
    source = replace(SOURCE, unique_by="header:id")
    stream = replace(TRANSACTIONS, sources=(source,))
    rows = [clean(7, unique_id="a"), clean(8, unique_id="b")]
    lake.write_spec(silver.spec(source), rows)
    mine: dict[str, Any] = {"stream": "transactions", "topic": TOPIC, "unique_id": "a"}
    letters = [letter(9, "duplicate", **mine), letter(3, "late", **mine | {"stream": "sales"})]
    lake.write_spec(DEAD_LETTERS, letters)
    search = searching(lake, [stream])
    assert search.streams_with_ids == ("transactions",)
    assert search.places_of_id("a") == [Place(TOPIC, 0, 7), Place(TOPIC, 0, 9)]
    assert search.places_of_id("c") == []
    assert search.places_of_letter(f"{9:064x}"[:64]) == [Place(TOPIC, 0, 9)]
    assert search.places_of_letter("f") == []
    assert searching(lake).streams_with_ids == ()


def test_an_id_that_is_a_number_is_found_by_its_digits(lake: ServedLake) -> None:
    number = Field("paymentId", "payment_id", FieldType.LONG)
    contract = replace(SOURCE.contract, fields=(*SOURCE.contract.fields, number))
    source = replace(SOURCE, contract=contract, unique_by="paymentId")
    lake.write_spec(silver.spec(source), [clean(7, payment_id=4711), clean(8, payment_id=-1)])
    search = searching(lake, [replace(TRANSACTIONS, sources=(source,))])
    assert search.places_of_id("4711") == [Place(TOPIC, 0, 7)]
    assert search.places_of_id("-1") == [Place(TOPIC, 0, 8)]
    assert [search.places_of_id(one) for one in ("4711a", "", "-", "9" * 30)] == [[], [], [], []]


def test_a_lake_without_tables_says_so_in_every_layer(lake: ServedLake) -> None:
    nowhere = f"there is no lake at {lake.root} yet"
    seen = Observation(NOON, (StreamState("transactions", Health(Word.UNKNOWN, nowhere)),), nowhere)
    (found,) = searching(lake, [TRANSACTIONS]).find(Place(TOPIC, 0, 7), seen).streams
    assert found.bronze.reason == f"bronze has no position in partition 0: {nowhere}"
    assert found.silver.reason == "bronze does not contain it"
    (row,) = found.gold
    assert row.sent.reason == (
        f"it is unknown which version of gold.user_transactions_5m has been sent: {nowhere}"
    )
