"""A burst of metrics on top of a steady rate: how long a running pipeline lags, and how old events become."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial

from confluent_kafka import Consumer, TopicPartition

from benchmarks.ages import Ages, Places, Watcher, watching
from benchmarks.applications import pipeline, sampled
from benchmarks.heap import HeapLog, log_of
from benchmarks.live import Plan, Producers
from benchmarks.skew_loads import Tally, differences, tallied
from lakehouse.common.errors import LakehouseError
from lakehouse.dev.samples.loads import Load
from lakehouse.settings import Settings

_STREAM, _TOPIC, _TOPIC_OUT, _TABLE = "metrics", "metrics-events", "metrics-aggregated-1m", "metrics_1m"
_WARMUP_S = 60.0
_LOOK_S = 0.25
_KEEPS_UP_S = 10.0
_STEADY_S = 3600.0  # longer than the benchmark takes
_TIMEOUT_S = 600.0
_SEEDS = 1, 2
_SHARES = {"p50": 0.5, "p99": 0.99, "max": 1.0}


@dataclass(frozen=True)
class Burst:
    """A steady rate in events per second, and a burst of some seconds at `times` that rate.

    `before_s` starts when the pipeline keeps up, and ends with the burst. `after_s` starts when it keeps up
    again.
    """

    rate: float
    times: float
    seconds: float
    before_s: float
    after_s: float


@dataclass
class Lag:
    """The number of events that were sent but not yet seen, at each time of observation."""

    looks: list[tuple[float, int]] = field(default_factory=list)

    def most(self, since_s: float = 0.0, until_s: float = float("inf")) -> int:
        """Return the greatest number of unseen events in a period."""
        return max((events for at, events in self.looks if since_s <= at < until_s), default=0)

    def last(self) -> int:
        """Return the number of unseen events at the last observation."""
        return self.looks[-1][1]


def measure_burst(plan: Burst, settings: Settings) -> tuple[dict[str, float], list[str]]:
    """Return the figures by name, and the errors in the result."""
    places = Places(
        settings.kafka.bootstrap_servers, {"topic": _TOPIC_OUT}, settings.redis.url.get_secret_value(), _TABLE
    )
    lag, steady_plan = Lag(), Plan([_STREAM], plan.rate, _STEADY_S, 0)
    burst_plan = Plan([_STREAM], plan.rate * (plan.times - 1), plan.seconds, 0)
    with ExitStack() as stack:
        one = stack.enter_context(pipeline(settings, "--stream", _STREAM))
        watcher = stack.enter_context(watching(places))
        topic = stack.enter_context(closing(_Topic(settings)))
        one.await_start()
        steady = Producers(steady_plan, settings, _STEADY_S, _SEEDS[0])
        stack.callback(steady.stop)
        look = partial(_look, topic, watcher, lag)
        _keep(look, seconds=_WARMUP_S)
        _keep(look, until=lambda: lag.last() <= _KEEPS_UP_S * plan.rate)
        began, sent_before = time.time(), topic.sent()
        log = HeapLog(log_of(settings.home / "heap", one.processes[-1].pid))
        with sampled(lambda: one.processes) as used:
            _keep(look, seconds=plan.before_s)
            burst_at = time.time()
            usual = lag.most(began)
            burst = Producers(burst_plan, settings, plan.seconds, _SEEDS[1])
            _keep(look, until=burst.are_done)
            burst.wait()
            over_at = time.time()
            _keep(look, until=lambda: lag.last() <= usual)
            gone_at = time.time()
            _keep(look, seconds=plan.after_s)
            steady.stop()
            sent = topic.sent()
            _keep(look, until=lambda: set(watcher.events().values()) == {sent})
        ages = watcher.end()["topic"]
        one.stop()
    heap = log.heap()
    figures = {
        "events": sent,
        "burst, s (with the start of its producer)": over_at - burst_at,
        "lag before, events": usual,
        "most lag, events": lag.most(burst_at),
        "lag gone after the burst, s": gone_at - over_at,
        **_ages("before", _between(ages, began, burst_at)),
        **_ages("of the burst, until the lag is gone", _between(ages, burst_at, gone_at)),
        **_ages("after", ages.since(gone_at)),
        "CPU-s per million events": used.cpu_s / (sent - sent_before) * 1e6,
        "heap before a collection, MB": heap.before_mb,
        "heap after a collection, MB": heap.after_mb,
        "full collections": heap.full,
        "collecting, s": heap.pause_s,
        "resident, MB": used.peak_mb,
    }
    return figures, differences(_STREAM, _expected(plan, settings, sent), settings)


class _Topic:
    """The input topic, of which only the end offsets are read."""

    def __init__(self, settings: Settings) -> None:
        self._consumer = Consumer({"bootstrap.servers": settings.kafka.bootstrap_servers, "group.id": "skew"})
        self._places = [TopicPartition(_TOPIC, number) for number in range(settings.kafka.topic_partitions)]

    def sent(self) -> int:
        """Return the number of records in the topic."""
        return sum(self._consumer.get_watermark_offsets(place, timeout=10)[1] for place in self._places)

    def close(self) -> None:
        self._consumer.close()


def _look(topic: _Topic, watcher: Watcher, lag: Lag) -> None:
    at, sent = time.time(), topic.sent()
    lag.looks.append((at, sent - watcher.events()["topic"]))


def _keep(
    look: Callable[[], None], *, seconds: float | None = None, until: Callable[[], bool] | None = None
) -> None:
    """Observe for some seconds, or until a condition holds. Raises LakehouseError if it never does."""
    deadline = time.monotonic() + (_TIMEOUT_S if seconds is None else seconds)
    while True:
        look()
        if until is not None and until():
            return
        if time.monotonic() > deadline:
            break
        time.sleep(_LOOK_S)
    if until is not None:
        raise LakehouseError(f"the pipeline has not caught up in {_TIMEOUT_S:.0f} s")


def _between(ages: Ages, since_s: float, until_s: float) -> Ages:
    return Ages([one for one in ages.since(since_s).samples if one[0] < until_s])


def _ages(when: str, ages: Ages) -> dict[str, float]:
    return {f"age {when}, {name}, s": ages.percentile_s(share) for name, share in _SHARES.items()}


def _expected(plan: Burst, settings: Settings, sent: int) -> Tally:
    """Return the expected results of the producers' events.

    The same seeds give the same values, but at other times. The expected number of windows is therefore
    unknown.
    """
    burst = round(plan.rate * (plan.times - 1) * plan.seconds)
    loads = [
        Load(_STREAM, events, seed=seed) for events, seed in zip((sent - burst, burst), _SEEDS, strict=True)
    ]
    return replace(tallied(loads, settings), rows=None)
