"""What the four layers have in common: a streaming query, its micro-batches and their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from pyspark.sql import DataFrame

from lakehouse.tables import Transaction

LayerName = Literal["bronze", "silver", "gold", "export"]
LAYERS: tuple[LayerName, ...] = ("bronze", "silver", "gold", "export")


@dataclass(frozen=True)
class BatchResult:
    """What one micro-batch did: rows read, and rows written by what they became."""

    rows: int
    written: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class LayerQuery:
    """A streaming query before it runs.

    `process` gets a micro-batch and its transaction, writes it idempotently and says what it did; it must
    read the whole frame. `fills` is the path of the table whose rows the checkpoint accounts for, null
    where a lost checkpoint costs nothing but repetition. `reads` is the name of the
    query that fills what this one reads. `close` lets go of connections, once, at the end.
    """

    layer: LayerName
    name: str
    rows: DataFrame
    process: Callable[[DataFrame, Transaction], BatchResult]
    fills: str | None
    reads: str | None = None
    close: Callable[[], None] = lambda: None
