"""The lake that an earlier version has made: unpacked, and what its gold has to be by the oracles."""

from __future__ import annotations

import tarfile
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import groupby
from pathlib import Path

from lakehouse.settings import Settings
from lakehouse.streams import STREAMS
from tests import pipeline, verdicts
from tests.fixtures import make_lake
from tests.fixtures.make_lake import SOURCES, TOPICS
from tests.oracles.calls import SIDES, CallEvent, call_records
from tests.oracles.judging import Judged
from tests.oracles.metrics import METRICS_SUMMARY_10M, Metric
from tests.oracles.sales import Sale, product_sales, sales_notifications
from tests.oracles.transactions import Transaction, user_transactions_5m
from tests.pipeline import DEAD_LETTERS, Coordinates, Row

ARCHIVE = Path(make_lake.__file__).with_name("lake-2026-11") / "lake.tar.gz"
QUERIES = [
    *(f"{layer}.{name}" for layer in ("bronze", "silver") for name in SOURCES),
    *(f"gold.{table.name}" for stream in STREAMS for table in stream.gold),
]
TABLES = sorted({*QUERIES, DEAD_LETTERS, "gold.sales_notifications"})

Verdicts = Mapping[str, Mapping[Coordinates, Judged]]


def unpack(settings: Settings, directory: Path) -> Settings:
    """Return the settings of the lake, which lies in the directory then."""
    with tarfile.open(ARCHIVE) as tar:
        tar.extractall(directory, filter="data")
    changes = {"lake": str(directory / "lake"), "topics": TOPICS, "topic_partitions": make_lake.PARTITIONS}
    return settings.model_copy(update=changes)


def bronze_of(settings: Settings) -> dict[str, list[Row]]:
    return {name: pipeline.rows_of(settings, f"bronze.{name}") for name in SOURCES}


def judged(bronze: Mapping[str, Sequence[Row]], settings: Settings) -> Verdicts:
    """Return the oracle's verdicts, each round in which bronze has landed being a micro-batch of silver."""
    return {
        name: verdicts.judge_batches(
            [list(batch) for _, batch in groupby(sorted(rows, key=_landed), _landed)], settings, SOURCES[name]
        )
        for name, rows in bronze.items()
    }


def _landed(row: Row) -> int:
    return int(row["ingested_at"])


def gold_differences(settings: Settings, found: Verdicts, now: datetime) -> list[str]:
    """In what gold is not what the oracles make of the clean records."""
    gold = {name: pipeline.rows_of(settings, name) for name in TABLES if name.startswith("gold.")}
    metrics = verdicts.accepted(found["metrics_events"], Metric)
    sales = verdicts.accepted(found["sales_events"], Sale)
    calls = [
        event
        for side in SIDES
        for event in verdicts.accepted(found[f"call_{side}"], partial(CallEvent, side=side))
    ]
    exact = {
        "call_records": (call_records(calls, pipeline.micros(now)), ("user1", "user2", "ts")),
        "product_sales": (product_sales(sales), ("product",)),
        "sales_notifications": (sales_notifications(sales), ("product", "partition", "offset")),
        "user_transactions_5m": (
            user_transactions_5m(verdicts.accepted(found["transactions"], Transaction)),
            ("user_id", "window_start"),
        ),
    }
    return [
        *verdicts.window_differences(gold["gold.metrics_1m"], metrics, settings),
        *verdicts.window_differences(
            gold["gold.metrics_summary_10m"], metrics, settings, METRICS_SUMMARY_10M
        ),
        *(
            f"{name}: {text}"
            for name, (rows, keys) in exact.items()
            for text in verdicts.row_differences(gold[f"gold.{name}"], rows, keys)
        ),
    ]
