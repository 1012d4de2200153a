"""A run with mixed records: topics have different formats, and payments are repeated, corrected and deleted.

The schemas are in the run's own registry. A header of each encoded record contains the JSON from which it was
made, which the oracle judges. Only payments have ids; all records with the same id have the same key, so that
they remain in order.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from lakehouse.common.record_lines import RecordFormat
from lakehouse.dev.samples import Sample
from lakehouse.dev.samples.loads import sources_by_topic
from lakehouse.engine.formats.encoding import registered_encoder
from lakehouse.settings import Settings
from tests.oracles.judging import CONTRACTS, Field, Judged, Kind
from tests.oracles.records import Lateness, Record, outcomes
from tests.oracles.records import Settings as OfSource
from tests.support.pipeline import Coordinates, Row, coordinates_of
from tests.support.streams import STREAMS, TRANSACTIONS, under

JSON_HEADER = "json"
PAYMENTS = TRANSACTIONS.sources[0]
FORMATS: Mapping[str, RecordFormat] = {
    "metrics-events": "avro",
    "analyticsTopic": "json-schema",
    "metricsTopic": "protobuf",
    PAYMENTS.topic: "avro",
}
"""The formats by topic; sales are still JSON."""
ID, SEQUENCE = "transactionId", "version"

_UNFRAMED, _OF_UNKNOWN_SCHEMA = b'{"userId":"u","amount":1}', b"\x00\x00\xff\xff\xff\x00"
_POISON = {
    "not_framed": _UNFRAMED,
    "unknown_schema": _OF_UNKNOWN_SCHEMA,
    "not_json": _OF_UNKNOWN_SCHEMA,  # for a JSON topic, which is judged without its schema
}
RULES = {rule: frozenset({rule}) for rule in _POISON}
"""The rules that must refuse poison in encoded topics, by the name of the poison."""
_NEW = 0.6
_REMEMBERED = 300
_YEAR_MS = 365 * 86_400_000


def settings_for(registry_url: str) -> dict[str, Any]:
    """Return the settings of a mixed run."""
    return {
        "schema_registry.url": registry_url,
        "streams": {
            "metrics": {"format": "avro"},
            "calls": {
                "sources": {
                    "call_analytics": {"format": "json-schema"},
                    "call_metrics": {"format": "protobuf"},
                }
            },
            "transactions": {"format": "avro", "unique_by": ID, "sequence_by": SEQUENCE},
        },
    }


def encoders(settings: Settings) -> dict[str, Callable[[bytes | None], bytes | None]]:
    """Register the contracts, and return the encoders for records, by the topic's name in this run."""
    sources = sources_by_topic(settings, [under(settings, stream) for stream in STREAMS])
    return {
        topic: registered_encoder(source, topic)
        for topic, source in sources.items()
        if source.format != "json"
    }


def poison(rng: Random, topic: str) -> tuple[Sample, str]:
    """Return a record that an encoded topic (given by default name) must refuse, and its name in RULES."""
    rule = rng.choice(("not_framed", "not_json" if FORMATS[topic] == "json-schema" else "unknown_schema"))
    return Sample(b"poison", _POISON[rule], "poison"), rule


class Payments:
    """Assigns ids to payments, and repeats, corrects, contradicts and deletes them."""

    def __init__(self, samples: Iterator[Sample], seed: int) -> None:
        self._samples = samples
        self._rng = Random(seed)
        self._known: deque[dict[str, Any]] = deque(maxlen=_REMEMBERED)
        self._count = 0

    def __iter__(self) -> Iterator[Sample]:
        for sample in self._samples:
            record = json.loads(sample.value or b"{}")
            if not self._known or self._rng.random() < _NEW:
                self._count += 1
                record |= {ID: f"p{self._count}", SEQUENCE: 1}
                self._known.append(record)
                yield _written(record, sample.timestamp_ms)
            else:
                yield self._again(record, self._rng.choice(self._known), sample.timestamp_ms)

    def forget(self) -> None:
        """Do not refer to earlier payments any more, because some may be lost."""
        self._known.clear()

    def _again(self, fresh: dict[str, Any], known: dict[str, Any], timestamp_ms: int) -> Sample:
        """Return another record with a known id, and with the values of a new payment."""
        what = self._rng.choice(
            ("the same", "corrected", "corrected", "a year ago", "too late", "other", "deleted")
        )
        if what == "deleted":
            return Sample(known[ID].encode(), None, "valid", timestamp_ms=timestamp_ms)
        if what == "the same":
            return _written(known, timestamp_ms)
        version = known[SEQUENCE] + {"too late": -1, "other": 0}.get(what, 1)
        record = fresh | {ID: known[ID], SEQUENCE: version}
        if what == "a year ago" and type(record.get("timestamp")) is int:
            record["timestamp"] -= _YEAR_MS
        if version > known[SEQUENCE]:
            known |= record
        return _written(record, timestamp_ms)


def settled(
    judged: Mapping[Coordinates, Judged], records: Mapping[Coordinates, Any], bronze: Sequence[Row]
) -> dict[Coordinates, Judged]:
    """Return the verdicts on payments in the order of bronze, based on the verdict on each single payment."""
    contract = CONTRACTS[PAYMENTS.table]
    ids = (Field(ID, "transaction_id", Kind.ID), Field(SEQUENCE, "version", Kind.LONG))
    contract = replace(contract, fields=(*contract.fields, *ids))
    said = OfSource(contract, ID, SEQUENCE, lateness=(Lateness(None),))
    landed = [_landed(row, records[at]) for row in bronze if (at := coordinates_of(row)) in judged]
    sound = [one for one in landed if one.value is None or not judged[one.place].reasons]
    found = dict(judged)
    for at, one in outcomes(sound, (), said).items():
        if one.kind == "letter":
            found[at] = Judged(frozenset((rule, "transaction_id") for rule in one.rules))
    return found


def status_of(verdict: Judged) -> str:
    """Return the status of a refused record's letter."""
    closed = {rule for rule, _ in verdict.reasons} & {"duplicate", "superseded", "deletion"}
    return closed.pop() if closed else "open"


def said_in_json(record: Any) -> bytes | None:
    """Return the JSON from which a record was made: from its header, if it has one, otherwise its value."""
    said: bytes | None = next((value for name, value in record.headers if name == JSON_HEADER), record.value)
    return said


def _landed(row: Row, record: Any) -> Record:
    headers = tuple(record.headers)
    return Record(
        coordinates_of(row), row["ingested_at"], said_in_json(record), record.key, headers, record.timestamp
    )


def _written(record: Mapping[str, Any], timestamp_ms: int) -> Sample:
    return Sample(record[ID].encode(), json.dumps(record).encode(), "valid", timestamp_ms=timestamp_ms)
