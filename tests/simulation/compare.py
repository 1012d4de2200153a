"""In what a real lake differs from what it must hold: tables, topics, Redis and PostgreSQL, without Spark.

    life.landed |= landings(settings, stream)       what bronze has now
    for one in differences(life, stream): print(one)
    disagreements(differences(life, stream), audit(…))

The lake is at rest: every layer has been run until it has nothing to do. Tables are read by delta-rs.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import psycopg
import redis
from deltalake.exceptions import TableNotFoundError
from psycopg.rows import dict_row
from psycopg.sql import SQL, Identifier

from lakehouse.audit.report import Check, Report
from lakehouse.settings import Settings
from lakehouse.stream import Stream
from tests.chaos.checks import KEPT, Kept
from tests.oracles.json_text import payload_meaning
from tests.oracles.metrics import METRICS_1M, METRICS_SUMMARY_10M, windows
from tests.oracles.records import Outcome, Place
from tests.pipeline import DEAD_LETTERS, Row, coordinates_of, read_topic, rows_of, with_micros
from tests.simulation.model import Expected, Life, expected, is_kept
from tests.verdicts import row_differences, window_differences

_GRAINS = {"metrics_1m": METRICS_1M, "metrics_summary_10m": METRICS_SUMMARY_10M}
_WINDOWED = {*_GRAINS, "user_transactions_5m"}
_KEYS = {
    "user_transactions_5m": ("user_id", "window_start"),
    "product_sales": ("product",),
    "sales_notifications": ("product", "partition", "offset"),
    "call_records": ("user1", "user2", "ts"),
}
_PAYLOADS = {"analytics", "metrics"}
_BOOKKEEPING = {"_version", "_generation"}


@dataclass(frozen=True)
class Difference:
    """What differs: the table, topic or store, the key of a row, and what is wrong with it."""

    where: str
    key: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.key}: {self.what}"


def landings(settings: Settings, stream: Stream) -> dict[Place, int]:
    """Return when each record of bronze landed, in microseconds."""
    rows = (row for source in stream.sources for row in _rows(settings, f"bronze.{source.table}"))
    return {coordinates_of(row): row["ingested_at"] for row in rows}


def differences(life: Life, stream: Stream) -> list[Difference]:
    """Return in what the lake and its outputs are not what the life has made of them."""
    found = table_differences(life, stream)
    for table in stream.tables:
        found += outputs(life.settings, table.name, _rows(life.settings, f"gold.{table.name}"))
    return found


def table_differences(life: Life, stream: Stream) -> list[Difference]:
    """Return in what the lake alone is not what the life has made of it."""
    wanted = expected(life, stream)
    found = [*_not_landed(life, stream)]
    letters = _rows(life.settings, DEAD_LETTERS)
    for source in stream.sources:
        rows = _rows(life.settings, f"silver.{source.table}")
        own = [row for row in letters if row["job"] == f"silver.{source.table}"]
        found += _silver(f"silver.{source.table}", rows, wanted.outcomes[source.table], life)
        found += _letters(source.table, own, wanted.outcomes[source.table], life)
    for table in stream.tables:
        found += _gold(table.name, _rows(life.settings, f"gold.{table.name}"), wanted, life)
    return found


def outputs(settings: Settings, table: str, rows: Sequence[Row]) -> list[Difference]:
    """Return in what topic, Redis and PostgreSQL are not these rows of a gold table."""
    kept = KEPT[table]
    leaving = [row for row in rows if kept.leaves(row) and _is_emitted(settings, table, row)]
    found = [*_topic(settings, table, kept, leaving), *_redis(settings, table, kept, leaving)]
    return [
        *found,
        *(_postgres(settings, table, leaving) if settings.postgres_url.get_secret_value() else ()),
    ]


def disagreements(found: Sequence[Difference], report: Report) -> list[str]:
    """Return what the audit says too much or too little: it is clean exactly if nothing differs."""
    wrong = [check for check in report.checks if not check.is_clean]
    if found and not wrong:
        return [f"the audit is clean, and does not see that {one}" for one in found]
    return [] if found else [said for check in wrong for said in _false_alarms(check)]


def _false_alarms(check: Check) -> Iterator[str]:
    about = f"{check.name} of {check.subject}"
    if check.differences and not check.examples:
        yield f"a false alarm of the audit: {about}: {check.differences} differences"
    yield from (f"a false alarm of the audit: {about}: {one.key} {one.what}" for one in check.examples)
    yield from (f"the audit could not compare {about}: {why}" for why in check.not_compared)


# The layers.


def _not_landed(life: Life, stream: Stream) -> Iterator[Difference]:
    tables = {source.table for source in stream.sources}
    for one in life.sent:
        if one.source in tables and one.place not in life.landed:
            yield Difference(f"bronze.{one.source}", _text(one.place), "has been sent, and has not landed")


def _silver(
    where: str, rows: Sequence[Row], outcomes: Mapping[Place, Outcome], life: Life
) -> Iterator[Difference]:
    times = Counter(map(coordinates_of, rows))
    standing = {place: one for place, one in outcomes.items() if one.kind == "row" and not one.is_taken}
    for place in sorted(times.keys() | standing.keys()):
        if place not in standing:
            yield Difference(where, _text(place), f"is a row, and should be {_said(outcomes.get(place))}")
        elif times[place] != 1:
            yield Difference(where, _text(place), f"is there {times[place]} times, and should be once")
    for row in rows:
        place = coordinates_of(row)
        if place not in standing:
            continue
        own = {**(standing[place].row or {}), "ingested_at": life.landed[place]}
        for name, value in own.items():
            if name in row and _meaning(name, row[name]) != _meaning(name, value):
                yield Difference(where, _text(place), f"{name} is {row[name]!r}, and should be {value!r}")
        is_admitted = row.get("admitted") is not None
        if "admitted" in row and is_admitted != (standing[place].status == "replayed"):
            what = (
                "is admitted, and no replay was" if is_admitted else "does not say that a replay admitted it"
            )
            yield Difference(where, _text(place), what)


def _letters(
    table: str, letters: Sequence[Row], outcomes: Mapping[Place, Outcome], life: Life
) -> Iterator[Difference]:
    where = f"dead letters of {table}"
    letters = [one for one in letters if not _is_of_an_attempt(one, outcomes)]
    times = Counter(map(coordinates_of, letters))
    wanted = {place: one for place, one in outcomes.items() if one.status is not None}
    for place, count in times.items():
        if count > 1:
            yield Difference(where, _text(place), f"has {count} letters")
        if place not in wanted:
            yield Difference(where, _text(place), f"has a letter, and should be {_said(outcomes.get(place))}")
    for place, one in wanted.items():
        if place not in times and not _may_be_taken(table, place, one, life):
            yield Difference(where, _text(place), f"has no letter, and should be {_said(one)}")
    for letter in letters:
        place = coordinates_of(letter)
        if place not in wanted:
            continue
        rules, one = {reason["rule"] for reason in letter["reasons"]}, wanted[place]
        is_same = (
            rules == one.rules if one.status == "open" else one.rules <= rules or one.status == "replayed"
        )
        if letter["status"] != one.status or not is_same:
            said = f"is {letter['status']} by {', '.join(sorted(rules))}"
            yield Difference(where, _text(place), f"{said}, and should be {_said(one)}")


def _is_of_an_attempt(letter: Row, outcomes: Mapping[Place, Outcome]) -> bool:
    """Tell whether an attempt that did not stand has written the letter of a row, which says `replayed`."""
    outcome = outcomes.get(coordinates_of(letter))
    is_row = outcome is not None and outcome.kind == "row" and outcome.status is None
    return is_row and letter["status"] == "replayed" and letter["admitted"] is None


def _may_be_taken(table: str, place: Place, one: Outcome, life: Life) -> bool:
    """Tell whether retention may have taken a letter: settled, not asked, its record gone from bronze."""
    ends = [taken.gone.get(place[:2], -1) for taken in life.taken[table]]
    return one.status != "open" and not one.is_asked and place[2] <= max(ends, default=-1)


def _gold(table: str, rows: Sequence[Row], wanted: Expected, life: Life) -> Iterator[Difference]:
    if table in _GRAINS:
        yield from _windows(table, rows, wanted, life)
        return
    for said in row_differences(rows, [dict(row) for row in wanted.gold[table]], _KEYS[table]):
        key, _, what = said.rpartition(": ")
        yield Difference(f"gold.{table}", key, what)


def _windows(table: str, rows: Sequence[Row], wanted: Expected, life: Life) -> Iterator[Difference]:
    """Compare windows of statistics; which are final also depends on how long nothing has come."""
    grain = _GRAINS[table]
    gone = {
        key
        for key in windows(wanted.metrics, grain)
        if not is_kept(life, table, {"window_end": key[2] + grain.length_us})
    }
    kept = [
        one
        for one in wanted.metrics
        if (*grain.names(one), one.event_time_us // grain.length_us * grain.length_us) not in gone
    ]
    for said in window_differences(rows, kept, life.settings, grain):
        key, _, what = said.rpartition(": ")
        if not what.startswith("is_final is True"):
            yield Difference(f"gold.{table}", key, what)


# What has left.


def _is_emitted(settings: Settings, table: str, row: Row) -> bool:
    return settings.emit.get(table) != "final" or bool(row.get("is_final"))


def _topic(settings: Settings, table: str, kept: Kept, rows: Sequence[Row]) -> Iterator[Difference]:
    """Compare the last message of each row, read committed; a tombstone's key is that of its row alone."""
    if kept.topic is None:
        return
    last: dict[str, Any] = {}
    for one in read_topic(settings.kafka_bootstrap_servers, settings.topic(kept.topic)):
        value = None if one.value is None else _parsed(one.value, kept)
        key = one.key.decode("utf-8", "replace")
        if value is None:
            last.pop(key, None)
            continue
        if table == "sales_notifications":  # several rows have one key
            key = f"{key} {one.partition} {one.offset}"
        elif table in _WINDOWED:
            key = f"{key}:{value['windowStart']}"
        last[key] = value
    where = f"topic {settings.topic(kept.topic)}"
    yield from _same_messages(where, list(last.values()), [kept.message(row) for row in rows])


def _same_messages(
    where: str, found: Sequence[Mapping[str, Any]], wanted: Sequence[Mapping[str, Any]]
) -> Iterator[Difference]:
    texts = {_frozen(one): one for one in (*found, *wanted)}
    there, expected_ = Counter(map(_frozen, found)), Counter(map(_frozen, wanted))
    for one in there - expected_:
        yield Difference(where, str(texts[one]), "is the last message, and not in gold")
    for one in expected_ - there:
        yield Difference(where, str(texts[one]), "is in gold, and not the last message")


def _redis(settings: Settings, table: str, kept: Kept, rows: Sequence[Row]) -> Iterator[Difference]:
    prefix = f"lakehouse:{table}:row:"
    with redis.Redis.from_url(settings.redis_url.get_secret_value(), decode_responses=True) as client:
        keys = [str(key) for key in client.scan_iter(f"{prefix}*", count=1000)]
        texts = [str(text) for text in client.mget(keys)] if keys else []
    found = {key.removeprefix(prefix): _parsed(text, kept) for key, text in zip(keys, texts, strict=True)}
    found = {name: row for name, row in found.items() if not row.get("_deleted")}
    wanted = {kept.redis_row(row): kept.message(row) for row in rows}
    for name in sorted(found.keys() | wanted.keys()):
        row = {column: value for column, value in found.get(name, {}).items() if column not in _BOOKKEEPING}
        if name not in wanted:
            yield Difference(f"Redis, {table}", name, "is there, and not in gold")
        elif name not in found:
            yield Difference(f"Redis, {table}", name, "is missing")
        elif _frozen(row) != _frozen(wanted[name]):
            yield Difference(f"Redis, {table}", name, f"is {row}, and should be {wanted[name]}")


def _postgres(settings: Settings, table: str, rows: Sequence[Row]) -> Iterator[Difference]:
    """Compare each column of PostgreSQL's table with gold's of that name."""
    with psycopg.connect(settings.postgres_url.get_secret_value(), row_factory=dict_row) as connection:
        name = connection.execute("SELECT to_regclass(%s) AS name", [f"gold.{table}"]).fetchone()
        is_there = name is not None and name["name"] is not None
        query = SQL("SELECT * FROM {}").format(Identifier("gold", table))
        there = connection.execute(query).fetchall() if is_there else []
    columns = sorted({column for row in there[:1] for column in row if column not in _BOOKKEEPING})
    if not there:
        columns = sorted(rows[0]) if rows else []
    found = Counter(tuple(with_micros(row)[name] for name in columns) for row in there)
    wanted = Counter(tuple(row[name] for name in columns) for row in rows)
    for one in found - wanted:
        yield Difference(f"PostgreSQL, {table}", str(one), "is there, and not in gold")
    for one in wanted - found:
        yield Difference(f"PostgreSQL, {table}", str(one), "is missing")


def _rows(settings: Settings, table: str) -> list[Row]:
    """Return a table's rows; none if there is no such table."""
    try:
        return rows_of(settings, table)
    except TableNotFoundError:
        return []


def _meaning(name: str, value: Any) -> object:
    return payload_meaning(value) if name in _PAYLOADS else value


def _parsed(text: str | bytes, kept: Kept) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(text, parse_float=Decimal if kept.exact else float)
    return value


def _frozen(value: Any) -> Any:
    """Return a JSON value as something to count and compare: numbers by their value, true apart from 1."""
    if isinstance(value, Mapping):
        return frozenset((name, _frozen(item)) for name, item in value.items())
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    return ("word", value) if isinstance(value, bool) or value is None else value


def _text(place: Place) -> str:
    return "/".join(map(str, place))


def _said(one: Outcome | None) -> str:
    if one is None:
        return "nothing: it has not landed"
    if one.is_taken:
        return "gone: retention has taken it"
    if one.status is None:
        return "a row"
    if one.status == "replayed":
        return "a row, and its letter replayed"
    rules = f" by {', '.join(sorted(one.rules))}" if one.rules else ""
    return f"a letter, {one.status}{rules}"
