"""Compare a real lake with its expected contents: tables, topics, Redis and PostgreSQL, without Spark.

    life.landed |= landings(settings, stream)       the current contents of bronze
    for one in differences(life, stream): print(one)
    disagreements(differences(life, stream), audit(…))

The lake must be at rest: every layer must have run until it had nothing left to do. Tables are read with
delta-rs.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType
from typing import Any

from deltalake.exceptions import TableNotFoundError

from lakehouse.operations.audit.report import Check, Report
from lakehouse.operations.audit.report import Difference as AuditDifference
from lakehouse.settings import Settings
from lakehouse.streams.definition import Stream
from tests.oracles.json_text import payload_meaning
from tests.oracles.metrics import METRICS_1M, METRICS_SUMMARY_10M, windows
from tests.oracles.records import Outcome, Place
from tests.simulation.model import Expected, Life, expected, is_kept
from tests.support.outputs import KEYS, MISSING, Difference, in_redis, outputs
from tests.support.pipeline import DEAD_LETTERS, Row, coordinates_of, micros, read_topic, rows_of
from tests.support.verdicts import row_differences, window_differences

_GRAINS = {"metrics_1m": METRICS_1M, "metrics_summary_10m": METRICS_SUMMARY_10M}
_TIMES = ("window_start", "ts")
_PAYLOADS = {"analytics", "metrics"}


def landings(settings: Settings, stream: Stream) -> dict[Place, int]:
    """Return the landing time of each bronze record, in microseconds."""
    rows = (row for source in stream.sources for row in _rows(settings, f"bronze.{source.table}"))
    return {coordinates_of(row): row["ingested_at"] for row in rows}


def differences(life: Life, stream: Stream) -> list[Difference]:
    """Return how the lake and its outputs differ from the contents that its history implies."""
    found = table_differences(life, stream)
    for table in stream.tables:
        rows, left = _rows(life.settings, f"gold.{table.name}"), life.left.get(table.name, ())
        found += outputs(
            life.settings,
            table.name,
            rows,
            left=left,
            since_ms=life.since_ms,
            is_adopted=life.is_adopted,
        )
    return [*found, *_letters_sent(life, stream)]


def table_differences(life: Life, stream: Stream) -> list[Difference]:
    """Return how the lake, without its outputs, differs from the contents that its history implies."""
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


def lacking_in_redis(life: Life, table: str) -> set[str]:
    """Return the names of a gold table's rows that should be in Redis but are missing."""
    rows = _rows(life.settings, f"gold.{table}")
    return {one.key for one in in_redis(life.settings, table, rows) if one.what == MISSING}


def is_beyond_bronze(found: Sequence[Difference], settings: Settings, stream: Stream) -> bool:
    """Return whether a differing silver row or letter has a record that is no longer in bronze."""
    places = {tuple(map(str, place)) for place in landings(settings, stream)}
    return any(one.layer == "records" and tuple(one.key.rsplit("/", 2)) not in places for one in found)


def within_silver(found: Sequence[Difference], life: Life) -> list[Difference]:
    """Return the differences, except gold rows from times for which retention has deleted silver's rows."""
    taken = [one.silver_us for runs in life.taken.values() for one in runs if one.silver_us is not None]
    last_us = max(taken, default=0)

    def is_beyond(one: Difference) -> bool:
        key = _key_of(one) if one.layer == "gold" else {}
        return any(key[name] < last_us for name in _TIMES if name in key)

    return [one for one in found if not is_beyond(one)]


def altered(life: Life, stream: Stream) -> dict[Place, bytes | None]:
    """Return another writer's changes and deletions in bronze, for records that retention has not deleted."""
    ends: dict[tuple[str, int], int] = {}
    for taken in (one for source in stream.sources for one in life.taken[source.table]):
        ends |= {place: max(last, ends.get(place, -1)) for place, last in taken.gone.items()}
    return {place: value for place, value in life.altered.items() if place[2] > ends.get(place[:2], -1)}


def disagreements(
    found: Sequence[Difference], report: Report, altered: Mapping[Place, bytes | None] = MappingProxyType({})
) -> list[str]:
    """Return the audit's false and missing findings; it must name exactly the differing records and rows.

    If records differ, the audit compares gold with a silver table that is itself wrong, so its findings about
    gold are ignored. For topics and stores, it is enough that the audit reports a difference, but it must
    count exactly the messages that another lake has left in topics, and name each record that is `altered` in
    bronze.
    """
    if altered:
        named = {place_of(one) for check in report.checks if check.name == "landed" for one in check.examples}
        said = [f"the audit does not name what is altered in bronze: {one}" for one in altered.keys() - named]
        said += [f"a false alarm of the audit: altered in bronze: {one}" for one in named - altered.keys()]
        rest = replace(report, checks=tuple(one for one in report.checks if one.name != "landed"))
        lost = (place for place, value in altered.items() if value is None)
        ours = [Difference(f"silver.{place[0]}", _text(place), "is not in bronze") for place in lost]
        return said + disagreements([*found, *ours], rest)
    left = Counter(one.where for one in found if one.is_left)
    others = [one for one in found if not one.is_left]
    wrong = [check for check in report.checks if not check.is_clean]
    if others and not wrong:
        return [f"the audit is clean, and does not see that {one}" for one in others]
    if others:
        return _not_named(others, wrong)
    told = {_topic_of(check): check.differences for check in wrong if check.name == "exported"}
    missed = [
        f"the audit names {told.get(topic, 0)} of {count} rows that another lake has left in {topic}"
        for topic, count in left.items()
        if told.get(topic, 0) != count
    ]
    more = (check for check in wrong if check.name != "exported" or _topic_of(check) not in left)
    return [*missed, *(said for check in more for said in _false_alarms(check))]


def place_of(example: AuditDifference) -> Place:
    return example.key["topic"], example.key["partition"], example.key["offset"]


def _topic_of(check: Check) -> str:
    return f"topic {check.subject.rpartition(' → ')[2]}"


def _not_named(found: Sequence[Difference], wrong: Sequence[Check]) -> list[str]:
    layers = {"records"} if any(one.layer == "records" for one in found) else {"gold"}
    differing = {_row(one) for one in found if one.layer in layers}
    named = {
        (check.name, _ordered(example.key))
        for check in wrong
        if check.name in layers
        for example in check.examples
    }
    return [
        *(f"the audit does not name what differs: {one}" for one in sorted(differing - named, key=str)),
        *(f"a false alarm of the audit, beside others: {one}" for one in sorted(named - differing, key=str)),
    ]


def _false_alarms(check: Check) -> Iterator[str]:
    about = f"{check.name} of {check.subject}"
    if check.differences and not check.examples:
        yield f"a false alarm of the audit: {about}: {check.differences} differences"
    yield from (f"a false alarm of the audit: {about}: {one.key} {one.what}" for one in check.examples)
    yield from (f"the audit could not compare {about}: {why}" for why in check.not_compared)


def _row(one: Difference) -> tuple[str, str]:
    """Return a difference's layer and row, as the audit names them."""
    if one.layer == "records":
        topic, partition, offset = one.key.rsplit("/", 2)
        return "records", _ordered({"topic": topic, "partition": int(partition), "offset": int(offset)})
    return "gold", _ordered(_key_of(one))


def _key_of(one: Difference) -> dict[str, Any]:
    """Return the key of a differing gold row."""
    names = KEYS[one.where.removeprefix("gold.")]
    return dict(zip(names, ast.literal_eval(one.key), strict=True))


def _ordered(key: Mapping[str, Any]) -> str:
    times = {
        name: micros(datetime.fromisoformat(key[name])) for name in _TIMES if isinstance(key.get(name), str)
    }
    return str(sorted({**key, **times}.items()))


def letters_sent(settings: Settings) -> dict[str, str]:
    """Return the last status of each letter in the topic of dead letters, by id."""
    topic = settings.kafka.dead_letter_topic
    found = (dict(one.headers) for one in read_topic(settings.kafka.bootstrap_servers, topic))
    return {one["lakehouse.letter.id"].decode(): one["lakehouse.letter.status"].decode() for one in found}


def _letters_sent(life: Life, stream: Stream) -> Iterator[Difference]:
    """Compare the topic of dead letters with the letters: it has the last status of each that was ever open.

    Only retention deletes letters, and only closed ones. A message from a lake that this one has replaced
    may remain.
    """
    last, jobs = letters_sent(life.settings), {f"silver.{source.table}" for source in stream.sources}
    letters = {one["id"]: one for one in _rows(life.settings, DEAD_LETTERS) if one["job"] in jobs}
    for id_ in sorted(last.keys() | letters.keys()):
        said, letter = last.get(id_), letters.get(id_)
        status = None if letter is None else letter["status"]
        is_closed_in_one = None in {said, status} and "open" not in {said, status}
        if said != status and not is_closed_in_one and (id_, said) not in life.letters_left.items():
            place = id_ if letter is None else _text(coordinates_of(letter))
            what = f"the last message says {said or 'nothing'}, and the letter is {status or 'gone'}"
            yield Difference("topic of dead letters", place, what)


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
    """Return whether an incomplete replay wrote a row's letter with status `replayed`.

    The letter of a record that a rebuild has found to be in time looks the same.
    """
    outcome = outcomes.get(coordinates_of(letter))
    is_row = outcome is not None and outcome.kind == "row" and outcome.status is None
    return is_row and letter["status"] == "replayed" and letter["admitted"] is None


def _may_be_taken(table: str, place: Place, one: Outcome, life: Life) -> bool:
    """Return whether retention may have deleted a letter: it is settled, unneeded and not in bronze."""
    ends = [taken.gone.get(place[:2], -1) for taken in life.taken[table]]
    return one.status != "open" and not one.is_asked and place[2] <= max(ends, default=-1)


def _gold(table: str, rows: Sequence[Row], wanted: Expected, life: Life) -> Iterator[Difference]:
    if table in _GRAINS:
        yield from _windows(table, rows, wanted, life)
        return
    expected_rows = [dict(row) for row in wanted.gold[table]]
    if table == "call_records":
        expected_rows = _with_closed(rows, expected_rows, wanted.closed)
    for said in row_differences(rows, expected_rows, KEYS[table]):
        key, _, what = said.rpartition(": ")
        yield Difference(f"gold.{table}", key, what)


def _with_closed(
    rows: Sequence[Row], wanted: Sequence[dict[str, Any]], closed: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the expected calls. A call that was closed before the clock was set back may stay closed."""
    names = KEYS["call_records"]

    def key(row: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(row[name] for name in names)

    stay = {key(row) for row in rows if row["status"] == "closed"}
    latest = {key(row): dict(row) for row in closed}
    return [latest.get(key(row), row) if key(row) in stay else row for row in wanted]


def _windows(table: str, rows: Sequence[Row], wanted: Expected, life: Life) -> Iterator[Difference]:
    """Compare windows of statistics; finality also depends on how long the stream has been idle."""
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


def _rows(settings: Settings, table: str) -> list[Row]:
    """Return a table's rows, or none if the table does not exist."""
    try:
        return rows_of(settings, table)
    except TableNotFoundError:
        return []


def _meaning(name: str, value: Any) -> object:
    return payload_meaning(value) if name in _PAYLOADS else value


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
