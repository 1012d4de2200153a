"""Forms of streams, and their record formats: JSON, a registered schema, or Debezium's envelope.

In every form, the story first describes a record: {"id", "version", "amount", "at_ms"}. Half of the records
contain numbers such as 10.0 and a time as text; in the plain form, their amount is text, too. A repeated
record uses the other notation. Every sending has a kind. Each kind in `BROKEN` belongs to one form, whose
format or envelope refuses it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from typing import Any

from lakehouse.engine.formats.encoding import Encode, registered_encoder
from lakehouse.engine.formats.wire import header
from lakehouse.storage.kafka.schema_registry import Registered, register
from lakehouse.streams import Aggregates, Field, FieldType, Records, Selected, sql
from lakehouse.streams.definition import Source, Stream
from tests.support.pipeline import Raw
from tests.support.streams import CALLS, METRICS, METRICS_1M, SALES, TRANSACTIONS

Said = dict[str, Any]
"""A story's description of a record."""

_IDS = {"unique_by": "transactionId"}
_CORRECTED = {**_IDS, "sequence_by": "version"}
_ENVELOPED = {
    "event_time": "source.ts_ms",
    "unique_by": "after.id",
    "sequence_by": "source.lsn",
    "deletion_key": "json:id",
    "deleted_if": "op=d",
    "by": {"name": "after.userId", "column": "user_id"},
    "value": {"name": "after.amount", "column": "amount"},
}
"""Transactions as Debezium writes a table's changes."""

_AMOUNT = Field("amount", "amount", FieldType.DECIMAL)
_SPENDING = sql(
    "transactions",
    Records("transactions", also=(_AMOUNT,)),
    tables=(
        Aggregates(
            by="userId",
            length="5m",
            where="amount <> 20",
            gold_table="spending_5m",
            aggregates={
                "count": "count(*)",
                "total": "sum(amount)",
                "least": "min(amount)",
                "last_amount": "last(amount)",
            },
        ),
        Aggregates(
            by="size",
            select={"size": Selected("if(amount > 15, 'large', 'small')", FieldType.STRING)},
            gold_table="spending_by_size",
            to=None,
            aggregates={"count": "count(*)", "mean": "avg(amount)", "users": "count_distinct(user_id)"},
        ),
    ),
)
"""Tables of aggregates over transactions."""

FORMS: dict[str, tuple[Stream, dict[str, Any]]] = {
    "corrected": (TRANSACTIONS, _CORRECTED),
    "unique": (TRANSACTIONS, _IDS),
    "plain": (TRANSACTIONS, {"value": {"name": "amount", "accepts_text": True}}),
    "sales": (SALES, {}),
    "windows": (
        replace(METRICS, gold=(METRICS_1M,)),
        {"unique_by": "id", "sequence_by": "version", "gold": {"metrics_1m": {"emit": "final"}}},
    ),
    "calls": (CALLS, {"sources": {"call_analytics": {"unique_by": "eventId"}}}),
    "avro": (TRANSACTIONS, {**_CORRECTED, "format": "avro", "deletion_key": "avro"}),
    "protobuf": (TRANSACTIONS, {**_CORRECTED, "format": "protobuf"}),
    "debezium": (TRANSACTIONS, _ENVELOPED),
    "aggregates": (replace(TRANSACTIONS, gold=_SPENDING.gold), _CORRECTED),
}
"""For each form, its stream with the tables to use, and changes to the keys of the stream's declaration."""

_ENCODED = ("not_framed", "unknown_schema", "truncated")
BROKEN: Mapping[str, tuple[str, ...]] = {
    "avro": (*_ENCODED, "bad_key"),
    "protobuf": _ENCODED,
    "debezium": ("null_after", "no_object", "wrong_op", "no_before", "tombstone", "bad_key"),
}
"""Additional kinds of records, by form; almost all of them are poison."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NO_SCHEMA = 2_000_000_000
_CUT = 3  # bytes, fewer than in a record's last field


@dataclass(frozen=True)
class Written:
    """A record to send, and the information for the oracle: its JSON, or the rule that it breaks.

    `fields` is the story's description; None if no later record is derived from it.
    """

    raw: Raw
    fields: Said | None
    says: bytes | None = None
    refused: str | None = None


@dataclass(frozen=True)
class Encoder:
    """Writes a source's JSON records in the source's format, with schemas that all stories share."""

    source: Source

    @cached_property
    def value(self) -> Encode:
        """The encoder for values."""
        return registered_encoder(self.source, f"simulated-{self.source.format}-{self.source.topic}")

    @cached_property
    def _key_header(self) -> bytes:
        return header(register(self.source.registry, "simulated-key", Registered("AVRO", '"string"')))

    def key(self, id_: str) -> bytes:
        """Return the key for an id: in Avro if keys are written in Avro, otherwise as text."""
        text = id_.encode()
        is_avro = self.source.deletion_key == "avro"
        return self._key_header + bytes([2 * len(text)]) + text if is_avro else text


def written(form: str, kind: str, said: Said, side: int, encoder: Encoder) -> Sequence[Written]:
    """Return the records of a sending: one, or two for a Debezium deletion.

    `said` is the story's description; for a deletion, only its id and version matter.
    """
    if form == "debezium":
        return _enveloped(kind, said)
    key = encoder.key(said["id"])
    if kind in {"deleted", "bad_key"}:
        return [Written(Raw(None, key[:-1] if kind == "bad_key" else key), None)]
    record = _MAKERS.get(form, _transaction)(form, _spelled(kind, said), side)
    if form in BROKEN:
        return [_encoded(kind, said, record, key, encoder.value)]
    if kind == "malformed":
        record[_BREAKABLE.get(form, "amount")] = _NONSENSE.get(form, "nonsense")
    return [Written(Raw(json.dumps(record).encode(), key), said)]


def _spelled(kind: str, said: Said) -> Said:
    """Return the description unchanged, or with 10.0 instead of 10 and the time as loggers write it."""
    if (said["version"] % 2 == 1) != (kind == "duplicate"):
        return said
    at = _EPOCH + timedelta(milliseconds=said["at_ms"])
    numbers = {name: float(said[name]) for name in ("amount", "version")}
    return {**said, **numbers, "at_ms": f"{at:%Y-%m-%d %H:%M:%S.%f+0000}"}


def _transaction(form: str, said: Said, _side: int) -> Said:
    ids = {"unique": {"transactionId": said["id"]}}
    both = {"transactionId": said["id"], "version": said["version"]}
    user, amount = _user_of(said), said["amount"]
    if form == "plain" and isinstance(amount, float):
        amount = str(amount)
    return {**ids.get(form, both), "userId": user, "amount": amount, "timestamp": said["at_ms"]}


def _metric(_form: str, said: Said, _side: int) -> Said:
    ids = {"id": said["id"], "version": said["version"]}
    names = {"serviceId": _user_of(said), "metricName": "m"}
    return {**ids, **names, "value": said["amount"], "timestamp": said["at_ms"]}


def _sale(_form: str, said: Said, _side: int) -> Said:
    return {"product": said["id"], "value": said["amount"], "timestamp": said["at_ms"]}


def _event(_form: str, said: Said, side: int) -> Said:
    """Return an event; its id identifies a pair and, on the first side (analytics), also the event."""
    pair = {"user1": said["id"], "user2": "z", "timestamp": said["at_ms"]}
    ids = {} if side else {"eventId": said["id"]}
    return {**ids, **pair, ("metrics" if side else "analytics"): int(said["amount"])}


_MAKERS: Mapping[str, Callable[[str, Said, int], Said]] = {
    "windows": _metric,
    "sales": _sale,
    "calls": _event,
}
_BREAKABLE = {"windows": "value", "sales": "value", "calls": "user2"}
_NONSENSE: Mapping[str, Any] = {"calls": 5}


def _user_of(said: Said) -> str:
    return "u" if said["id"] < "c" else "v"


def _encoded(kind: str, said: Said, record: Said, key: bytes, encode: Encode) -> Written:
    """Return an encoded record; a malformed one has an amount that only the contract refuses."""
    if kind == "malformed":
        record["amount"] = -record["amount"]
    says = json.dumps(record).encode()
    value = encode(says) or b""
    made = partial(Written, fields=said if kind not in _ENCODED else None, says=says)
    match kind:
        case "not_framed":
            return made(Raw(says, key), refused="not_framed")
        case "unknown_schema":
            return made(Raw(value[:1] + _NO_SCHEMA.to_bytes(4, "big") + value[5:], key), refused=kind)
        case "truncated":
            return made(Raw(value[:-_CUT], key), refused="undecodable")
        case _:
            return made(Raw(value, key))


def _enveloped(kind: str, said: Said) -> Sequence[Written]:
    """Return a sending in Debezium's envelope; as in Debezium, a tombstone follows a deletion."""
    key = json.dumps({"id": said["id"]}).encode()
    tombstone = Written(Raw(None, key), None)
    spelled = _spelled(kind, said)
    row: Any = {"id": said["id"], "userId": _user_of(said), "amount": spelled["amount"]}
    event: Said = {
        "op": "c" if said["version"] == 1 else "u",
        "before": None,
        "after": row,
        "source": {"ts_ms": spelled["at_ms"], "lsn": spelled["version"]},
    }
    changes: Mapping[str, Said] = {
        "deleted": {"op": "d", "before": row, "after": None},
        "malformed": {"after": {**row, "amount": "nonsense"}},
        "null_after": {"op": "u", "after": None},
        "no_object": {"after": "nonsense"},
        "wrong_op": {"op": "x", "before": row, "after": None},
        "no_before": {"op": "d", "after": None},
    }
    if kind in {"tombstone", "bad_key"}:
        return [tombstone if kind == "tombstone" else Written(Raw(None, key[:-1]), None)]
    event |= changes.get(kind, {})
    fields = {**said, "is_deletion": True} if kind == "deleted" else said if event["after"] is row else None
    sent = Written(Raw(json.dumps(event).encode(), key), fields)
    return [sent, tombstone] if kind == "deleted" else [sent]
