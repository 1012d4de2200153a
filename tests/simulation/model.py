"""What has been done to a lake, and what it must therefore hold, according to the oracles alone.

    life = Life(settings)
    life.sent.append(Sent("transactions", ("transactions-topic", 0, 0), 1_767_268_800_000, b"ann", b"{…}"))
    life.landed |= landings(settings)       after each run of bronze, and before retention
    life.decisions["transactions"].append(Decision("discard", place, after_us, at_us))
    expected(life)

Sources are named by their silver table. Times are UTC, in the unit that their name ends with.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from typing import Any, TypeVar

from lakehouse.settings import Settings
from lakehouse.streams.definition import Source, Stream
from tests.oracles import alone, records
from tests.oracles.calls import SIDES, CallEvent, call_records
from tests.oracles.judging import CONTRACTS, ENVELOPED, Event, Field, Kind
from tests.oracles.metrics import Metric
from tests.oracles.records import Decision, Headers, Lateness, Outcome, Place, Record, Taken
from tests.oracles.sales import Sale, product_sales, sales_notifications
from tests.oracles.transactions import Transaction, user_transactions_5m
from tests.support.pipeline import micros
from tests.support.streams import key_of, seconds_of

__all__ = ["Decision", "Expected", "Lateness", "Life", "Place", "Sent", "Taken", "expected", "outcomes_of"]

Row = Mapping[str, Any]
E = TypeVar("E", bound=Event)


@dataclass(frozen=True)
class Sent:
    """A record that the broker has; `says` is the JSON that an encoded value was made from, else None.

    `source` is its silver table. `kafka_timestamp_ms` is -1 if there is none. `refused` is the rule of the
    format that an encoded value was made to break, else None.
    """

    source: str
    place: Place
    kafka_timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    says: bytes | None = None
    refused: str | None = None


@dataclass
class Life:
    """What has been done to a lake.

    settings   the present ones
    now_us     what the lake's clock shows, which decides which calls are over
    sent       every record, in the order of each partition
    landed     of each record that was ever in bronze, its `ingested_at` in microseconds, read back from
               bronze (`compare.landings`) before retention takes it
    decisions  by source: what people have decided, in order. A replay is recorded for each letter that was
               open and selected, whatever came of it. That a record was in time is forgotten with its row
    taken      by source: what each run of retention has taken
    lateness   by source: how late records may be, if that was changed; else as the settings say
    gold_us    by gold table: its own retention has taken the final rows whose last time is earlier
    left       by gold table: the last message of each row when this lake replaced another. These remain in
               the topic, even for rows that this lake does not have
    since_ms   when that was, by the machine's clock; 0: never. Older rows in Redis remain until they expire
    is_adopted whether this lake was that one's copy, and so may send again what that one had sent
    altered    what another writer has made of a record's value in bronze; None if it has deleted the record,
               which changes nothing above bronze
    """

    settings: Settings
    now_us: int = 0
    sent: list[Sent] = field(default_factory=list)
    landed: dict[Place, int] = field(default_factory=dict)
    decisions: dict[str, list[Decision]] = field(default_factory=lambda: defaultdict(list))
    taken: dict[str, list[Taken]] = field(default_factory=lambda: defaultdict(list))
    lateness: dict[str, tuple[Lateness, ...]] = field(default_factory=dict)
    gold_us: Mapping[str, int] = field(default_factory=dict)
    left: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    since_ms: int = 0
    is_adopted: bool = False
    altered: dict[Place, bytes | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Expected:
    """What a stream's tables must hold.

    outcomes  by source: what each record has become
    gold      by table: its rows, except those that its own retention has taken
    metrics   the clean records that windows of statistics are made of
    """

    outcomes: Mapping[str, Mapping[Place, Outcome]]
    gold: Mapping[str, Sequence[Row]]
    metrics: Sequence[Metric] = ()


def expected(life: Life, stream: Stream) -> Expected:
    """Return what the tables of a stream must hold."""
    found = {source.table: outcomes_of(life, source) for source in stream.sources}
    gold: dict[str, Sequence[Row]] = {}
    metrics: Sequence[Metric] = ()
    match stream.name:
        case "transactions":
            gold["user_transactions_5m"] = user_transactions_5m(
                _events(found["transactions"], Transaction, ("user_id", "amount"))
            )
        case "metrics":
            names = ("service_id", "metric_name", "value", "environment")
            metrics = _events(found["metrics_events"], Metric, names)
        case "sales":
            sales = _events(found["sales_events"], Sale, ("product", "value"))
            gold["product_sales"] = product_sales(sales)
            gold["sales_notifications"] = sales_notifications(
                sales,
                threshold=Decimal(key_of(life.settings, "sales", "threshold")),
                every_update=key_of(life.settings, "sales", "notify") == "every_update",
            )
        case "calls":
            calls = [
                call
                for side in SIDES
                for call in _events(
                    found[f"call_{side}"], partial(CallEvent, side=side), ("user1", "user2", side)
                )
            ]
            gap_s, grace_s = (seconds_of(life.settings, "calls", key) for key in ("gap", "grace"))
            gold["call_records"] = call_records(calls, life.now_us, gap_s=gap_s, grace_s=grace_s)
    kept = {name: [row for row in rows if is_kept(life, name, row)] for name, rows in gold.items()}
    return Expected(found, kept, metrics)


def outcomes_of(life: Life, source: Source) -> dict[Place, Outcome]:
    """Return what each landed record of a source has become."""
    own = (one for one in life.sent if one.source == source.table and one.place in life.landed)
    landed = [record_of(life, one) for one in own]
    settings, table = settings_of(life, source), source.table
    return records.outcomes(landed, life.decisions[table], settings, life.taken[table])


def record_of(life: Life, sent: Sent) -> Record:
    """Return a record that has landed, as the oracle reads it."""
    value = sent.value if sent.says is None else sent.says
    return Record(
        sent.place,
        life.landed[sent.place],
        life.altered.get(sent.place) or value,
        sent.key,
        sent.headers,
        sent.kafka_timestamp_ms,
        sent.refused,
    )


def settings_of(life: Life, source: Source) -> alone.Settings:
    """Return what the settings say about a source."""
    contract = CONTRACTS[source.table] if source.deleted_if is None else ENVELOPED
    known = {one.name for one in contract.fields}
    for name, kind, column in (
        (source.unique_by, Kind.ID, source.id_column),
        (source.sequence_by, Kind.LONG, source.sequence_column),
    ):
        if name and column and not name.startswith("header:") and name not in known:
            contract = replace(contract, fields=(*contract.fields, Field(name, column, kind)))
    return alone.Settings(
        contract,
        source.unique_by,
        source.sequence_by,
        life.lateness.get(source.table, (Lateness(source.allowed_lateness_s),)),
        source.future_tolerance_s,
        micros(source.earliest_event_time),
        source.deletion_key,
        source.deleted_if,
    )


def is_kept(life: Life, table: str, row: Row) -> bool:
    """Tell whether gold's own retention has left a row."""
    last_us = row.get("window_end", row.get("last_event_time"))
    return last_us is None or last_us >= life.gold_us.get(table, last_us)


def _events(outcomes: Mapping[Place, Outcome], make: Callable[..., E], columns: Iterable[str]) -> list[E]:
    """Return the records that are rows, even if retention has taken the rows: that changes no answer."""
    names = tuple(columns)
    return [
        make(
            **{name: one.row[name] for name in names},
            event_time_us=one.row["event_time"],
            partition=partition,
            offset=offset,
        )
        for (_, partition, offset), one in outcomes.items()
        if one.row is not None
    ]
