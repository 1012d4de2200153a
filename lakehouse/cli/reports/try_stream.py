"""The `lakehouse try` report: clean records, dead letters, gold rows and messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType
from rich.console import Group, RenderableType
from rich.text import Text

from lakehouse.common.errors import SettingsError
from lakehouse.common.record_lines import Line, Record
from lakehouse.common.rows_as_text import QueryResult, plain_rows
from lakehouse.common.terminal import table_of
from lakehouse.engine.ops_tables.refusals import percent
from lakehouse.engine.records.identity import CLOSED
from lakehouse.engine.records.validation import TIMES_OF_RECORDS
from lakehouse.storage.spark.collecting import collected
from lakehouse.streams.contract import COORDINATES, OWN_TIME
from lakehouse.streams.definition import GoldTable, MergedTable, Source
from lakehouse.testing.folding import DEAD_LETTERS, Folding, Message

_MOST_COLUMNS = 9

_ALWAYS = "(but outside the kind sql, values and keys are always required)"
KEYS = {
    "bad_timestamp": (
        "if the times are right, declare their format with event_time_unit or event_time_zone; text must be "
        "in ISO 8601 or RFC 2822"
    ),
    "wrong_type": (
        "if the values are right, declare the field's type, accepts_numbers = true for a string, or "
        "accepts_text = true for a number that is written as text; other text, such as n/a, fits only a "
        "string, from which the kind sql can compute a number with try_cast"
    ),
    "missing_field": (
        f"if the field is optional in the records, declare required = false {_ALWAYS}; elements of an array "
        "have no path: declare the array, with type json"
    ),
    "null_field": f"if null is a valid value, declare required = false {_ALWAYS}",
    "empty_string": f"if an empty string is a valid value, declare required = false {_ALWAYS}",
}
"""For rules that records could satisfy if the stream were declared differently: advice on the declaration."""


@dataclass(frozen=True)
class Reason:
    """One of the reasons why a record is refused."""

    rule: str
    column: str | None
    message: str


@dataclass(frozen=True)
class Letter:
    """A record that would become a dead letter."""

    line: Line
    reasons: tuple[Reason, ...]

    @property
    def is_refused(self) -> bool:
        """Whether the dead letter would be open. Duplicates, replaced records and deletions are closed."""
        return len(self.reasons) > 1 or self.reasons[0].rule not in CLOSED


@dataclass(frozen=True)
class BrokenRule:
    """A broken rule, its column if any, how many records break it, and the first one's line and message."""

    rule: str
    column: str | None
    records: int
    line: Line
    message: str


@dataclass(frozen=True)
class Sent:
    """A message, and the number of the micro-batch that sent it, counted from 0."""

    batch: int
    message: Message


@dataclass(frozen=True)
class Result:
    """The result of a trial.

    `now` is the clock's time at the end. `clean` and `gold` contain each table's rows, without fold-state
    columns. All values are JSON-serializable. Each clean row comes with its input line.
    """

    stream: str
    now: datetime
    records: int
    clean: dict[str, list[dict[str, Any]]]
    letters: list[Letter]
    gold: dict[str, list[dict[str, Any]]]
    sent: list[Sent]


def by_rule(letters: Sequence[Letter]) -> list[BrokenRule]:
    """Return the broken rules, most frequent first. A dead letter counts once for each rule and column."""
    counts, first = Counter[tuple[str, str | None]](), dict[tuple[str, str | None], tuple[Line, str]]()
    for letter in _in_order(letters):
        counts.update({(one.rule, one.column) for one in letter.reasons})
        for one in letter.reasons:
            first.setdefault((one.rule, one.column), (letter.line, one.message))
    found = [BrokenRule(*key, counts[key], *example) for key, example in first.items()]
    return sorted(found, key=lambda one: -one.records)


class Trial:
    """A trial run of a stream on lines from files."""

    def __init__(self, folding: Folding) -> None:
        self._folding = folding
        self._lines: dict[tuple[str | None, int | None, int | None], Line] = {}
        self._sent: list[Sent] = []
        self._batches = 0

    def take(self, lines: Sequence[tuple[Source, Line]], now: datetime) -> None:
        """Process one micro-batch. Raises SettingsError if two records have the same coordinates."""
        records: dict[str, list[Record]] = {}
        for source, line in lines:
            (record,) = self._folding.numbered(source, [line.record])
            place = record.topic, record.partition, record.offset
            if place in self._lines:
                raise SettingsError(
                    f"{line.place} and {self._lines[place].place} are both {'/'.join(map(str, place))}: give "
                    "each record its own offset, or omit the offsets"
                )
            self._lines[place] = line
            records.setdefault(source.table, []).append(record)
        self._folding.take(records, landed_at=now)
        self._note()

    def tick(self, now: datetime) -> None:
        """Advance the clock without new records."""
        self._folding.tick(now)
        self._note()

    def result(self, now: datetime) -> Result:
        """Return the trial's result as of this clock time."""
        stream = self._folding.stream
        return Result(
            stream.name,
            now,
            len(self._lines),
            {source.table: self._clean(source) for source in stream.sources},
            self._letters(),
            {table.name: self._gold(table) for table in stream.tables},
            self._sent,
        )

    def _note(self) -> None:
        self._sent += [Sent(self._batches, message) for message in self._folding.messages()]
        self._batches += 1

    def _clean(self, source: Source) -> list[dict[str, Any]]:
        rows = self._folding.frame(f"silver.{source.table}").orderBy(*COORDINATES)
        return [{"line": self._line(row).place, "row": row} for row in _plain(rows)]

    def _letters(self) -> list[Letter]:
        rows = self._folding.frame(DEAD_LETTERS).select(*COORDINATES, "reasons").orderBy(*COORDINATES)
        return [
            Letter(self._line(row), tuple(Reason(**one) for one in row["reasons"])) for row in _plain(rows)
        ]

    def _gold(self, table: MergedTable) -> list[dict[str, Any]]:
        rows = self._folding.frame(f"gold.{table.name}").orderBy(*table.keys)
        state = table.state.columns if isinstance(table, GoldTable) and table.state is not None else ()
        sent = {name for value in table.export.value.values.values() for name in value.columns}
        structs = {one.name for one in table.schema if isinstance(one.dataType, StructType)} - sent
        return list(_plain(rows.drop(*state, *structs)))  # a struct that is not sent is for folds

    def _line(self, row: dict[str, Any]) -> Line:
        return self._lines[row["topic"], row["partition"], row["offset"]]


def as_json(result: Result, seconds: float) -> dict[str, Any]:
    """Return the result as JSON-serializable values.

    A message's value is its text, or null for a tombstone.
    """
    return {
        "stream": result.stream,
        "now": result.now.isoformat().replace("+00:00", "Z"),
        "records": result.records,
        "dead": len(result.letters),
        "seconds": round(seconds, 1),
        "silver": result.clean,
        "by_rule": [
            {
                "rule": one.rule,
                "column": one.column,
                "records": one.records,
                "line": one.line.place,
                "message": one.message,
            }
            for one in by_rule(result.letters)
        ],
        "dead_letters": [
            {
                "line": letter.line.place,
                "reasons": [
                    {"rule": one.rule, "column": one.column, "message": one.message} for one in letter.reasons
                ],
            }
            for letter in result.letters
        ],
        "gold": result.gold,
        "sent": [
            {
                "batch": one.batch,
                "table": one.message.table,
                "topic": one.message.topic,
                "key": one.message.key,
                "value": one.message.value,
            }
            for one in result.sent
        ],
    }


def shown(result: Result, seconds: float, *, limit: int) -> Group:
    """Return the result for a terminal, with at most `limit` rows from each table."""
    records, dead = _counted(result.records, "record"), len(result.letters)
    refused = sum(letter.is_refused for letter in result.letters)
    share = f"{refused:,} of {records} refused ({percent(refused / result.records)}); " if refused else ""
    closed = f" ({dead - refused:,} closed: repeated, replaced or deleted)" if dead > refused else ""
    letters = f"{_counted(dead, 'dead letter')}{closed}"
    summary = (
        f"{result.stream}: {records}, {result.records - dead:,} clean, "
        f"{letters}, {_counted(len(result.sent), 'message')}, in {seconds:.1f} s; "
        f"{share}nothing was written or sent"
    )
    return Group(*_sections(result, limit), Text(summary, style="bold"))


def _sections(result: Result, limit: int) -> Iterator[RenderableType]:
    short = _shortened(result)
    for name, rows in result.clean.items():
        clean = [{"line": short(one["line"]), **_without_coordinates(one["row"])} for one in rows]
        yield from _section(f"silver.{name}, clean records", clean, limit)
    yield from _letters_of(result.letters, limit, short)
    for name, rows in result.gold.items():
        yield from _section(f"gold.{name}", rows, limit)
    for name in dict.fromkeys(one.message.table for one in result.sent):
        of_table = [one.message for one in result.sent if one.message.table == name]
        to = f"to {of_table[0].topic}" if of_table[0].topic else "to stores such as Redis, but not to a topic"
        messages = [
            {"key": one.key, "value": "(tombstone)" if one.value is None else one.value} for one in of_table
        ]
        yield from _section(f"gold.{name}, sent {to}", messages, limit)


def _letters_of(
    letters: Sequence[Letter], limit: int, short: Callable[[str], str]
) -> Iterator[RenderableType]:
    """Yield the dead letters by rule, with advice, and every reason."""
    rules = by_rule(letters)
    if rules:
        counts = [
            {
                "rule": one.rule,
                "column": one.column,
                "records": f"{one.records:,}",
                "first line": short(one.line.place),
                "message": one.message,
            }
            for one in rules
        ]
        yield from _section("dead letters, by rule", counts, limit)
        for rule in dict.fromkeys(one.rule for one in rules if one.rule in KEYS):
            yield Text(f"{rule}: {KEYS[rule]}", style="yellow")
    reasons = [
        {"line": short(line.place), "rule": one.rule, "column": one.column, "message": one.message}
        for line, one in _every_reason(letters, rules, limit)
    ]
    yield from _section("dead letters, every reason", reasons, limit)


def _every_reason(
    letters: Sequence[Letter], rules: Sequence[BrokenRule], limit: int
) -> list[tuple[Line, Reason]]:
    """Return every reason and the line of its record. The first `limit` reasons cover all rules in turn.

    These reasons are sorted by the frequency of their rule, and then by line.
    """
    ranks = {(one.rule, one.column): rank for rank, one in enumerate(rules)}
    seen, found = Counter[int](), list[tuple[int, int, Line, Reason]]()
    for letter in _in_order(letters):
        for one in letter.reasons:
            rank = ranks[one.rule, one.column]
            seen[rank] += 1
            found.append((seen[rank], rank, letter.line, one))
    found.sort(key=lambda one: one[:2])  # the first of each rule, then the second of each …
    found = [*sorted(found[:limit], key=lambda one: (one[1], one[0])), *found[limit:]]
    return [(line, reason) for _nth, _rank, line, reason in found]


def _in_order(letters: Sequence[Letter]) -> list[Letter]:
    return sorted(letters, key=lambda letter: (letter.line.file, letter.line.number))


def _shortened(result: Result) -> Callable[[str], str]:
    """Return a function that shows a line's location, without the file name if there is only one file."""
    places = [row["line"] for rows in result.clean.values() for row in rows]
    places += [letter.line.place for letter in result.letters]
    files = {place.rpartition(":")[0] for place in places}
    return (lambda place: place.rpartition(":")[2]) if len(files) == 1 else str


def _without_coordinates(row: dict[str, Any]) -> dict[str, Any]:
    """Return a clean row without its coordinates and record times.

    The report shows each row's input line instead, which identifies the row better.
    """
    left_out = {*COORDINATES, OWN_TIME, *TIMES_OF_RECORDS}
    return {name: value for name, value in row.items() if name not in left_out}


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _section(title: str, rows: Sequence[dict[str, Any]], limit: int) -> Iterator[RenderableType]:
    yield Text(f"{title} ({len(rows):,})", style="bold")
    if not rows:
        return
    if len(rows[0]) > _MOST_COLUMNS:
        yield from _wide(rows[:limit])
    else:
        yield table_of(rows[0], (row.values() for row in rows[:limit]))
    if len(rows) > limit:
        yield Text(f"{len(rows) - limit:,} more; --limit {len(rows)} shows them", style="yellow")


def _wide(rows: Sequence[dict[str, Any]]) -> Iterator[Text]:
    """Yield each row as name=value pairs, for a table that is too wide for the terminal."""
    for row in rows:
        values = (f"{name}={value}" for name, value in row.items() if value is not None)
        yield Text(f"  {'  '.join(values)}")


def _plain(frame: DataFrame) -> Iterator[dict[str, Any]]:
    """Yield rows as JSON-serializable values."""
    for row in plain_rows(QueryResult(frame.schema, collected(frame), truncated=False)):
        yield dict(zip(frame.columns, row, strict=True))
