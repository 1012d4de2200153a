"""Checks of every row in tables, topics, Redis and PostgreSQL, based only on the input topics and oracles.

The load contains no late records, and only poison has times in the future, so the verdicts depend on neither
watermarks nor landing times. Callers that send other records pass in the verdicts.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from lakehouse.settings import Settings
from tests.chaos import mixed
from tests.chaos.files import changes_of, repeated_notes
from tests.chaos.load import POISON_HEADER, RULES
from tests.oracles.calls import SIDES, CallEvent, call_records
from tests.oracles.judging import CONTRACTS, Judged, judge_record
from tests.oracles.metrics import METRICS_1M, METRICS_SUMMARY_10M, Metric
from tests.oracles.sales import Sale, product_sales, sales_notifications
from tests.oracles.transactions import Transaction, user_transactions_5m
from tests.support.outputs import BUILT_IN, KEPT, frozen, outputs, parsed
from tests.support.pipeline import Coordinates, Row, coordinates_of, read_topic, rows_of
from tests.support.processes import LAKEHOUSE, running
from tests.support.streams import STREAMS, key_of, seconds_of
from tests.support.verdicts import accepted, row_differences, same_silver, window_differences

AUDIT_TIMEOUT_S = 600
_SHOWN = 5
_LONG_AFTER_US = 253_402_300_799_000_000

Verdicts = Mapping[str, Mapping[Coordinates, Judged]]


@dataclass(frozen=True)
class Books:
    """Counts of records: sent (and how many of these are poison), refused, clean."""

    sent: int = 0
    poison: int = 0
    dead: int = 0
    clean: int = 0


def differences(
    settings: Settings,
    verdicts: Verdicts | None = None,
    *,
    now_us: int = _LONG_AFTER_US,
    left: Mapping[str, Sequence[Row]] | None = None,
) -> tuple[Books, list[str]]:
    """Compare everything with the oracles' results for the input topics.

    `verdicts` are the oracle's, if they depend on watermarks and landing times; `now_us` decides which calls
    are over. For an adopted lake, `left` contains the lost lake's last messages by gold table.
    """
    books, verdicts, found = _layers(settings, verdicts)
    found += _shown("gold", gold_differences(settings, verdicts, now_us=now_us))
    for table in BUILT_IN:
        found += _shown(f"outputs of {table}", _output_differences(settings, table, left))
    found += _shown("read once more", repeated_notes(settings))
    return books, found


def audit_differences(environment: Mapping[str, str], directory: Path) -> list[str]:
    """Run `lakehouse audit` like a user, with its output in `directory`; it must not find anything."""
    with running([LAKEHOUSE, "audit", "--format", "json"], environment, directory) as process:
        try:
            code = process.wait(AUDIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return [f"lakehouse audit took more than {AUDIT_TIMEOUT_S} s"]
        return [] if code == 0 else [f"lakehouse audit: exit code {code}: {process.everything()[-2000:]}"]


def _shown(what: str, found: Iterable[str]) -> list[str]:
    """Return the first differences, each with its subject, and the number of remaining ones."""
    remaining = iter(found)
    shown = [f"{what}: {text}" for text in islice(remaining, _SHOWN)]
    more = sum(1 for _ in remaining)
    return [*shown, f"{what}: and {more} more"] if more else shown


# Bronze, silver and the dead letters.


def _layers(settings: Settings, given: Verdicts | None) -> tuple[Books, Verdicts, list[str]]:
    letters = [row for row in rows_of(settings, "silver.dead_letters") if row["status"] != "replayed"]
    dead = {coordinates_of(row): row for row in letters}
    found = [f"dead letters: {len(letters) - len(dead)} doubled"] if len(letters) > len(dead) else []
    verdicts: dict[str, Mapping[Coordinates, Judged]] = {}
    sent = poison = 0
    for source in (one for stream in STREAMS for one in stream.sources):
        records = read_topic(settings.kafka.bootstrap_servers, settings.topic(source.topic))
        sent += len(records)
        poison += sum(map(_is_poison, records))
        by_place = {(one.topic, one.partition, one.offset): one for one in records}
        bronze = rows_of(settings, f"bronze.{source.table}")
        if given is None:
            verdicts[source.table] = {at: _verdict(source.table, record) for at, record in by_place.items()}
        else:
            verdicts[source.table] = given[source.table]
        if source.table == "transactions" and key_of(settings, "transactions", "unique_by"):
            verdicts[source.table] = mixed.settled(verdicts[source.table], by_place, bronze)
        landed = Counter(map(coordinates_of, bronze))
        found += _shown(f"bronze.{source.table}", _not_once(landed, by_place.keys()))
        found += _shown(f"bronze.{source.table}", _raw_differences(bronze, by_place))
        silver = rows_of(settings, f"silver.{source.table}")
        clean = {at for at, one in verdicts[source.table].items() if not one.reasons}
        found += _shown(f"silver.{source.table}", _not_once(Counter(map(coordinates_of, silver)), clean))
        if not same_silver(silver, verdicts[source.table]):
            found.append(f"silver.{source.table}: rows are not what the oracle accepts")
        found += _shown(
            f"dead letters of {source.table}", _letter_differences(dead, by_place, verdicts[source.table])
        )
    refused = {at for table in verdicts.values() for at, one in table.items() if one.reasons}
    found += _shown("dead letters", (f"{at} was not refused" for at in dead.keys() - refused))
    every = sum(map(len, verdicts.values()))
    return Books(sent, poison, len(letters), every - len(refused)), verdicts, found


def _is_poison(record: Any) -> bool:
    return any(name == POISON_HEADER for name, _ in record.headers)


def _verdict(table: str, record: Any) -> Judged:
    """Judge a topic's record: poison by the rules for its kind, anything else by the oracle."""
    for name, text in record.headers:
        if name == POISON_HEADER:
            return Judged(frozenset((rule, None) for rule in RULES[text.decode()]))
    landed_us, said = record.timestamp * 1000, mixed.said_in_json(record)
    return judge_record(CONTRACTS[table], said, record.timestamp, landed_us, None, key=record.key)


def _not_once(found: Counter[Coordinates], expected: Iterable[Coordinates]) -> Iterator[str]:
    wanted = set(expected)
    yield from (f"{at} is missing" for at in wanted - found.keys())
    yield from (f"{at} should not be there" for at in found.keys() - wanted)
    yield from (f"{at} is there {times} times" for at, times in found.items() if times > 1)


def _raw_differences(rows: Iterable[Row], sent: Mapping[Coordinates, Any]) -> Iterator[str]:
    for row in rows:
        record = sent.get(coordinates_of(row))
        headers = [(header["key"], header["value"]) for header in row["headers"] or ()]
        landed = (row["key"], row["value"], headers, row["timestamp"])
        if record and landed != (record.key, record.value, list(record.headers), record.timestamp * 1000):
            yield f"{coordinates_of(row)} has another key, value, headers or time than the record"


def _letter_differences(
    dead: Mapping[Coordinates, Row], sent: Mapping[Coordinates, Any], verdicts: Mapping[Coordinates, Judged]
) -> Iterator[str]:
    for at, verdict in verdicts.items():
        if not verdict.reasons:
            continue
        letter = dead.get(at)
        if letter is None:
            yield f"{at} is missing"
            continue
        rules, expected = ({rule for rule, _ in _rules(letter)}, {rule for rule, _ in verdict.reasons})
        known_columns = any(column for _, column in verdict.reasons)
        if rules != expected or (known_columns and set(_rules(letter)) != verdict.reasons):
            yield f"{at} was refused for {_rules(letter)}, not {sorted(map(str, verdict.reasons))}"
        expected_letter = (sent[at].value, sent[at].key, mixed.status_of(verdict))
        if (letter["value"], letter["key"], letter["status"]) != expected_letter:
            yield f"{at} has another value, key or status"


def _rules(letter: Row) -> list[tuple[str, str | None]]:
    return [(reason["rule"], reason["column"]) for reason in letter["reasons"]]


# Gold.


def gold_differences(
    settings: Settings, verdicts: Verdicts, *, now_us: int = _LONG_AFTER_US
) -> Iterator[str]:
    """Yield the differences between gold and the oracles' results for the accepted records."""
    metrics = accepted(verdicts["metrics_events"], Metric)
    for table, grain in (("metrics_1m", METRICS_1M), ("metrics_summary_10m", METRICS_SUMMARY_10M)):
        rows = rows_of(settings, f"gold.{table}")
        yield from (f"{table} {one}" for one in window_differences(rows, metrics, settings, grain))
    calls = [
        call for side in SIDES for call in accepted(verdicts[f"call_{side}"], partial(CallEvent, side=side))
    ]
    sales = accepted(verdicts["sales_events"], Sale)
    expected: Mapping[str, tuple[tuple[str, ...], list[Row]]] = {
        "call_records": (
            ("user1", "user2", "ts"),
            call_records(
                calls,
                now_us,
                gap_s=seconds_of(settings, "calls", "gap"),
                grace_s=seconds_of(settings, "calls", "grace"),
            ),
        ),
        "product_sales": (("product",), product_sales(sales)),
        "sales_notifications": (
            ("product", "partition", "offset"),
            sales_notifications(
                sales,
                threshold=Decimal(key_of(settings, "sales", "threshold")),
                every_update=key_of(settings, "sales", "notify") == "every_update",
            ),
        ),
        "user_transactions_5m": (
            ("user_id", "window_start"),
            user_transactions_5m(accepted(verdicts["transactions"], Transaction)),
        ),
    }
    for table, (keys, rows) in expected.items():
        found = rows_of(settings, f"gold.{table}")
        yield from (f"{table} {one}" for one in row_differences(found, rows, keys))


# Outputs.


def _output_differences(
    settings: Settings, table: str, left: Mapping[str, Sequence[Row]] | None
) -> Iterator[str]:
    """Compare outputs with the rows; no state may be sent more often than the row was in that state."""
    rows, kept, before = rows_of(settings, f"gold.{table}"), KEPT[table], (left or {}).get(table, ())
    yield from map(str, outputs(settings, table, rows, left=before, is_adopted=left is not None))
    if kept.topic is None:
        return
    messages = read_topic(settings.kafka.bootstrap_servers, settings.topic(kept.topic))
    sent = Counter(frozen(parsed(one.value, kept)) for one in messages if one.value is not None)
    states = Counter(
        frozen(kept.message(row))
        for row in changes_of(settings, f"gold.{table}")
        if row["_change_type"] in {"insert", "update_postimage"} and kept.leaves(row)
    )
    for state, times in (sent - states).items():
        yield f"sent {sent[state]} times, was a row's state {states[state]} times: {state}; {times} too many"
