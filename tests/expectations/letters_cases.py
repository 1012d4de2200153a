"""Dead letters that meet their suite, and changes that each break one expectation."""

from __future__ import annotations

import hashlib

from tests.expectations.bronze_cases import record
from tests.expectations.lakes import Case, Row, TinyLake, at, text
from tests.support.streams import STREAMS

_VIEW = "silver_dead_letters"


def _letter(offset: int, stage: str = "silver") -> Row:
    identity = "\n".join(("metrics-events", "1", str(offset), stage))
    return {
        "id": text(hashlib.sha256(identity.encode()).hexdigest()),
        "stream": text("metrics"),
        "stage": text(stage),
        "topic": text("metrics-events"),
        "partition": "1",
        "offset": str(offset),
        "reasons": "array(named_struct('rule', 'not_json', 'column', NULL, 'message', 'no'))",
        "status": text("open"),
        "attempts": "1",
        "first_seen": at("11:59:02"),
        "last_attempt": at("11:59:02"),
        "job": text("silver.metrics_events"),
        "code_version": text("0.1.0"),
    }


_OPEN = _letter(0)
_REPLAYED = {**_letter(1), "status": text("replayed"), "attempts": "2", "last_attempt": at("11:59:30")}


def _changed(**change: str) -> TinyLake:
    return {_VIEW: [_REPLAYED, {**_OPEN, **change}]}


def _landed(records: int) -> list[Row]:
    return [record("metrics-events", offset) for offset in range(records)]


CASES = {
    "silver.dead_letters": Case(
        good={
            _VIEW: [_REPLAYED, _OPEN],
            **{
                f"bronze_{source.table}": [record(source.topic, 0), record(source.topic, 1)]
                for stream in STREAMS
                for source in stream.sources
            },
            "bronze_metrics_events": _landed(10),
        },
        bad={
            "keys are unique": {_VIEW: [_REPLAYED, _REPLAYED]},
            "required columns have values": _changed(job="NULL"),
            "ids are the SHA-256 of topic, partition, offset and stage": _changed(id=text("0" * 64)),
            "streams are known": _changed(stream=text("weather")),
            "stages are known": {_VIEW: [_REPLAYED, _letter(0, stage="gold")]},
            "statuses are known": _changed(status=text("lost")),
            "every letter has an attempt": _changed(attempts="0"),
            "every letter has a reason": _changed(reasons="array()"),
            "every reason has a rule": _changed(
                reasons="array(named_struct('rule', NULL, 'column', NULL, 'message', 'no'))"
            ),
            "the last attempt is not before the first": _changed(last_attempt=at("11:59:01")),
            "few of a topic's records are open letters": {"bronze_metrics_events": _landed(9)},
        },
    )
}
