"""Uneven loads of each stream, what they come to in plain Python, and whether the lake says the same."""

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
# Of the first gold table: what counts events, and what adds their values up.
_COUNTS = {
    "metrics": ("count",),
    "calls": ("analytics_events", "metrics_events"),
    "sales": ("count",),
    "transactions": ("count",),
}
_SUMS = {"metrics": "sum", "calls": "analytics_events", "sales": "total", "transactions": "total_amount"}


def cases(stream: str, events: int, seed: int) -> dict[str, list[Load]]:
    """Return the loads of each case by its name, in which each event is of some producer."""
    keys: dict[str, Mapping[str, float]] = {
        "metrics": {"services": events / 5},  # of five metrics each
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
    """What events come to: their number, the sum of their values, and the gold rows that they make.

    The sum of calls is the number of their events in the first topic. Rows are null if they are not known.
    """

    events: int = 0
    total: Decimal = Decimal(0)
    rows: int | None = 0


@dataclass
class _Tallying:
    """A tally under way: the keys of rows so far, or with calls the times of each pair."""

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
    """Return what loads of one stream come to, without sending them."""
    tallying = _Tallying(loads[0].name, _gap_s(loads[0].name, settings))
    for sample in mixed(loads, settings):
        tallying.add(sample)
    return tallying.sum_up()


def mixed(loads: Sequence[Load], settings: Settings) -> Iterator[Sample]:
    """Return the events of loads as if they were sent at the same time: each is spread over the whole."""
    placed = (_placed(number, load, settings) for number, load in enumerate(loads))
    return (sample for _, _, sample in merge(*placed, key=lambda one: one[:2]))


def _placed(place: int, load: Load, settings: Settings) -> Iterator[tuple[float, int, Sample]]:
    for number, sample in enumerate(load.samples(settings)):
        yield number / load.events, place, sample


class Sender:
    """Sends loads of a stream, and knows what all of them so far come to.

    A process of its own does this, so that the driver's memory and CPU time are its own.
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
        """Send loads at the same time; raises LakehouseError if the broker has not accepted all."""
        return self._pool.submit(_send, loads, self._settings).result()


def _gap_s(stream: str, settings: Settings) -> int:
    """Return how far apart the events of a call may be; 0 for windows and totals."""
    (one,) = choose([stream], settings)
    return int(one.gold[0].merge_radius.total_seconds())


_tallying: _Tallying  # of a Sender's process


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
    """Return what of the lake, or of Redis, is not what was sent."""
    (one,) = choose([stream], settings)
    table = one.gold[0]
    gold = DeltaTable(f"{settings.lake}/gold/{table.name}").to_pyarrow_table(
        columns=[*{*_COUNTS[stream], _SUMS[stream]}, *(["was_closed"] if stream == "calls" else [])]
    )
    counted = sum(pc.sum(gold[name]).as_py() for name in _COUNTS[stream])
    total = pc.sum(gold[_SUMS[stream]]).as_py()
    is_total = math.isclose(total, sent.total, rel_tol=1e-9) if stream == "metrics" else total == sent.total
    # A call is sent when it closes, and that row stays if an event opens it again.
    leaving = pc.sum(gold["was_closed"]).as_py() if stream == "calls" else gold.num_rows
    rows = scan_rows(settings.redis.url.get_secret_value(), table.name)
    kept = len({name for name, row in rows if not row.startswith(DELETED)})  # a scan may repeat itself
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
