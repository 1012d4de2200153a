"""The faults, one function each, and whether a fault at a chosen point has hit it.

A chosen point is waited for by looking at the files, or at the broker, as fast as that goes; the process is
killed the moment it shows. Whether the point was hit is then read from what was left behind: nothing can
have changed it, since the process is dead and its successor takes seconds to come up.
"""

from __future__ import annotations

import contextlib
import resource
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import psutil
import redis
from kafka import KafkaConsumer
from kafka.structs import TopicPartition

from lakehouse.layers.query import LAYERS, LayerName
from lakehouse.sandbox.cluster import Cluster
from lakehouse.settings import Settings
from tests.chaos.files import QUERIES, commit_file, has_write, last_write, writes_of
from tests.chaos.services import Name, OwnServices, runs
from tests.chaos.supervisor import Supervisor
from tests.pipeline import checkpoint_of, version_of

UP_TIMEOUT_S = 300.0
POINT_TIMEOUT_S = 120.0
_PROCESS_TIMEOUT_S = 30.0
_FULL_TIMEOUT_S = 120.0
_WAKING_TIMEOUT_S = 240.0
_LOOK_S = 0.001
_SETTLE_S = 0.5  # what a dead process had sent to the broker has arrived by then


@dataclass(frozen=True)
class Outage:
    """For how long something stays away, in seconds, from and to."""

    least_s: float = 3.0
    most_s: float = 8.0


@dataclass
class Scene:
    """What faults act on."""

    settings: Settings
    services: OwnServices
    supervisor: Supervisor
    rng: Random
    outage: Outage
    cluster: Cluster | None = None


@dataclass(frozen=True)
class Half:
    """A micro-batch of which the first of two tables had its part when its layer was killed."""

    query: str
    application: str
    batch: int


@dataclass(frozen=True)
class Result:
    """What became of a fault: whether it took place as meant, and something to remember.

    `half`: the hit was none if that micro-batch turns out to have nothing for the second table.
    """

    hit: bool
    note: str = ""
    half: Half | None = None


Fault = Callable[[Scene], Result]


def kill(layer: str) -> Fault:
    """Kill a layer wherever it is, be it still starting; one that has just ended starts in a moment."""

    def act(scene: Scene) -> Result:
        deadline = time.monotonic() + _PROCESS_TIMEOUT_S
        while not (hit := scene.supervisor.kill(layer)) and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        return Result(hit)

    return act


def kill_between(layer: LayerName, first: str) -> Fault:
    """Kill a layer when its micro-batch is in the first of two tables and not yet in the query's own."""

    def act(scene: Scene) -> Result:
        settings = scene.settings
        write = _kill_after_commit(scene, layer, [first])
        if write is None:
            return Result(hit=False, note="no commit came")
        table, application, batch = write
        query = application.partition(":")[0]
        hit = last_write(settings, query, application) < batch and _is_open(settings, query, batch)
        half = Half(query, application, batch) if hit else None
        return Result(hit, f"{table} had micro-batch {batch} of {query}", half)

    return act


def kill_before_checkpoint(layer: LayerName) -> Fault:
    """Kill a layer when a micro-batch is in its table and not yet in its checkpoint."""

    def act(scene: Scene) -> Result:
        write = _kill_after_commit(scene, layer, QUERIES[layer])
        if write is None:
            return Result(hit=False, note="no commit came")
        table, application, batch = write
        query = application.partition(":")[0]
        hit = query == table and _is_open(scene.settings, query, batch)
        return Result(hit, f"{table} had micro-batch {batch}")

    return act


def kill_in_transaction(scene: Scene) -> Result:
    """Kill the exporter while a Kafka transaction of its is open."""
    if not scene.supervisor.await_up(["export"], UP_TIMEOUT_S):
        return Result(hit=False, note="export did not come up")
    names = ("metrics-aggregated-1m", "metrics-summary-10m", "aggregated-transactions", "outputTopic")
    partitions = [
        TopicPartition(scene.settings.topic(name), number)
        for name in names
        for number in range(scene.settings.topic_partitions)
    ]
    with _consumer(scene, "read_uncommitted") as written, _consumer(scene, "read_committed") as stable:

        def open_ones() -> list[str]:
            # Records that were there before and are not stable after: their transaction is open.
            ends = written.end_offsets(partitions)
            return [one.topic for one, end in stable.end_offsets(partitions).items() if end < ends[one]]

        deadline = time.monotonic() + POINT_TIMEOUT_S
        while not open_ones():
            if time.monotonic() > deadline:
                return Result(hit=False, note="no open transaction was seen")
        scene.supervisor.kill("export")
        time.sleep(_SETTLE_S)
        left = open_ones()
    return Result(bool(left), f"open on {', '.join(sorted(set(left)))}" if left else "it was committed")


def end_service(name: Name, number: signal.Signals) -> Fault:
    """End the broker or Redis and start it again after a while."""

    def act(scene: Scene) -> Result:
        away_s = scene.rng.uniform(scene.outage.least_s, scene.outage.most_s)
        scene.supervisor.disturb(f"{name} away")
        scene.services.end(name, number)
        time.sleep(away_s)
        scene.services.start()
        return Result(hit=True, note=f"away for {away_s:.1f} s")

    return act


def empty_redis(scene: Scene) -> Result:
    """Delete everything that Redis has, once it has something."""
    deadline = time.monotonic() + POINT_TIMEOUT_S
    with redis.Redis.from_url(scene.settings.redis_url.get_secret_value()) as client:
        while not (rows := int(client.dbsize())) and time.monotonic() < deadline:
            time.sleep(_SETTLE_S)
        client.flushall()
    return Result(rows > 0, f"{rows:,} keys")


def refuse_writes(scene: Scene) -> Result:
    """Let every write to a file fail for the processes that run, as a full disk does.

    It stays so at least until bronze, which always has something to write, has met it. A process that has
    just ended starts in a moment.
    """
    scene.supervisor.disturb("disk full")
    deadline = time.monotonic() + _PROCESS_TIMEOUT_S
    while not scene.supervisor.processes("bronze") and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    limited = {
        layer: [process for process in scene.supervisor.processes(layer) if _limit(process, 0)]
        for layer in LAYERS
    }
    began = time.monotonic()
    time.sleep(scene.rng.uniform(scene.outage.least_s, scene.outage.most_s))
    while any(map(runs, limited["bronze"][:1])) and time.monotonic() < began + _FULL_TIMEOUT_S:
        time.sleep(_LOOK_S)
    full_s = time.monotonic() - began
    every = [process for processes in limited.values() for process in processes]
    alive = sum(_limit(process, resource.RLIM_INFINITY) for process in every)
    return Result(bool(every), f"full for {full_s:.1f} s; {alive} of {len(every)} processes outlived it")


def kill_worker(scene: Scene) -> Result:
    """Kill a worker of the cluster and its executors in the middle of a micro-batch, and start it again."""
    cluster, settings = scene.cluster, scene.settings
    if cluster is None:
        return Result(hit=False, note="there is no cluster")
    scene.supervisor.await_up(LAYERS, UP_TIMEOUT_S)
    scene.supervisor.disturb("a worker killed")
    number, names = scene.rng.choice(cluster.workers), [name for one in QUERIES.values() for name in one]
    deadline = time.monotonic() + POINT_TIMEOUT_S
    while not (begun := _begun(settings, names)) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    executors = cluster.kill_worker(number)
    hit = [f"{name} {batch}" for name, batch in begun if _is_open(settings, name, batch)]
    time.sleep(scene.rng.uniform(scene.outage.least_s, scene.outage.most_s))
    cluster.start_worker(number)
    return Result(bool(hit and executors), f"{executors} executors lost, in {', '.join(hit) or 'no batch'}")


def freeze(layer: LayerName) -> Fault:
    """Stop a driver in the middle of a micro-batch, let another take its place, and wake the first.

    Both are there and hold the same checkpoint, as after a network that came back, until the first one has
    done something about one of its micro-batches, and for some seconds more. Then it is killed.
    """

    def act(scene: Scene) -> Result:
        supervisor, settings = scene.supervisor, scene.settings
        if not supervisor.await_up(LAYERS[: LAYERS.index(layer) + 1], UP_TIMEOUT_S):
            return Result(hit=False, note=f"{layer} did not come up")
        deadline = time.monotonic() + POINT_TIMEOUT_S
        while not (begun := _begun(settings, QUERIES[layer])) and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        supervisor.disturb(f"two drivers of {layer}")
        with supervisor.frozen(layer) as frozen:
            inside = [(name, batch) for name, batch in begun if _is_open(settings, name, batch)]
            is_back = supervisor.await_up([layer], UP_TIMEOUT_S)
            frozen.wake()
            # Where it was away for long, its executors are lost, and it needs new ones before it says a word.
            lines = [line for name, batch in inside for line in (f"{name} batch {batch}: ", f"{name} failed")]
            said = frozen.await_line(lines, _WAKING_TIMEOUT_S) if inside else None
            time.sleep(scene.rng.uniform(scene.outage.least_s, scene.outage.most_s))
        supervisor.disturb(f"two drivers of {layer}")
        names = ", ".join(f"{name} {batch}" for name, batch in inside)
        note = f"in {names or 'no micro-batch'}; awake, it said: {said or 'nothing of them'}"
        return Result(is_back and said is not None, note)

    return act


FAULTS: Mapping[str, Fault] = {
    **{f"kill {layer}": kill(layer) for layer in LAYERS},
    "kill silver between dead letters and clean rows": kill_between("silver", "silver.dead_letters"),
    "kill gold between notifications and totals": kill_between("gold", "gold.sales_notifications"),
    **{f"kill {layer} between table and checkpoint": kill_before_checkpoint(layer) for layer in LAYERS[:3]},
    "kill export inside a Kafka transaction": kill_in_transaction,
    "stop Kafka": end_service("kafka", signal.SIGTERM),
    "kill Kafka": end_service("kafka", signal.SIGKILL),
    "stop Redis": end_service("redis", signal.SIGTERM),
    "kill Redis": end_service("redis", signal.SIGKILL),
    "empty Redis": empty_redis,
    "the disk refuses writes": refuse_writes,
    **{f"freeze {layer} inside a micro-batch": freeze(layer) for layer in LAYERS},
    "kill a worker inside a micro-batch": kill_worker,
}
POINTS = frozenset(name for name in FAULTS if " between " in name or " inside " in name)
CLUSTER = tuple(name for name in FAULTS if name.startswith(("freeze", "kill a worker")))
"""Those of drivers on a cluster."""
DECK = tuple(name for name in FAULTS if name not in CLUSTER)
"""Those that every way of running knows."""


def was_between(scene: Scene, half: Half) -> bool:
    """Wait until a micro-batch is done, and tell whether it had something for the second table."""
    deadline = time.monotonic() + UP_TIMEOUT_S
    while _is_open(scene.settings, half.query, half.batch) and time.monotonic() < deadline:
        time.sleep(_SETTLE_S)
    return has_write(scene.settings, half.query, (half.application, half.batch))


def _kill_after_commit(scene: Scene, layer: LayerName, tables: list[str]) -> tuple[str, str, int] | None:
    """Kill a layer at its next write to one of the tables; return the table, application and micro-batch.

    Nothing comes to a layer before those that it reads from are back.
    """
    if not scene.supervisor.await_up(LAYERS[: LAYERS.index(layer) + 1], UP_TIMEOUT_S):
        return None
    waiting = list(tables)
    scene.rng.shuffle(waiting)
    chosen = waiting[: max(1, len(waiting) // 2)]
    versions = {table: version_of(scene.settings, table) + 1 for table in chosen}
    deadline = time.monotonic() + POINT_TIMEOUT_S
    while time.monotonic() < deadline:
        for table, version in versions.items():
            file = commit_file(scene.settings, table, version)
            if not file.exists():
                continue
            if writes := writes_of(file):
                scene.supervisor.kill(layer)
                return (table, *writes[0])
            versions[table] += 1  # what the clock made due
        time.sleep(_LOOK_S)
    return None


def _begun(settings: Settings, queries: Sequence[str]) -> list[tuple[str, int]]:
    """Return the queries that are inside a micro-batch, with its number."""
    found = []
    for query in queries:
        plans = (checkpoint_of(settings, query) / "offsets").glob("[0-9]*")
        last = max((int(one.name) for one in plans), default=None)
        if last is not None and _is_open(settings, query, last):
            found.append((query, last))
    return found


def _is_open(settings: Settings, query: str, batch: int) -> bool:
    """Tell whether a micro-batch has been planned and its checkpoint does not know that it is done."""
    checkpoint = checkpoint_of(settings, query)
    return (checkpoint / "offsets" / str(batch)).exists() and not (
        checkpoint / "commits" / str(batch)
    ).exists()


def _limit(process: psutil.Process, soft: int) -> bool:
    """Set how large a file the process may write, and tell whether it was there to be told."""
    try:
        _, hard = process.rlimit(psutil.RLIMIT_FSIZE)
        process.rlimit(psutil.RLIMIT_FSIZE, (hard if soft == resource.RLIM_INFINITY else soft, hard))
    except psutil.Error:
        return False
    return True


@contextlib.contextmanager
def _consumer(scene: Scene, isolation: str) -> Iterator[Any]:
    consumer = KafkaConsumer(
        bootstrap_servers=scene.settings.kafka_bootstrap_servers, group_id=None, isolation_level=isolation
    )
    try:
        yield consumer
    finally:
        consumer.close()
