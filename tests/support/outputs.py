"""Compare topics, Redis and PostgreSQL with the rows of gold, without Spark and without the exporter.

    outputs(settings, "user_transactions_5m", rows_of(settings, "gold.user_transactions_5m"))

This module builds the messages from the rows independently. All steps must have caught up.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import psycopg
import redis
from psycopg.rows import dict_row
from psycopg.sql import SQL, Identifier

from lakehouse.settings import Settings
from tests.oracles.calls import SIDES
from tests.oracles.keys import escaped, joined
from tests.support.pipeline import Row, read_topic, with_micros
from tests.support.streams import STREAMS

KEYS = {
    "metrics_1m": ("service_id", "metric_name", "window_start"),
    "metrics_summary_10m": ("environment", "metric_name", "window_start"),
    "user_transactions_5m": ("user_id", "window_start"),
    "spending_5m": ("user_id", "window_start"),
    "spending_by_size": ("size",),
    "product_sales": ("product",),
    "sales_notifications": ("product", "partition", "offset"),
    "call_records": ("user1", "user2", "ts"),
}
BUILT_IN = tuple(table.name for stream in STREAMS for table in stream.tables)
"""The gold tables of the built-in streams. The other tables here are the simulation's."""
MISSING = "is missing"
_BOOKKEEPING = {"_version", "_generation"}  # columns in addition to gold's columns


@dataclass(frozen=True)
class Difference:
    """A difference: the table, topic or store, the row's key, and a description.

    `is_left`: the message is from a lake that this one has replaced, so it is never withdrawn.
    """

    where: str
    key: str
    what: str
    is_left: bool = False

    @property
    def layer(self) -> str:
        """The audit's check that covers the difference: records, gold, or empty for any other check."""
        if self.where.startswith(("silver.", "dead letters")):
            return "records"
        return "gold" if self.where.startswith("gold.") else ""

    def __str__(self) -> str:
        return f"{self.where}: {self.key}: {self.what}"


@dataclass(frozen=True)
class Kept:
    """How rows of a gold table are exported: their name in Redis, their message, and whether they are sent.

    `exact`: numbers with fractions are decimals.
    """

    topic: str | None
    redis_row: Callable[[Row], str]
    message: Callable[[Row], dict[str, Any]]
    leaves: Callable[[Row], bool] = lambda _row: True
    exact: bool = False


def outputs(
    settings: Settings,
    table: str,
    rows: Sequence[Row],
    *,
    left: Sequence[Mapping[str, Any]] = (),
    since_ms: int = 0,
    is_adopted: bool = False,
) -> list[Difference]:
    """Return how the topic, Redis and PostgreSQL differ from the given rows of a gold table.

    `left` are messages of a lake that this one has replaced. They may remain in the topic, in any state, and
    so may rows in Redis with a generation before `since_ms`. If this lake is an adopted copy of that lake, it
    may send them again. A call that was closed and reopened may still have its former state everywhere.
    """
    return [
        *_topic(settings, table, rows, left, is_adopted=is_adopted),
        *_redis(settings, table, rows, since_ms),
        *(_postgres(settings, table, rows) if settings.postgres.url.get_secret_value() else ()),
    ]


def in_redis(settings: Settings, table: str, rows: Sequence[Row]) -> list[Difference]:
    """Return how Redis differs from the given rows of a gold table."""
    return list(_redis(settings, table, rows, 0))


def last_messages(settings: Settings, table: str) -> dict[str, Row]:
    """Return the last committed message of each row in a table's topic, by the row's name in the topic.

    A tombstone's key belongs to one row only.
    """
    return _last_of(_messages(settings, table))


def _last_of(messages: Iterable[tuple[str, Row | None]]) -> dict[str, Row]:
    last = dict[str, Row]()
    for name, value in messages:
        if value is None:
            last.pop(name, None)
        else:
            last[name] = value
    return last


def _messages(settings: Settings, table: str) -> Iterator[tuple[str, Row | None]]:
    """Yield the committed messages in a table's topic, with the names of their rows; None is a tombstone."""
    kept = KEPT[table]
    if kept.topic is None:
        return
    for one in read_topic(settings.kafka.bootstrap_servers, settings.topic(kept.topic)):
        value = None if one.value is None else parsed(one.value, kept)
        key = one.key.decode("utf-8", "replace")
        if value is not None and table == "sales_notifications":  # several rows have the same key
            key = f"{key} {one.partition} {one.offset}"
        elif value is not None and "windowStart" in value:
            key = f"{key}:{value['windowStart']}"
        yield key, value


def _leaving(settings: Settings, table: str, rows: Sequence[Row]) -> list[Row]:
    """Return the rows that are exported in their current state."""
    gold = (table_ for stream in settings.streams.values() for table_ in stream.get("gold", {}).items())
    is_final_only, kept = (table, {"emit": "final"}) in gold, KEPT[table]
    return [row for row in rows if kept.leaves(row) and (row.get("is_final") or not is_final_only)]


def _open_again(table: str, rows: Sequence[Row]) -> list[Row]:
    """Return the calls that were closed but are open again."""
    return [row for row in rows if row.get("was_closed") and not KEPT[table].leaves(row)]


def _topic(
    settings: Settings,
    table: str,
    rows: Sequence[Row],
    left: Sequence[Mapping[str, Any]],
    *,
    is_adopted: bool,
) -> Iterator[Difference]:
    kept = KEPT[table]
    if kept.topic is None:
        return
    messages = list(_messages(settings, table))
    again = {kept.redis_row(row) for row in _open_again(table, rows)}
    wanted = [kept.message(row) for row in _leaving(settings, table, rows)]
    standing = set(map(kept.redis_row, rows))
    for difference in in_topic(table, messages, wanted, standing, left, again=again, is_adopted=is_adopted):
        yield replace(difference, where=f"topic {settings.topic(kept.topic)}")


def in_topic(
    table: str,
    messages: Sequence[tuple[str, Row | None]],
    wanted: Sequence[Row],
    standing: Collection[str],
    left: Sequence[Mapping[str, Any]] = (),
    *,
    again: Collection[str] = (),
    is_adopted: bool = False,
) -> Iterator[Difference]:
    """Compare the last message of each row with the expected messages.

    `messages` have the names of their rows. The rows in `standing` are in gold; the rows in `again` are
    ignored. Each notification is a separate row, so one that is sent twice appears twice.
    """
    where, may_stay = "topic", {frozen(one) for one in left}
    last = {name: value for name, value in _last_of(messages).items() if name not in again}
    names = {frozen(value): name for name, value in last.items()}
    texts = {frozen(one): one for one in (*last.values(), *wanted)}
    there, expected = Counter(map(frozen, last.values())), Counter(map(frozen, wanted))
    for one in there - expected:
        text = str(texts[one])
        if one not in may_stay:
            yield Difference(where, text, "is the last message, and not in gold")
        elif table != "sales_notifications" and names[one] not in standing:
            yield Difference(where, text, "was left by another lake, and is not in gold", is_left=True)
    sent = Counter((name, frozen(one)) for name, one in messages if one is not None)
    for (name, one), times in sent.items():
        if times > 1 and one in may_stay and name in standing and not is_adopted:
            text = str(texts.get(one, name))
            yield Difference(
                where, text, "was left by another lake, and is sent again as it was", is_left=True
            )
    for one in expected - there:
        yield Difference(where, str(texts[one]), "is in gold, and not the last message")


def _redis(settings: Settings, table: str, rows: Sequence[Row], since_ms: int) -> Iterator[Difference]:
    kept = KEPT[table]
    prefix = f"lakehouse:{table}:row:"
    with redis.Redis.from_url(settings.redis.url.get_secret_value(), decode_responses=True) as client:
        keys = [str(key) for key in client.scan_iter(f"{prefix}*", count=1000)]
        texts = [str(text) for text in client.mget(keys)] if keys else []
    found = {key.removeprefix(prefix): parsed(text, kept) for key, text in zip(keys, texts, strict=True)}
    found = {name: row for name, row in found.items() if not row.get("_deleted")}
    for row in _open_again(table, rows):
        found.pop(kept.redis_row(row), None)
    wanted = {kept.redis_row(row): kept.message(row) for row in _leaving(settings, table, rows)}
    for name in sorted(found.keys() | wanted.keys()):
        row = {column: value for column, value in found.get(name, {}).items() if column not in _BOOKKEEPING}
        if name not in wanted:
            if found[name]["_generation"] >= since_ms:
                yield Difference(f"Redis, {table}", name, "is there, and not in gold")
        elif name not in found:
            yield Difference(f"Redis, {table}", name, MISSING)
        elif frozen(row) != frozen(wanted[name]):
            yield Difference(f"Redis, {table}", name, f"is {row}, and should be {wanted[name]}")


def _postgres(settings: Settings, table: str, rows: Sequence[Row]) -> Iterator[Difference]:
    """Compare each column of the PostgreSQL table with the gold column of the same name."""
    with psycopg.connect(settings.postgres.url.get_secret_value(), row_factory=dict_row) as connection:
        name = connection.execute("SELECT to_regclass(%s) AS name", [f"gold.{table}"]).fetchone()
        is_there = name is not None and name["name"] is not None
        query = SQL("SELECT * FROM {}").format(Identifier("gold", table))
        there = connection.execute(query).fetchall() if is_there else []
    leaving, again = _leaving(settings, table, rows), _open_again(table, rows)
    columns = sorted({column for row in there[:1] for column in row if column not in _BOOKKEEPING})
    if not there:
        columns = sorted(name for name in leaving[0] if name != "state") if leaving else []
    keys = {tuple(row[name] for name in KEYS[table]) for row in again}
    sent = (row for row in map(with_micros, there) if tuple(row[name] for name in KEYS[table]) not in keys)
    found = Counter(tuple(row[name] for name in columns) for row in sent)
    wanted = Counter(tuple(row[name] for name in columns) for row in leaving)
    for one in found - wanted:
        yield Difference(f"PostgreSQL, {table}", str(one), "is there, and not in gold")
    for one in wanted - found:
        yield Difference(f"PostgreSQL, {table}", str(one), MISSING)


def parsed(text: str | bytes, kept: Kept) -> dict[str, Any]:
    """Return a message parsed from its JSON; numbers with fractions have the table's type."""
    value: dict[str, Any] = json.loads(text, parse_float=Decimal if kept.exact else float)
    return value


def frozen(value: Any) -> Any:
    """Return a JSON value that can be hashed and compared: numbers by value, and true differs from 1."""
    if isinstance(value, Mapping):
        return frozenset((name, frozen(item)) for name, item in value.items())
    if isinstance(value, list):
        return tuple(map(frozen, value))
    return ("word", value) if isinstance(value, bool) or value is None else value


# The exported forms of rows.


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
    "spending_5m": Kept(
        "spending-5m",
        lambda row: joined(row["user_id"], str(_ms(row["window_start"]))),
        lambda row: {
            "userId": row["user_id"],
            "windowStart": _ms(row["window_start"]),
            "windowEnd": _ms(row["window_end"]),
            "count": row["count"],
            "total": row["total"],
            "least": row["least"],
            "lastAmount": row["last_amount"],
        },
        exact=True,
    ),
    "spending_by_size": Kept(
        None,
        lambda row: str(row["size"]),
        lambda row: {
            "size": row["size"],
            "count": row["count"],
            "mean": row["mean"],
            "users": row["users"],
            "lastEventTime": _ms(row["last_event_time"]),
        },
        exact=True,
    ),
}
