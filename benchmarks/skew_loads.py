"""Uneven loads for each stream, their expected results in plain Python, and a comparison with the lake."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from heapq import merge
from itertools import pairwise
from multiprocessing import get_context
from types import TracebackType
from typing import Any, Self

import pyarrow.compute as pc
from deltalake import DeltaTable

from lakehouse.common.errors import LakehouseError
from lakehouse.dev.samples import Sample, producing
from lakehouse.dev.samples.loads import Load
from lakehouse.settings import Settings
from lakehouse.sinks.redis.rows import DELETED, scan_rows
from lakehouse.storage.kafka.topics import create_topics
from lakehouse.streams.registry import choose

EVEN = "even"
HOT_SHARE = 0.9
LAGGING_SHARE, LAGGING_S = 0.25, 3600.0

_HOT: Mapping[str, Mapping[str, Mapping[str, float]]] = {
    "metrics": {"one series": {"hot_series": HOT_SHARE}},
    "calls": {"one pair": {"hot_pair": HOT_SHARE}, "one caller": {"hot_caller": HOT_SHARE}},
    "sales": {"one product": {"hot_product": HOT_SHARE}},
    "transactions": {"one user": {"hot_user": HOT_SHARE}},
}
_WINDOW_MS = {"metrics": 60_000, "transactions": 300_000}
_BY = {
    "metrics": ("serviceId", "metricName"),
    "calls": ("user1", "user2"),
    "sales": ("product",),
    "transactions": ("userId",),
}
_VALUE = {"metrics": "value", "sales": "value", "transactions": "amount"}
# Columns of the first gold table that count events, and columns that sum their values.
_COUNTS = {
    "metrics": ("count",),
    "calls": ("analytics_events", "metrics_events"),
    "sales": ("count",),
    "transactions": ("count",),
}
_SUMS = {"metrics": "sum", "calls": "analytics_events", "sales": "total", "transactions": "total_amount"}


def cases(stream: str, events: int, seed: int) -> dict[str, list[Load]]:
    """Return the loads of each case, by name. Each load belongs to one producer."""
    keys: dict[str, Mapping[str, float]] = {
        "metrics": {"services": events / 5},  # with five metrics each
        "calls": {"alone": 1.0},
        "sales": {"products": events},
        "transactions": {"users": events},
    }
    lagging = round(events * LAGGING_SHARE)
    return {
        EVEN: [Load(stream, events, seed=seed)],
        **{name: [Load(stream, events, seed=seed, shape=shape)] for name, shape in _HOT[stream].items()},
        "a key for each event": [Load(stream, events, seed=seed, shape=keys[stream])],
        "a lagging producer": [
            Load(stream, events - lagging, seed=seed),
            Load(stream, lagging, seed=seed + 1, behind_s=LAGGING_S),
        ],
    }


@dataclass
class Tally:
    """The expected results of events: their number, the sum of their values, and the number of gold rows.

    For calls, the sum is the number of events in the first topic. `rows` is None if the number is unknown.
    """

    events: int = 0
    total: Decimal = Decimal(0)
    rows: int | None = 0


@dataclass
class _Tallying:
    """A tally in progress, with the keys of all rows so far or, for calls, each pair's times."""

    stream: str
    gap_s: int
    tally: Tally = field(default_factory=Tally)
    _keys: set[tuple[Any, ...]] = field(default_factory=set)
    _times: dict[tuple[Any, ...], list[int]] = field(default_factory=lambda: defaultdict(list))

    def add(self, sample: Sample) -> None:
        record = json.loads(sample.value or b"", parse_float=Decimal)
        key = tuple(record[name] for name in _BY[self.stream])
        self.tally.events += 1
        if self.stream == "calls":
            self.tally.total += sample.source == 0
            self._times[key].append(_millis(record["timestamp"]))
            return
        self.tally.total += Decimal(record[_VALUE[self.stream]])
        window_ms = _WINDOW_MS.get(self.stream)
        self._keys.add((*key, _millis(record["timestamp"]) // window_ms) if window_ms else key)

    def sum_up(self) -> Tally:
        gap_ms = self.gap_s * 1000
        calls = sum(
            1 + sum(later - earlier > gap_ms for earlier, later in pairwise(sorted(times)))
            for times in self._times.values()
        )
        self.tally.rows = len(self._keys) + calls
        return self.tally


def tallied(loads: Sequence[Load], settings: Settings) -> Tally:
    """Return the expected results of one stream's loads, without sending them."""
    tallying = _Tallying(loads[0].name, _gap_s(loads[0].name, settings))
    for sample in mixed(loads, settings):
        tallying.add(sample)
    return tallying.sum_up()


def mixed(loads: Sequence[Load], settings: Settings) -> Iterator[Sample]:
    """Return the events of several loads as if sent at the same time, with each load evenly spread."""
    placed = (_placed(number, load, settings) for number, load in enumerate(loads))
    return (sample for _, _, sample in merge(*placed, key=lambda one: one[:2]))


def _placed(place: int, load: Load, settings: Settings) -> Iterator[tuple[float, int, Sample]]:
    for number, sample in enumerate(load.samples(settings)):
        yield number / load.events, place, sample


class Sender:
    """Sends loads for a stream, and tallies the expected results of all loads so far.

    A separate process sends the loads, so that the driver's memory and CPU time contain nothing else.
    """

    def __init__(self, stream: str, settings: Settings) -> None:
        self._settings = settings
        self._pool = ProcessPoolExecutor(
            1,
            mp_context=get_context("spawn"),
            initializer=_begin,
            initargs=(stream, _gap_s(stream, settings)),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()

    def send(self, loads: Sequence[Load]) -> Tally:
        """Send the loads at the same time. Raises LakehouseError if the broker did not accept every event."""
        return self._pool.submit(_send, loads, self._settings).result()


def _gap_s(stream: str, settings: Settings) -> int:
    """Return the maximum time between events of a call; 0 for windows and totals."""
    (one,) = choose([stream], settings)
    return int(one.gold[0].merge_radius.total_seconds())


_tallying: _Tallying  # in a Sender's process


def _begin(stream: str, gap_s: int) -> None:
    global _tallying  # noqa: PLW0603 - it outlives a call in the pool's process
    _tallying = _Tallying(stream, gap_s)


def _send(loads: Sequence[Load], settings: Settings) -> Tally:
    topics = loads[0].topics(settings)
    create_topics(settings.kafka.access, dict.fromkeys(topics, settings.kafka.topic_partitions))

    def added() -> Iterator[Sample]:
        for sample in mixed(loads, settings):
            _tallying.add(sample)
            yield sample

    summary = producing.produce(settings.kafka.access, topics, added())
    if summary.acknowledged != sum(load.events for load in loads):
        raise LakehouseError(f"the broker accepted {summary.acknowledged:,} events: {summary.first_error}")
    return _tallying.sum_up()


def differences(stream: str, sent: Tally, settings: Settings) -> list[str]:
    """Return the differences between the events sent and the rows in the lake and in Redis."""
    (one,) = choose([stream], settings)
    table = one.gold[0]
    gold = DeltaTable(f"{settings.lake}/gold/{table.name}").to_pyarrow_table(
        columns=[*{*_COUNTS[stream], _SUMS[stream]}, *(["was_closed"] if stream == "calls" else [])]
    )
    counted = sum(pc.sum(gold[name]).as_py() for name in _COUNTS[stream])
    total = pc.sum(gold[_SUMS[stream]]).as_py()
    is_total = math.isclose(total, sent.total, rel_tol=1e-9) if stream == "metrics" else total == sent.total
    # A call is sent when it closes. Its row remains in Redis if an event opens the call again.
    leaving = pc.sum(gold["was_closed"]).as_py() if stream == "calls" else gold.num_rows
    rows = scan_rows(settings.redis.url.get_secret_value(), table.name)
    kept = len({name for name, row in rows if not row.startswith(DELETED)})  # a scan may return a row twice
    landed = {
        layer: sum(_rows(settings, layer, s.table) for s in one.sources) for layer in ("bronze", "silver")
    }
    found = {
        "events": {**landed, "gold": counted, "sent": sent.events},
        "rows": {"gold": gold.num_rows, "sent": gold.num_rows if sent.rows is None else sent.rows},
        "rows that leave": {"Redis": kept, "gold": leaving},
        "dead letters": {"lake": _rows(settings, "silver", "dead_letters"), "sent": 0},
    }
    wrong = [f"{what}: {values}" for what, values in found.items() if len(set(values.values())) > 1]
    return [*wrong, *([] if is_total else [f"sum: gold {total}, sent {sent.total}"])]


def _rows(settings: Settings, layer: str, table: str) -> int:
    return int(DeltaTable(f"{settings.lake}/{layer}/{table}").count())


def _millis(timestamp: int | str) -> int:
    if isinstance(timestamp, int):
        return timestamp
    return round(datetime.fromisoformat(timestamp).timestamp() * 1000)
