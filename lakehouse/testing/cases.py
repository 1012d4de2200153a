"""Test a stream with literal records and expected rows, in data frames instead of tables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, TypeAlias

from pyspark.sql import DataFrame, SparkSession

from lakehouse.common.record_lines import Record
from lakehouse.storage.spark.execution import executing_a_handful
from lakehouse.streams.definition import Stream
from lakehouse.testing.comparing import Row, differences
from lakehouse.testing.folding import DEAD_LETTERS, Folding
from lakehouse.testing.records import Batch, moment, records_of

Rows: TypeAlias = Sequence[Row] | Mapping[str, Sequence[Row]]
"""The expected rows: a list if there is one table, or lists keyed by the name of the table or topic."""

_LETTER = ("record", "rule", "column", "message", "topic", "partition", "offset", "key", "value")
_MESSAGE = ("key", "value", "text")


@dataclass(frozen=True)
class Case:
    """A test that runs records through a stream's functions and compares the results with expected rows.

    Each of `batches` is one micro-batch. A record is either a `Record` or just its value: a dict, text,
    bytes, or None (a tombstone). If the stream reads several topics, a batch is a dict of records, keyed by
    topic, or each Record names its topic. The clock is set to `now`, and records land at this time: a
    datetime or an ISO 8601 string, by default the current time. After the last batch, the clock advances to
    `later` without new records.

    Expected results are lists of dicts, one per row of the table, in any order:

    silver  clean rows, keyed by table if the stream reads several topics
    dead    one row per dead letter and reason: record (its index among all given records, from 0), rule,
            column, message, and the record's topic, partition, offset, key and value
    gold    rows of gold and side tables, keyed by table if there are several
    sent    messages from all micro-batches, in the order in which each table sends them, keyed by topic if
            there are several: key, value (an object, or None for a tombstone) and text (the value as sent)

    Omitted tables and columns are not compared. Floats are compared with a relative tolerance of 1e-9, and
    other numbers exactly. Raises an AssertionError that lists the missing and unexpected rows.
    """

    spark: SparkSession

    def __call__(
        self,
        stream: Stream,
        *batches: Batch,
        silver: Rows | None = None,
        dead: Sequence[Row] | None = None,
        gold: Rows | None = None,
        sent: Rows | None = None,
        now: datetime | str | None = None,
        later: datetime | str | None = None,
    ) -> Outcome:
        """Run the case, and return its outcome, which allows further checks and micro-batches."""
        outcome = Outcome(Folding(self.spark, stream, is_small=True), moment(now), [])
        return outcome.then(*batches, silver=silver, dead=dead, gold=gold, sent=sent, later=later)


@dataclass
class Outcome:
    """The results of a stream for all records that it has processed so far.

    `clock` is the clock's current time (UTC).
    """

    folding: Folding
    clock: datetime
    records: list[Record]

    def then(
        self,
        *batches: Batch,
        silver: Rows | None = None,
        dead: Sequence[Row] | None = None,
        gold: Rows | None = None,
        sent: Rows | None = None,
        now: datetime | str | None = None,
        later: datetime | str | None = None,
    ) -> Outcome:
        """Process further micro-batches, and compare the results with the expected rows, as `Case` does.

        Silver and gold are compared in their final state. Dead letters and messages are compared only for
        these batches.
        """
        first, messages = len(self.records), dict[str, list[dict[str, Any]]]()
        self.clock = self.clock if now is None else moment(now)
        with executing_a_handful(self.folding.spark):
            for batch in batches:
                self._take(batch)
                if sent is not None:
                    self._note_messages(messages)
            if later is not None:
                self.clock = moment(later)
                self.folding.tick(self.clock)
                if sent is not None:
                    self._note_messages(messages)
            wrong = [*self._wrong_rows("silver", silver), *self._wrong_rows("gold", gold)]
            if dead is not None:
                wrong += differences("dead letters", dead, self._letters(first), _LETTER)
        topics = [table.export.topic for table in self.folding.stream.tables]
        for topic, rows in _by_name("sent", sent, [topic for topic in topics if topic is not None]).items():
            wrong += differences(f"sent to {topic}", rows, messages.get(topic, []), _MESSAGE, in_order=True)
        if wrong:
            raise AssertionError("\n".join([f"{self.folding.stream.name} is not as expected", *wrong]))
        return self

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a table such as gold.user_totals, with times in UTC and maps as dicts."""
        return _rows_of(self.folding.frame(table))

    def _take(self, batch: Batch) -> None:
        taken: dict[str, list[Record]] = {}
        for source, record in records_of(self.folding.stream, batch):
            (numbered,) = self.folding.numbered(source, [record])
            taken.setdefault(source.table, []).append(numbered)
            self.records.append(numbered)
        self.folding.take(taken, landed_at=self.clock)

    def _note_messages(self, noted: dict[str, list[dict[str, Any]]]) -> None:
        """Add the last micro-batch's messages to the messages collected so far, keyed by topic."""
        for message in self.folding.messages(stored=False):
            value = None if message.value is None else json.loads(message.value, parse_float=Decimal)
            sent = {"key": message.key, "value": value, "text": message.value}
            noted.setdefault(str(message.topic), []).append(sent)

    def _letters(self, first: int) -> list[dict[str, Any]]:
        """Return one row per dead letter and reason. Records are numbered from 0, from index `first` on."""
        records = enumerate(self.records[first:])
        places = {(one.topic, one.partition, one.offset): place for place, one in records}
        found = []
        for letter in self.rows(DEAD_LETTERS):
            place = places.get((letter["topic"], letter["partition"], letter["offset"]))
            if place is not None:
                row = {"record": place} | {name: letter[name] for name in _LETTER if name in letter}
                found += [row | reason for reason in letter["reasons"]]
        return sorted(found, key=lambda row: row["record"])

    def _wrong_rows(self, layer: str, expected: Rows | None) -> Iterator[str]:
        stream = self.folding.stream
        sources, tables = (one.table for one in stream.sources), (one.name for one in stream.tables)
        for name, rows in _by_name(layer, expected, [*(sources if layer == "silver" else tables)]).items():
            frame = self.folding.frame(f"{layer}.{name}")
            yield from differences(f"{layer}.{name}", rows, _rows_of(frame), frame.columns)


def _by_name(what: str, expected: Rows | None, names: Sequence[str]) -> Mapping[str, Sequence[Row]]:
    """Return the expected rows, keyed by the name of their table or topic.

    Raises ValueError if a name is unknown, or if names are missing although there are several.
    """
    if expected is None:
        return {}
    if not isinstance(expected, Mapping):
        if len(names) != 1:
            raise ValueError(f"{what}: expected rows keyed by name; known: {', '.join(names) or 'none'}")
        return {names[0]: expected}
    if unknown := [name for name in expected if name not in names]:
        raise ValueError(f"{what}: unknown {', '.join(unknown)}; known: {', '.join(names) or 'none'}")
    return expected


def _rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = frame.toArrow().to_pylist(maps_as_pydicts="strict")
    return [{name: _in_utc(value) for name, value in row.items()} for row in rows]


def _in_utc(value: Any) -> Any:
    """Return the value with all times in it converted to UTC."""
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    if isinstance(value, dict):
        return {name: _in_utc(one) for name, one in value.items()}
    return [_in_utc(one) for one in value] if isinstance(value, list) else value
