"""What the four layers have in common: a streaming query, its micro-batches and their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol

from pyspark.sql import DataFrame

from lakehouse.tables import Transaction

LayerName = Literal["bronze", "silver", "gold", "export"]
LAYERS: tuple[LayerName, ...] = ("bronze", "silver", "gold", "export")


@dataclass(frozen=True)
class BatchResult:
    """What one micro-batch did: rows read, and rows written by what they became."""

    rows: int
    written: Mapping[str, int] = field(default_factory=dict)


class Ticker(Protocol):
    """What a query has to do by the wall clock, though no record comes."""

    def is_due(self, now: datetime) -> bool:
        """Tell whether there may be something to do, without looking at a table."""

    def tick(self, now: datetime) -> BatchResult:
        """Do it; a second call finds nothing left. Must not run beside a micro-batch of the query."""


@dataclass(frozen=True)
class LayerQuery:
    """A streaming query before it runs.

    `process` gets a micro-batch, its transaction and the time (UTC), writes it idempotently and says what it
    did; it must read the whole frame. `fills` is the path of the table whose rows the checkpoint accounts
    for, null where a lost checkpoint costs nothing but repetition. `reads` are the names of the queries that
    fill what this one reads. `close` lets go of connections, once, at the end.
    """

    layer: LayerName
    name: str
    rows: DataFrame
    process: Callable[[DataFrame, Transaction, datetime], BatchResult]
    fills: str | None
    reads: tuple[str, ...] = ()
    close: Callable[[], None] = lambda: None
    ticker: Ticker | None = None
