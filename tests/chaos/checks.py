"""What every row in tables, topics, Redis and PostgreSQL must be, by the input topics and the oracles alone.

Under load nothing is late and only poison is ahead of its time, by construction, so the verdicts depend on no
watermark and on no landing. Who sends other records gives the verdicts.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import psycopg
import redis
from psycopg.rows import dict_row
from psycopg.sql import SQL, Identifier

from lakehouse.settings import Settings
from tests.chaos import mixed
from tests.chaos.files import changes_of, repeated_notes
from tests.chaos.load import POISON_HEADER, RULES
from tests.oracles.calls import SIDES, CallEvent, call_records
from tests.oracles.judging import CONTRACTS, Judged, judge_record
from tests.oracles.keys import escaped, joined
from tests.oracles.metrics import METRICS_1M, METRICS_SUMMARY_10M, Metric
from tests.oracles.sales import Sale, product_sales, sales_notifications
from tests.oracles.transactions import Transaction, user_transactions_5m
from tests.pipeline import Coordinates, Row, coordinates_of, read_topic, rows_of, with_micros
from tests.processes import LAKEHOUSE, running
from tests.streams import STREAMS
from tests.verdicts import accepted, row_differences, same_silver, window_differences

AUDIT_TIMEOUT_S = 600
_SHOWN = 5
_LONG_AFTER_US = 253_402_300_799_000_000

Verdicts = Mapping[str, Mapping[Coordinates, Judged]]


@dataclass(frozen=True)
class Books:
    """How many records there were: sent (poison among them), refused, clean."""

    sent: int = 0
    poison: int = 0
    dead: int = 0
    clean: int = 0


@dataclass(frozen=True)
class Kept:
    """How rows of a gold table leave: their name in Redis, their message, and whether they leave at all.

    `exact`: numbers with a fraction are decimals.
    """

    topic: str | None
    redis_row: Callable[[Row], str]
    message: Callable[[Row], dict[str, Any]]
    leaves: Callable[[Row], bool] = lambda _row: True
    exact: bool = False


def differences(
    settings: Settings, verdicts: Verdicts | None = None, *, now_us: int = _LONG_AFTER_US
) -> tuple[Books, list[str]]:
    """Compare everything with what the oracles make of the input topics.

    `verdicts` are the oracle's where they depend on watermarks and landings; `now_us` says which calls are
    over.
    """
    books, verdicts, found = _layers(settings, verdicts)
    found += _shown("gold", gold_differences(settings, verdicts, now_us=now_us))
    for table, kept in KEPT.items():
        rows = rows_of(settings, f"gold.{table}")
        if kept.topic is not None:
            found += _shown(f"topic of {table}", _topic_differences(settings, table, kept, rows))
        found += _shown(f"Redis rows of {table}", _redis_differences(settings, table, kept, rows))
        if settings.postgres_url.get_secret_value():
            found += _shown(f"PostgreSQL rows of {table}", _postgres_differences(settings, table, kept, rows))
    found += _shown("read once more", repeated_notes(settings))
    return books, found


def audit_differences(environment: Mapping[str, str], directory: Path) -> list[str]:
    """Run `lakehouse audit` as a user does, with its output in `directory`; it has to find nothing."""
    with running([LAKEHOUSE, "audit", "--format", "json"], environment, directory) as process:
        try:
            code = process.wait(AUDIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return [f"lakehouse audit took more than {AUDIT_TIMEOUT_S} s"]
        return [] if code == 0 else [f"lakehouse audit: exit code {code}: {process.everything()[-2000:]}"]


def _shown(what: str, found: Iterable[str]) -> list[str]:
    """Return the first differences with what they are about, and how many more there are."""
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
        records = read_topic(settings.kafka_bootstrap_servers, settings.topic(source.topic))
        sent += len(records)
        poison += sum(map(_is_poison, records))
        by_place = {(one.topic, one.partition, one.offset): one for one in records}
        bronze = rows_of(settings, f"bronze.{source.table}")
        if given is None:
            verdicts[source.table] = {at: _verdict(source.table, record) for at, record in by_place.items()}
        else:
            verdicts[source.table] = given[source.table]
        if source.topic in settings.unique_by:
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
    """Judge a record of a topic: poison by what is written of its kind, anything else by the oracle."""
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
    """Say in what gold is not what the oracles make of the records that are accepted."""
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
            call_records(calls, now_us, gap_s=settings.call_gap_s, grace_s=settings.call_grace_s),
        ),
        "product_sales": (("product",), product_sales(sales)),
        "sales_notifications": (
            ("product", "partition", "offset"),
            sales_notifications(
                sales,
                threshold=settings.sales_threshold,
                every_update=settings.sales_notify == "every_update",
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


# What has left. The messages are put together here once more, from the rows.


def _ms(micros: int | None) -> int | None:
    return None if micros is None else micros // 1000


def _window(names: Mapping[str, str]) -> Callable[[Row], dict[str, Any]]:
    same = ("count", "sum", "min", "max", "avg", "variance", "stddev", "p50", "p90", "p95", "p99")
    return lambda row: {
        **{name: row[column] for name, column in names.items()},
        "windowStart": _ms(row["window_start"]),
        "windowEnd": _ms(row["window_end"]),
        **{name: row[name] for name in same},
        "lastEventTime": _ms(row["last_event_time"]),
        "isFinal": row["is_final"],
    }


def _payload(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return json.loads(text, parse_constant=_refused)
    except ValueError:
        return text


def _refused(literal: str) -> Any:
    raise ValueError(f"{literal} is not JSON")


KEPT: Mapping[str, Kept] = {
    "metrics_1m": Kept(
        "metrics-aggregated-1m",
        lambda row: f"{joined(row['service_id'], row['metric_name'])}:{_ms(row['window_start'])}",
        _window({"serviceId": "service_id", "metricName": "metric_name"}),
    ),
    "metrics_summary_10m": Kept(
        "metrics-summary-10m",
        lambda row: (
            f"environment={escaped(row['environment'])}:metric={escaped(row['metric_name'])}"
            f":{_ms(row['window_start'])}"
        ),
        _window({"environment": "environment", "metricName": "metric_name"}),
    ),
    "call_records": Kept(
        "outputTopic",
        lambda row: f"{joined(row['user1'], row['user2'], separator='-')}:{_ms(row['ts'])}",
        lambda row: {
            "user1": row["user1"],
            "user2": row["user2"],
            "ts": _ms(row["ts"]),
            **{side: _payload(row[side]) for side in SIDES},
        },
        lambda row: row["status"] == "closed",
    ),
    "product_sales": Kept(
        None,
        lambda row: str(row["product"]),
        lambda row: {
            "product": row["product"],
            "total": row["total"],
            "count": row["count"],
            "lastEventTime": _ms(row["last_event_time"]),
        },
        exact=True,
    ),
    "sales_notifications": Kept(
        "notifications-events-v1",
        lambda row: joined(row["product"], str(row["partition"]), str(row["offset"])),
        lambda row: {"product": row["product"], "value": row["value"]},
        exact=True,
    ),
    "user_transactions_5m": Kept(
        "aggregated-transactions",
        lambda row: joined(row["user_id"], str(_ms(row["window_start"]))),
        lambda row: {
            "userId": row["user_id"],
            "windowStart": _ms(row["window_start"]),
            "windowEnd": _ms(row["window_end"]),
            "totalAmount": row["total_amount"],
            "count": row["count"],
        },
        exact=True,
    ),
}


def _topic_differences(settings: Settings, table: str, kept: Kept, rows: Sequence[Row]) -> Iterator[str]:
    """Compare what left with the versions that rows have had, and the last words with the rows that stand."""
    if kept.topic is None:
        return
    messages = read_topic(settings.kafka_bootstrap_servers, settings.topic(kept.topic))
    values = [None if one.value is None else _parsed(one.value, kept) for one in messages]
    sent = Counter(_frozen(value) for value in values if value is not None)
    states = Counter(
        _frozen(kept.message(row))
        for row in changes_of(settings, f"gold.{table}")
        if row["_change_type"] in {"insert", "update_postimage"} and kept.leaves(row)
    )
    for state, times in (sent - states).items():
        yield f"sent {sent[state]} times, was a row's state {states[state]} times: {state}; {times} too many"
    standing = [kept.message(row) for row in rows if kept.leaves(row)]
    if table == "sales_notifications":  # several rows have one key, and every one leaves once
        expected = Counter(map(_frozen, standing))
        yield from (f"has not left: {one}" for one in expected - sent)
        return
    last: dict[bytes, dict[str, Any]] = {}
    for one, value in zip(messages, values, strict=True):
        if value is None:
            last.pop(one.key, None)  # the key of a row that is gone is its own
        else:
            start = f":{value['windowStart']}" if "windowStart" in value else ""
            last[one.key + start.encode()] = value
    expected = Counter(map(_frozen, standing))
    found = Counter(map(_frozen, last.values()))
    yield from (f"the last word is not the row's: {one}" for one in found - expected)
    yield from (f"a row's state is not the last word: {one}" for one in expected - found)


def _redis_differences(settings: Settings, table: str, kept: Kept, rows: Sequence[Row]) -> Iterator[str]:
    prefix = f"lakehouse:{table}:row:"
    with redis.Redis.from_url(settings.redis_url.get_secret_value(), decode_responses=True) as client:
        keys = [str(key) for key in client.scan_iter(f"{prefix}*", count=1000)]
        texts = [str(text) for part in _parts(keys) for text in client.mget(part)]
    found = {key.removeprefix(prefix): _parsed(text, kept) for key, text in zip(keys, texts, strict=True)}
    standing = {name: row for name, row in found.items() if not row.get("_deleted")}
    expected = {kept.redis_row(row): kept.message(row) for row in rows if kept.leaves(row)}
    yield from (f"{name} is missing" for name in expected.keys() - standing.keys())
    yield from (f"{name} should not be there" for name in standing.keys() - expected.keys())
    for name in expected.keys() & standing.keys():
        row = {column: value for column, value in standing[name].items() if column not in _BOOKKEEPING}
        if _frozen(row) != _frozen(expected[name]):
            yield f"{name} is {row}, not {expected[name]}"


def _postgres_differences(settings: Settings, table: str, kept: Kept, rows: Sequence[Row]) -> Iterator[str]:
    """Compare each column of PostgreSQL's table with gold's of that name."""
    with psycopg.connect(settings.postgres_url.get_secret_value(), row_factory=dict_row) as connection:
        there = connection.execute(SQL("SELECT * FROM {}").format(Identifier("gold", table))).fetchall()
    columns = [name for name in there[0] if name not in _BOOKKEEPING] if there else []
    found = Counter(tuple(with_micros(row)[name] for name in columns) for row in there)
    expected = Counter(tuple(row[name] for name in columns) for row in rows if kept.leaves(row))
    yield from (f"{row} is not in gold" for row in found - expected)
    yield from (f"{row} is missing" for row in expected - found)


_BOOKKEEPING = {"_version", "_generation"}  # what rows have beside what gold says


def _parts(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    return (keys[start : start + 1000] for start in range(0, len(keys), 1000))


def _parsed(text: str | bytes, kept: Kept) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(text, parse_float=Decimal if kept.exact else float)
    return value


def _frozen(value: Any) -> Any:
    """Return a JSON value as something to count and compare: numbers by their value, true apart from 1."""
    if isinstance(value, dict):
        return frozenset((name, _frozen(item)) for name, item in value.items())
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    if isinstance(value, bool) or value is None:
        return ("word", value)
    return value
