"""The faults, one function each, and checks that a fault at a chosen point has hit this point.

To hit a chosen point, the files or the broker are polled as fast as possible, and the process is killed or
frozen as soon as the point is reached. The files then show whether the point was hit: nothing can have
changed them, because the process has stopped and its successor takes seconds to start.
"""

from __future__ import annotations

import resource
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

import psutil
import redis
from kafka import KafkaAdminClient, KafkaConsumer
from kafka.errors import KafkaError
from kafka.structs import TopicPartition
from psycopg.sql import SQL, Identifier

from lakehouse.engine.layers import LAYERS, LayerName
from lakehouse.settings import Settings
from tests.chaos.files import EXPORTS, QUERIES, Writing, commit_file, last_note, notes_of, sent
from tests.chaos.services import Name, OwnServices, runs
from tests.chaos.supervisor import Supervisor
from tests.support.cluster import Cluster
from tests.support.pipeline import version_of

UP_TIMEOUT_S = 300.0
POINT_TIMEOUT_S = 120.0
_PROCESS_TIMEOUT_S = 30.0
_FULL_TIMEOUT_S = 120.0
_WAKING_TIMEOUT_S = 240.0
_LOOK_S = 0.001
_SETTLE_S = 0.5  # by then, everything that a killed or frozen process wrote or sent has arrived


@dataclass(frozen=True)
class Outage:
    """The minimum and maximum duration of an outage, in seconds."""

    least_s: float = 3.0
    most_s: float = 8.0


@dataclass
class Scene:
    """The targets of the faults."""

    settings: Settings
    services: OwnServices
    supervisor: Supervisor
    rng: Random
    outage: Outage
    cluster: Cluster | None = None


@dataclass(frozen=True)
class Result:
    """The outcome of a fault: whether it hit its target, and a note."""

    hit: bool
    note: str = ""


@dataclass(frozen=True)
class Commit:
    """A commit after which a layer was killed, with the query's position in it."""

    table: str
    version: int
    application: str
    place: int


Fault = Callable[[Scene], Result]


def kill(layer: str) -> Fault:
    """Kill a layer, even if it is still starting; if it has just ended, wait until it runs again."""

    def act(scene: Scene) -> Result:
        deadline = time.monotonic() + _PROCESS_TIMEOUT_S
        while not (hit := scene.supervisor.kill(layer)) and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        return Result(hit)

    return act


def kill_between(layer: LayerName, first: str) -> Fault:
    """Kill a layer when its micro-batch is in the first of two tables, but not yet in the query's own."""

    def act(scene: Scene) -> Result:
        commit = _kill_after_commit(scene, layer, [first])
        if commit is None:
            return Result(hit=False, note="no commit came")
        # In the first table: "<query> of <the second table's id> reads <source>".
        query, _, rest = commit.application.partition(" of ")
        source = rest.partition(" reads ")[2]
        done = last_note(scene.settings, query, f"{query} reads {source}")
        told = f"{first} had {query} up to {commit.place}, {query} itself up to {done}"
        return Result(done is None or done < commit.place, told)

    return act


def kill_after_commit(layer: LayerName) -> Fault:
    """Kill a layer right after it commits a micro-batch, which the next process must not process again.

    At the end, `files.repeated_notes` and the rows show whether anything was processed twice.
    """

    def act(scene: Scene) -> Result:
        commit = _kill_after_commit(scene, layer, QUERIES[layer])
        if commit is None:
            return Result(hit=False, note="no commit came")
        last = version_of(scene.settings, commit.table)
        told = f"{commit.table} had version {commit.version}, up to {commit.place}; the last one is {last}"
        return Result(commit.version == last, told)

    return act


def kill_in_transaction(scene: Scene) -> Result:
    """Kill the exporter while it has an open Kafka transaction."""
    if not scene.supervisor.await_up(["export"], UP_TIMEOUT_S):
        return Result(hit=False, note="export did not come up")
    with _inside(scene, ["export"]) as look:
        if not _awaited(look):
            return Result(hit=False, note="no open transaction was seen")
        scene.supervisor.kill("export")
        time.sleep(_SETTLE_S)
        left = look()
    return Result(bool(left), f"open of {', '.join(left)}" if left else "it was committed")


def kill_before_note(scene: Scene) -> Result:
    """Kill the exporter once Kafka, but neither the lake's note nor perhaps Redis, has a micro-batch."""
    if not scene.supervisor.await_up(["export"], UP_TIMEOUT_S):
        return Result(hit=False, note="export did not come up")
    settings, groups = scene.settings, dict[str, str]()
    for query, topic in EXPORTS.items():
        groups[f"lakehouse-export-{query.partition('.')[2]}-to-{settings.topic(topic)}"] = query
    admin = KafkaAdminClient(bootstrap_servers=settings.kafka.bootstrap_servers)

    def ahead() -> list[str]:
        try:
            noted = admin.list_group_offsets(list(groups))
        except KafkaError:  # it is restarting
            return []
        ends = {
            groups[name]: max((one.offset for one in at.values()), default=0) for name, at in noted.items()
        }
        return [query for query, end in ends.items() if end > _place(scene, query)]

    try:
        if not _awaited(ahead):
            return Result(hit=False, note="no export was seen between the two")
        scene.supervisor.kill("export")
        time.sleep(_SETTLE_S)
        left = ahead()
    finally:
        admin.close()
    return Result(bool(left), f"Kafka was ahead for {', '.join(left)}" if left else "it was noted")


def end_service(name: Name, number: signal.Signals) -> Fault:
    """Stop a service, and restart it after a while."""

    def act(scene: Scene) -> Result:
        if name == "registry" and scene.services.registry is None:
            return Result(hit=False, note="there is no registry")
        away_s = scene.rng.uniform(scene.outage.least_s, scene.outage.most_s)
        scene.supervisor.disturb(f"{name} away")
        scene.services.end(name, number)
        time.sleep(away_s)
        scene.services.start()
        return Result(hit=True, note=f"away for {away_s:.1f} s")

    return act


def empty_redis(scene: Scene) -> Result:
    """Delete everything in Redis, once it contains something."""
    deadline = time.monotonic() + POINT_TIMEOUT_S
    with redis.Redis.from_url(scene.settings.redis.url.get_secret_value()) as client:
        while not (rows := int(client.dbsize())) and time.monotonic() < deadline:
            time.sleep(_SETTLE_S)
        client.flushall()
    return Result(rows > 0, f"{rows:,} keys")


def empty_postgres(scene: Scene) -> Result:
    """Delete all rows of every table in PostgreSQL, and drop one of the tables, once there are tables."""
    asked = "SELECT count(*) FROM pg_tables WHERE schemaname = 'gold' AND tablename <> 'lakehouse_positions'"
    deadline = time.monotonic() + POINT_TIMEOUT_S
    with scene.services.postgres.connect() as connection:
        while not (found := connection.execute(asked).fetchone()) or not found[0]:
            if time.monotonic() > deadline:
                return Result(hit=False, note="it has no table")
            time.sleep(_SETTLE_S)
        names = connection.execute(asked.replace("count(*)", "tablename")).fetchall()
        for (name,) in names:
            connection.execute(SQL("TRUNCATE {}").format(Identifier("gold", name)))
        connection.execute(SQL("DROP TABLE {}").format(Identifier("gold", scene.rng.choice(names)[0])))
    return Result(hit=True, note=f"{len(names)} tables")


def full_redis(scene: Scene) -> Result:
    """Make Redis refuse writes for a while, because it is full."""
    scene.supervisor.disturb("Redis full")
    with redis.Redis.from_url(scene.settings.redis.url.get_secret_value()) as client:
        client.config_set("maxmemory", "1")
        time.sleep(scene.rng.uniform(scene.outage.least_s, scene.outage.most_s))
        refused = int(client.info("stats")["total_error_replies"])
        client.config_set("maxmemory", "0")
    return Result(refused > 0, f"{refused:,} refusals")


def refuse_writes(scene: Scene) -> Result:
    """Make every write to a file fail in the running processes, as on a full disk.

    This lasts at least until bronze, which always has something to write, has ended. If bronze has just
    ended, wait until it runs again.
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
    every = {process.pid: process for processes in limited.values() for process in processes}.values()
    alive = sum(_limit(process, resource.RLIM_INFINITY) for process in every)
    return Result(bool(every), f"full for {full_s:.1f} s; {alive} of {len(every)} processes outlived it")


def kill_worker(scene: Scene) -> Result:
    """Kill one of the cluster's workers and its executors during a micro-batch, and restart it."""
    cluster = scene.cluster
    if cluster is None:
        return Result(hit=False, note="there is no cluster")
    scene.supervisor.await_up(LAYERS, UP_TIMEOUT_S)
    scene.supervisor.disturb("a worker killed")
    number = scene.rng.choice(cluster.workers)
    with _inside(scene, LAYERS[:3]) as look:
        begun = _awaited(look)
        executors = cluster.kill_worker(number)
        hit = [name for name in look() if name in begun]
    time.sleep(scene.rng.uniform(scene.outage.least_s, scene.outage.most_s))
    cluster.start_worker(number)
    return Result(bool(hit and executors), f"{executors} executors lost, in {', '.join(hit) or 'no batch'}")


def freeze(layer: LayerName) -> Fault:
    """Suspend a driver while it writes a micro-batch, let another replace it, and resume the first.

    The other driver has written the micro-batch that the first had begun, so the first must fail: it prints
    an error, or ends. It then runs alongside the other for some seconds, as after a network failure, and is
    killed.
    """

    def act(scene: Scene) -> Result:
        supervisor = scene.supervisor
        if not supervisor.await_up(LAYERS[: LAYERS.index(layer) + 1], UP_TIMEOUT_S):
            return Result(hit=False, note=f"{layer} did not come up")
        with _inside(scene, [layer]) as look:
            begun = _awaited(look)
            supervisor.disturb(f"two drivers of {layer}")
            with supervisor.frozen(layer) as frozen:
                time.sleep(_SETTLE_S)
                inside = [name for name in look() if name in begun]
                before = {name: _place(scene, name) for name in inside}
                is_back = supervisor.await_up([layer], UP_TIMEOUT_S)
                passed = _passed(scene, before)
                frozen.wake()
                # After a long pause, it may have lost its executors, and needs new ones to print anything.
                lines = [f"{name} {what} " for name in passed for what in ("failed;", "batch")]
                said = frozen.await_line(lines, _WAKING_TIMEOUT_S) if passed else None
                time.sleep(scene.rng.uniform(scene.outage.least_s, scene.outage.most_s))
        supervisor.disturb(f"two drivers of {layer}")
        has_failed = said is not None and not said.startswith(tuple(f"{name} batch " for name in passed))
        within, others = (", ".join(names) or "nothing" for names in (inside, passed))
        note = f"in {within}, the other one wrote {others}; awake, it said: {said or 'nothing of that'}"
        return Result(is_back and has_failed, note)

    return act


FAULTS: Mapping[str, Fault] = {
    **{f"kill {layer}": kill(layer) for layer in LAYERS},
    "kill silver between dead letters and clean rows": kill_between("silver", "silver.dead_letters"),
    "kill gold between notifications and totals": kill_between("gold", "gold.sales_notifications"),
    **{f"kill {layer} right after a commit": kill_after_commit(layer) for layer in LAYERS[:3]},
    "kill export inside a Kafka transaction": kill_in_transaction,
    "kill export between Kafka and its note": kill_before_note,
    "stop Kafka": end_service("kafka", signal.SIGTERM),
    "kill Kafka": end_service("kafka", signal.SIGKILL),
    "stop Redis": end_service("redis", signal.SIGTERM),
    "kill Redis": end_service("redis", signal.SIGKILL),
    "empty Redis": empty_redis,
    "full Redis": full_redis,
    "stop PostgreSQL": end_service("postgres", signal.SIGINT),
    "kill PostgreSQL": end_service("postgres", signal.SIGKILL),
    "empty PostgreSQL": empty_postgres,
    "the disk refuses writes": refuse_writes,
    **{f"freeze {layer} inside a micro-batch": freeze(layer) for layer in LAYERS},
    "kill a worker inside a micro-batch": kill_worker,
    "stop the registry": end_service("registry", signal.SIGTERM),
}
POINTS = frozenset(name for name in FAULTS if any(f" {at} " in name for at in ("between", "inside", "after")))
CLUSTER = tuple(name for name in FAULTS if name.startswith(("freeze", "kill a worker")))
"""Faults of drivers on a cluster."""
MIXED = ("stop the registry",)
"""Faults of runs with mixed records."""
DECK = tuple(name for name in FAULTS if name not in CLUSTER + MIXED)
"""Faults of every kind of run."""


def _kill_after_commit(scene: Scene, layer: LayerName, tables: list[str]) -> Commit | None:
    """Kill a layer at its next commit of a micro-batch to one of the tables, and return this commit.

    First, wait for the layers from which it reads, because nothing reaches it until they are up.
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
            if notes := notes_of(file):
                scene.supervisor.kill(layer)
                time.sleep(_SETTLE_S)
                return Commit(table, version, *notes[0])
            versions[table] += 1  # upkeep, or rows that were due by the clock
        time.sleep(_LOOK_S)
    return None


Look = Callable[[], list[str]]
"""Return the queries that are currently doing the specified work."""


@contextmanager
def _inside(scene: Scene, layers: Sequence[LayerName]) -> Iterator[Look]:
    """Yield a function that finds queries that are writing: uncommitted files, or open transactions."""
    tables = [name for layer in layers if layer != "export" for name in QUERIES[layer]]
    writing = Writing(scene.settings, tables)
    if "export" not in layers:
        yield writing.look
        return
    settings = scene.settings
    query_of = {settings.topic(topic): query for query, topic in EXPORTS.items()}
    places = [TopicPartition(topic, n) for topic in query_of for n in range(settings.kafka.topic_partitions)]
    with _consumer(scene, "read_uncommitted") as written, _consumer(scene, "read_committed") as stable:

        def look() -> list[str]:
            # Records that existed before and are unstable after: their transaction is open.
            ends = written.end_offsets(places)
            found = {one.topic for one, end in stable.end_offsets(places).items() if end < ends[one]}
            return writing.look() + [query_of[topic] for topic in sorted(found)]

        yield look


def _awaited(look: Look) -> list[str]:
    """Poll until something is found and return it, or return nothing if it does not appear in time."""
    deadline = time.monotonic() + POINT_TIMEOUT_S
    while not (found := look()) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    return found


def _passed(scene: Scene, before: Mapping[str, int]) -> list[str]:
    """Wait until another process has written for some of these queries, and return them."""
    deadline = time.monotonic() + UP_TIMEOUT_S
    while before and time.monotonic() < deadline:
        if found := [query for query, place in before.items() if _place(scene, query) > place]:
            return found
        time.sleep(_SETTLE_S)
    return []


def _place(scene: Scene, query: str) -> int:
    """Return a query's progress, a number that its next write increases."""
    if query in EXPORTS:
        return sent(scene.settings, f"gold.{query.partition('.')[2]}")
    return version_of(scene.settings, query)


def _limit(process: psutil.Process, soft: int) -> bool:
    """Set the maximum size of files that the process may write; return whether it still existed."""
    try:
        _, hard = process.rlimit(psutil.RLIMIT_FSIZE)
        process.rlimit(psutil.RLIMIT_FSIZE, (hard if soft == resource.RLIM_INFINITY else soft, hard))
    except psutil.Error:
        return False
    return True


@contextmanager
def _consumer(scene: Scene, isolation: str) -> Iterator[Any]:
    consumer = KafkaConsumer(
        bootstrap_servers=scene.settings.kafka.bootstrap_servers, group_id=None, isolation_level=isolation
    )
    try:
        yield consumer
    finally:
        consumer.close()
