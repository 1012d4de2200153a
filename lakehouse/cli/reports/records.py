"""The `lakehouse find` report: a table for each record and stream that reads its topic.

transactions-topic/0/17 in transactions
bronze.transactions         landed 2026-11-22 08:12:00 UTC; Kafka's time is 2026-11-22 08:11:58 UTC
silver.transactions         event time 2026-11-22 08:11:57 UTC
gold.user_transactions_5m   there: user_id=u1, window_start=2026-11-22 08:10:00 UTC
  sent                      version 12 of 14 to aggregated-transactions, redis, at 2026-11-22 08:13:00 UTC (…
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from lakehouse.cli.reports.columns import Column, table
from lakehouse.common.terminal import Console
from lakehouse.engine.records.dead_letters import DEAD_LETTERS
from lakehouse.serving.reading.found_records import (
    FoundRecord,
    InBronze,
    InGold,
    InSilver,
    InStream,
    LetterOf,
    Place,
    Sent,
)

_Line = tuple[str, str]


def print_records(found: Sequence[FoundRecord], console: Console) -> None:
    """Print where each record is, in each stream that reads its topic."""
    columns = [Column[_Line]("", lambda line: line[0]), Column[_Line]("", lambda line: line[1])]
    for record in found:
        for stream in record.streams:
            place = Place(record.topic, record.partition, record.offset)
            console.print(f"{place} in {stream.stream}", style="bold")
            made = table(columns, [*_lines(stream)], console.width)
            made.show_header = False
            console.print(made)
        if not record.streams:
            console.print(f"no stream reads topic {record.topic}")


def _lines(stream: InStream) -> Iterator[_Line]:
    yield stream.bronze.table, _bronze(stream.bronze)
    yield stream.silver.table, _silver(stream.silver)
    for letter in stream.letters:
        yield DEAD_LETTERS.qualified_name, _letter(letter)
    for row in stream.gold:
        yield row.table, _gold(row)
        yield "  sent", _sent(row.sent)


def _bronze(found: InBronze) -> str:
    if not found.is_there:
        return f"not there: {found.reason}"
    kafka = "not a valid time" if found.kafka_timestamp is None else _time(found.kafka_timestamp)
    return f"landed {_time(found.ingested_at)}; Kafka's time is {kafka}"


def _silver(found: InSilver) -> str:
    return f"event time {_time(found.event_time)}" if found.is_there else f"not there: {found.reason}"


def _letter(letter: LetterOf) -> str:
    reasons = "; ".join(f"{one['rule']}: {one['message']}" for one in letter.reasons)
    return f"{letter.status} dead letter {letter.id}, first refused {_time(letter.first_seen)}: {reasons}"


def _gold(row: InGold) -> str:
    if row.key is None:
        return f"unknown: {row.reason}"
    key = ", ".join(f"{name}={_value(value)}" for name, value in row.key.items())
    return f"{'there' if row.is_there else 'not there'}: {key}{_because(row.reason)}"


def _sent(sent: Sent) -> str:
    if sent.version is None or sent.sent_version is None:
        return sent.reason or "nothing has been sent yet"
    stores = ", ".join([*(() if sent.topic is None else (sent.topic,)), *sent.stores])
    to = f" to {stores}" if stores else ""
    at = "" if sent.sent_at is None else f", at {_time(sent.sent_at)}"
    version = f"version {min(sent.sent_version, sent.version):,} of {sent.version:,}"
    return f"{version}{to}{at}{_because(sent.reason)}"


def _because(reason: str | None) -> str:
    return "" if reason is None else f" ({reason})"


def _value(value: Any) -> str:
    return _time(value) if isinstance(value, datetime) else str(value)


def _time(moment: datetime | None) -> str:
    """Format a time to the second, or to the millisecond if it has a fraction, or as ? if it is unknown."""
    if moment is None:
        return "?"
    text = moment.isoformat(sep=" ", timespec="milliseconds" if moment.microsecond else "seconds")
    return text.replace("+00:00", " UTC")
