"""The history of a lake, and the contents that it implies, according only to the oracles.

    life = Life(settings)
    life.sent.append(Sent("transactions", ("transactions-topic", 0, 0), 1_767_268_800_000, b"ann", b"{…}"))
    life.landed |= landings(settings)       after each run of bronze, and before retention
    life.decisions["transactions"].append(Decision("discard", place, after_us, at_us))
    expected(life)

Sources are identified by their silver table. Times are UTC, in the unit at the end of their name.
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
from tests.oracles.spending import spending_5m, spending_by_size
from tests.oracles.transactions import Transaction, user_transactions_5m
from tests.support.pipeline import micros
from tests.support.streams import key_of, seconds_of

__all__ = ["Decision", "Expected", "Lateness", "Life", "Place", "Sent", "Taken", "expected", "outcomes_of"]

Row = Mapping[str, Any]
_SPENT: Mapping[str, Callable[[Iterable[Transaction]], list[dict[str, Any]]]] = {
    "user_transactions_5m": user_transactions_5m,
    "spending_5m": spending_5m,
    "spending_by_size": spending_by_size,
}
E = TypeVar("E", bound=Event)


@dataclass(frozen=True)
class Sent:
    """A record in the broker; `says` is the JSON from which an encoded value was made, or None.

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
    """The history of a lake.

    settings   the current settings
    now_us     the time of the lake's clock, which decides which calls are over
    latest_us  the latest time that the clock has shown; it may have been set back since
    sent       every record, in the order of each partition
    landed     `ingested_at`, in microseconds, of each record that was ever in bronze; it is read from bronze
               (`compare.landings`) before retention deletes the record
    decisions  by source: people's decisions, in order. A replay is recorded for each letter that was open and
               selected, whatever its result. In-time decisions are forgotten when their row is removed
    taken      by source: what each run of retention has deleted
    lateness   by source: the allowed lateness, if it was changed; otherwise the settings apply
    gold_us    by gold table: the table's own retention has deleted final rows whose last time is earlier
    left       by gold table: the last message of each row when this lake replaced another. These messages
               remain in the topic, even for rows that are not in this lake
    letters_left  the last status of each letter in the topic then, by id
    since_ms   the time of the replacement, by the machine's clock; 0: never. Older rows in Redis remain until
               they expire
    is_adopted whether this lake was a copy of the replaced lake, and so may resend that lake's messages
    altered    the values of bronze records that another writer has changed; None if it has deleted a record,
               which changes nothing above bronze
    """

    settings: Settings
    now_us: int = 0
    latest_us: int = 0
    sent: list[Sent] = field(default_factory=list)
    landed: dict[Place, int] = field(default_factory=dict)
    decisions: dict[str, list[Decision]] = field(default_factory=lambda: defaultdict(list))
    taken: dict[str, list[Taken]] = field(default_factory=lambda: defaultdict(list))
    lateness: dict[str, tuple[Lateness, ...]] = field(default_factory=dict)
    gold_us: Mapping[str, int] = field(default_factory=dict)
    left: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    letters_left: Mapping[str, str] = field(default_factory=dict)
    since_ms: int = 0
    is_adopted: bool = False
    altered: dict[Place, bytes | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Expected:
    """The expected contents of a stream's tables.

    outcomes  by source: the outcome of each record
    gold      by table: its rows, except for rows that its own retention has deleted
    metrics   the clean records from which windows of statistics are computed
    closed    calls, as of the latest time that the clock has shown
    """

    outcomes: Mapping[str, Mapping[Place, Outcome]]
    gold: Mapping[str, Sequence[Row]]
    metrics: Sequence[Metric] = ()
    closed: Sequence[Row] = ()


def expected(life: Life, stream: Stream) -> Expected:
    """Return the expected contents of a stream's tables."""
    found = {source.table: outcomes_of(life, source) for source in stream.sources}
    gold: dict[str, Sequence[Row]] = {}
    metrics: Sequence[Metric] = ()
    closed: Sequence[Row] = ()
    match stream.name:
        case "transactions":
            spent = _events(found["transactions"], Transaction, ("user_id", "amount"))
            gold = {table.name: _SPENT[table.name](spent) for table in stream.tables}
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
            closed = call_records(calls, life.latest_us, gap_s=gap_s, grace_s=grace_s)
    kept = {name: [row for row in rows if is_kept(life, name, row)] for name, rows in gold.items()}
    return Expected(found, kept, metrics, closed)


def outcomes_of(life: Life, source: Source) -> dict[Place, Outcome]:
    """Return the outcome of each landed record of a source."""
    own = (one for one in life.sent if one.source == source.table and one.place in life.landed)
    landed = [record_of(life, one) for one in own]
    settings, table = settings_of(life, source), source.table
    return records.outcomes(landed, life.decisions[table], settings, life.taken[table])


def record_of(life: Life, sent: Sent) -> Record:
    """Return a landed record in the oracle's form."""
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
    """Return the settings of a source."""
    contract = CONTRACTS[source.table] if source.deleted_if is None else ENVELOPED
    texts = {one.name for one in source.contract.fields if one.accepts_text}
    contract = replace(
        contract, fields=tuple(replace(one, text=one.name in texts) for one in contract.fields)
    )
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
    """Return whether gold's own retention has kept a row."""
    last_us = row.get("window_end", row.get("last_event_time"))
    return last_us is None or last_us >= life.gold_us.get(table, last_us)


def _events(outcomes: Mapping[Place, Outcome], make: Callable[..., E], columns: Iterable[str]) -> list[E]:
    """Return the records that are rows, even if retention has deleted the rows, which changes no outcome."""
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
