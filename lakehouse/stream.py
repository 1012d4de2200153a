"""What a stream is: values that the layers' engines read, with no engine in them.

A Stream is one frozen value in one file of `lakehouse/streams/`. It has one or more sources (a topic with
the contract of its records) and one or more gold tables (how clean rows become merged rows, and how those
leave). A difference between two streams is a function on these values, never a branch in an engine.

    Stream ─┬─ Source ──── Contract ── Field …          bronze and silver
            │      └────── Rule …
            └─ GoldTable ─ partial, fold ── Export      gold and export
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum

from pyspark.sql import Column, DataFrame
from pyspark.sql.types import StructType

from lakehouse.settings import Settings


class FieldType(Enum):
    """The JSON types that a contract can ask for; they are strict ("12.5" is not a number)."""

    STRING = "string"
    DOUBLE = "double"


@dataclass(frozen=True)
class Field:
    """One field of a record: its JSON name, its column in silver and its type.

    A required field that is absent, null or (for a string) empty makes the record invalid; an optional
    one is null in silver where it is absent or null.
    """

    name: str
    column: str
    type: FieldType
    required: bool = True


@dataclass(frozen=True)
class Contract:
    """The fields of a JSON record, and the field that carries its event time.

    The event time is epoch milliseconds or an ISO 8601 string with an offset; where it is absent or null
    the Kafka record's timestamp stands in.
    """

    fields: tuple[Field, ...]
    event_time: str = "timestamp"


@dataclass(frozen=True)
class Rule:
    """A condition that a clean row must not meet, in the words of a dead letter's reason.

    `violated` is a Column over the parsed row that is true where the rule is broken; null counts as kept.
    """

    name: str
    column: str
    violated: Column
    message: Column


@dataclass(frozen=True)
class Source:
    """A topic and the tables its records land in: bronze.`table` as they came, silver.`table` clean."""

    topic: str
    table: str
    contract: Contract
    rules: Callable[[], tuple[Rule, ...]] = tuple


@dataclass(frozen=True)
class Front:
    """How far a gold table had got before a micro-batch (`before`) and has with it (`now`).

    Both are the greatest event time merged so far, UTC; `before` is null for an empty table.
    """

    before: datetime | None
    now: datetime


@dataclass(frozen=True)
class RedisView:
    """How rows are laid out in Redis for readers that want one round trip.

    Every row has a key of its own, `lakehouse:<table>:row:<row_key>`, so a series is one MGET. A hash per
    `group`, `lakehouse:<table>:latest:<group>`, holds under each `member` its row with the greatest
    `order`: the latest row is one HGET, a comparison across members one HGETALL. Values are JSON, the
    exported message with the row's version. The three are string Columns over a gold row, `order` a long.
    """

    row_key: Callable[[], Column]
    group: Callable[[], Column]
    member: Callable[[], Column]
    order: Callable[[], Column]


@dataclass(frozen=True)
class Export:
    """How a gold row leaves: to a topic under `key` as the JSON of `value`, and to Redis as `redis` says."""

    topic: str
    key: Callable[[], Column]
    value: Callable[[], Column]
    redis: RedisView


@dataclass(frozen=True)
class GoldTable:
    """A merged table: its grain, and the two transformations that keep it.

    `partial(clean rows of a micro-batch, settings)` gives at most one row a key, in `schema`.
    `fold(partials, current rows, front, settings)` gives the rows that are to stand in the table: it gets
    the current rows that `time_column` says may be touched and returns only the new and the changed ones.
    `due(front, settings)` is the condition on current rows which time alone may change.
    `fixed(settings)` are the settings that the table's content depends on: it is refused under others.
    """

    name: str
    reads: str
    keys: tuple[str, ...]
    schema: StructType
    time_column: str
    event_time_column: str
    partial: Callable[[DataFrame, Settings], DataFrame]
    fold: Callable[[DataFrame, DataFrame, Front, Settings], DataFrame]
    due: Callable[[Front, Settings], Column]
    fixed: Callable[[Settings], Mapping[str, str]]
    export: Export


@dataclass(frozen=True)
class Stream:
    """One of the pipelines: what comes in, what is kept of it and what goes out."""

    name: str
    sources: tuple[Source, ...]
    gold: tuple[GoldTable, ...] = field(default=())

    @property
    def topics(self) -> tuple[str, ...]:
        """Default names of every topic the stream reads or writes."""
        return tuple(source.topic for source in self.sources) + tuple(
            table.export.topic for table in self.gold
        )
