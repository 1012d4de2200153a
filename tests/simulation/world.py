"""A small real lake, with a real broker, Redis and PostgreSQL, and its own clock.

The stories of a process share services and the session; each has its own lake, topics, and contents of Redis
and PostgreSQL. Times are UTC. The clock starts at EPOCH, which is ahead of any machine's clock. Code that
reads the machine's clock (Delta's commits, the leases) therefore sees a time in the past, as it would in real
life.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import psycopg
import redis
from pydantic import SecretStr
from pyspark.sql import Row

from lakehouse.common.errors import LakehouseError
from lakehouse.engine.layers import LAYERS, LayerName
from lakehouse.engine.layers.step import Permitted
from lakehouse.engine.ops_tables import retained
from lakehouse.settings import Settings
from lakehouse.settings.fields import merged
from lakehouse.sinks.redis import client as redis_client
from lakehouse.sinks.redis import rows as redis_sink
from lakehouse.sinks.redis import sink as to_redis
from lakehouse.storage.kafka.clients import Message
from lakehouse.storage.kafka.topics import administering, create_topics
from lakehouse.storage.tables import Lake, commits, delta_internals
from lakehouse.streams.definition import Source, Stream
from lakehouse.testing.kills import CrashError
from tests.simulation.compare import landings
from tests.simulation.forms import FORMS, Encoder, Said, Written
from tests.simulation.model import Life, Sent, Taken
from tests.simulation.services import Shared
from tests.simulation.stepping import Stepping
from tests.simulation.writes import Writes
from tests.support import pipeline
from tests.support.pipeline import Coordinates, coordinates_of, path_of
from tests.support.redis_databases import url_of
from tests.support.streams import under

EPOCH = datetime(2027, 1, 4, 12, tzinfo=UTC)
PARTITIONS = 2
ANY_TIME = {
    "message.timestamp.before.max.ms": str(2**63 - 1),
    "message.timestamp.after.max.ms": str(2**63 - 1),
}
_REDIS = 9
_EVICTED_EVERY_S = 600


@dataclass(frozen=True)
class Told:
    """A story's description of a record in the broker; `source` is its silver table."""

    source: str
    fields: Said | None


@dataclass(frozen=True)
class Copied:
    """A copy of the lake: its path, the history up to the copy, its settings, and other writers' changes."""

    lake: str
    life: Life
    settings: Settings
    foreign: set[str]


class World:
    """The lake of one story; `writes` counts its processes' writes, or ends one of the processes."""

    def __init__(self, given: Shared, form: str) -> None:
        stream, changes = FORMS[form]
        self.form = form
        self.shared = given
        self.directory = Path(tempfile.mkdtemp(prefix="story-", dir=given.home))
        self._now = EPOCH
        self.elapsed_s = 0.0
        self.evicted = 0
        self.told: list[Told] = []
        self.done: list[str] = []
        self.notices: list[str] = []
        self.writes = Writes()
        self.wait_for_kill: tuple[int, bool] | None = None
        self.wait_for_hold: tuple[int, Callable[[], None]] | None = None
        self.where = "nothing"
        self.foreign: set[str] = set()
        self.unfinished: list[Callable[[], None]] = []
        self._decided_us = 0
        self.partitions = PARTITIONS
        self._base = stream
        self._is_standing = False
        self._made: Stream | None = None
        suffix = uuid.uuid4().hex[:8]
        names = {one.topic for one in stream.sources} | {
            table.export.topic for table in stream.tables if table.export.topic is not None
        }
        self.settings = given.settings.changed(
            {
                "lake": str(self.directory / "lake"),
                "topics": {name: f"{name}-{suffix}" for name in names},
                "kafka.topic_partitions": PARTITIONS,
                "kafka.dead_letter_topic": f"letters-{suffix}",
                "spark.shuffle_partitions": 1,
                "redis.ttl_s": 100 * 365 * 86_400,  # Delta's own times are from the machine's clock
                "redis.url": SecretStr(url_of(given.settings.redis.url.get_secret_value(), _REDIS)),
                "postgres.url": SecretStr(given.postgres),
                "streams": {stream.name: changes},
                **({"schema_registry.url": given.registry().url} if "format" in changes else {}),
            }
        )
        self.life = Life(self.settings)
        self.permitted = Permitted(on_notice=self.notices.append)
        self.steps = Stepping(self)
        self.lakes = 1
        self.copied: Copied | None = None

    @property
    def now(self) -> datetime:
        """The clock's current time."""
        return self._now

    @now.setter
    def now(self, shown: datetime) -> None:
        """Set the clock; its monotonic counterpart never moves back."""
        self.elapsed_s += max(0.0, (shown - self._now).total_seconds())
        self._now = shown
        self.life.latest_us = max(self.life.latest_us, pipeline.micros(shown))

    @property
    def stream(self) -> Stream:
        """The stream under the current settings."""
        if self._made is None:
            self._made = under(self.settings, self._base)
        return self._made

    @property
    def source(self) -> Source:
        """The first source, which is the only one in most forms."""
        return self.stream.sources[0]

    def side(self, number: int) -> Source:
        """Return the source with this number, or the only one."""
        return self.stream.sources[number % len(self.stream.sources)]

    @cached_property
    def encoder(self) -> Encoder:
        """The encoder for records in the format of the first source."""
        return Encoder(self.source)

    @property
    def lake(self) -> Lake:
        """The lake, on the session that all stories share."""
        return Lake(self.shared.spark, self.settings.lake)

    def path(self, table: str) -> Path:
        """Return the path of a table."""
        return path_of(self.settings, table)

    # The life of a story.

    def begin(self) -> None:
        """Create topics and an empty lake, and empty the stores."""
        with self.shared.timed("beginning"):
            own = [self.settings.topic(one.topic) for one in self.stream.sources]
            create_topics(self.settings.kafka.access, dict.fromkeys(own, PARTITIONS), ANY_TIME)
            with redis.Redis.from_url(self.settings.redis.url.get_secret_value()) as client:
                client.flushdb()
            with psycopg.connect(self.shared.postgres, autocommit=True) as connection:
                connection.execute("DROP SCHEMA IF EXISTS gold CASCADE")
            self._lake_from_template()

    def _lake_from_template(self) -> None:
        found = self.shared.templates.get(self.form)
        if found is None:
            self.steps.make(LAYERS[:3])
            found = self.shared.home / f"template-{self.form}"
            shutil.copytree(self.settings.lake, found)
            self.shared.templates[self.form] = found
        else:
            shutil.copytree(found, self.settings.lake)

    def end(self) -> None:
        """Close and remove everything."""
        with self.shared.timed("end"):
            self.restart()
            self.shared.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
            with suppress(Exception), administering(self.settings.kafka.access) as admin:
                admin.delete_topics([*self.settings.topics.values(), self.settings.kafka.dead_letter_topic])
            shutil.rmtree(self.directory, ignore_errors=True)

    def restart(self) -> None:
        """Discard the steps' state, as if their process had ended."""
        self.steps.close()

    # Building blocks of actions.

    def tell(self, source: Source, written: Written) -> None:
        """Send a record to a source, and wait until the broker has acknowledged it."""
        topic, raw = self.settings.topic(source.topic), written.raw
        at_ms, delivered = int(self.now.timestamp() * 1000), list[Message]()

        def note(error: object, message: Message) -> None:
            if error is not None:
                raise AssertionError(f"the broker has not taken a record: {error}")
            delivered.append(message)

        with self.shared.timed("send"):
            self.shared.producer.produce(
                topic,
                raw.value,
                raw.key,
                partition=-1 if raw.partition is None else raw.partition,
                headers=list(raw.headers),
                timestamp=at_ms,
                on_delivery=note,
            )
            self.shared.producer.flush(60)
        (sent,) = delivered
        place = topic, cast("int", sent.partition()), cast("int", sent.offset())
        self.told.append(Told(source.table, written.fields))
        said = written.says, written.refused
        self.life.sent.append(Sent(source.table, place, at_ms, raw.key, raw.value, raw.headers, *said))

    def tick(self) -> datetime:
        """Advance the clock by a second, and return its time."""
        self.now += timedelta(seconds=0 if self._is_standing else 1)
        return self.now

    def decided_at(self) -> datetime:
        """Advance the clock, and return a time for a decision that is later than all earlier decisions."""
        self._decided_us = max(pipeline.micros(self.tick()), self._decided_us + 1)
        return self.now

    @contextmanager
    def process(self, again: Callable[[], None] | None = None) -> Iterator[None]:
        """Run the block as a process, which a pending kill ends; the next process knows only its tables.

        `again` repeats the action at the end if the process was killed, as a person would. It may be None.
        """
        number, after = self.wait_for_kill or (0, False)
        hold_at, meanwhile = self.wait_for_hold or (0, self.restart)
        self.wait_for_kill = self.wait_for_hold = None
        killing = replace(self.writes, kill_at=number, after=after, count=0, killed=None)
        self.writes = replace(killing, hold_at=hold_at, meanwhile=meanwhile, held=None)
        try:
            with _clocks(self), self.writes.watched(lambda: self.where):
                yield
        except CrashError:
            if self.writes.killed is None:
                raise
        except Exception:
            if self.writes.killed is None:
                raise
        finally:
            if self.writes.killed is not None:
                self.done.append(self.writes.killed)
                self.restart()
                if again is not None:
                    self.unfinished.append(again)

    def run(
        self, layers: Sequence[LayerName], batches: int | None = None, *, one_by_one: bool = False
    ) -> None:
        """Run layers for some micro-batches each, or to rest; with `one_by_one`, as small as possible."""
        self.steps.run(layers, batches, one_by_one=one_by_one)

    def run_beside(self, layer: LayerName) -> None:
        """Plan a micro-batch of a layer, let another process run to rest, and write the planned one."""
        self.steps.run_beside(layer)

    @contextmanager
    def before_commit(self, number: int, work: Callable[[], None]) -> Iterator[None]:
        """Do another process's work before the block's commit with this number; 0: before none."""
        real, count = delta_internals.commit, 0

        def commit(*arguments: Any, **named: Any) -> int:
            nonlocal count
            count += 1
            if count == number:
                work()
            return real(*arguments, **named)

        with patch.object(delta_internals, "commit", commit):
            yield

    def another_lake(self) -> str:
        """Return a path for another lake of this story."""
        self.lakes += 1
        return str(self.directory / f"lake-{self.lakes}")

    def change_stream(self, keys: Mapping[str, Any]) -> None:
        """Continue with other keys of the stream, in a new process."""
        self.change_settings({"streams": merged(self.settings.streams, {self.stream.name: keys})})

    def change_settings(self, changes: Mapping[str, Any]) -> None:
        """Continue with other settings, in a new process."""
        self.restart()
        self._made, self.settings = None, self.settings.changed(changes)
        self.life.settings = self.settings

    def note_landings(self) -> None:
        """Record when each bronze record landed, which is an input of the oracle."""
        self.life.landed |= landings(self.settings, self.stream)

    def judged(self, source: Source) -> list[Coordinates]:
        """Return the records of a source that silver has judged: those with rows or letters."""
        names, topic = (f"silver.{source.table}", pipeline.DEAD_LETTERS), self.settings.topic(source.topic)
        found = (coordinates_of(row) for name in names for row in pipeline.rows_of(self.settings, name))
        return [place for place in found if place[0] == topic]

    def processed(self, source: Source) -> int:
        """Return the latest landing, in microseconds, that silver has recorded as processed; 0: none."""
        table = f"silver.{source.table}"
        return pipeline.noted(self.settings, table).get(f"{table} landed", 0)

    @contextmanager
    def retaining(self) -> Iterator[None]:
        """Record what retention deletes during the block."""
        self.note_landings()
        known = {source.table: self._ids_taken(source) for source in self.stream.sources}
        try:
            yield
        finally:
            self._note_taken(known)

    def _ids_taken(self, source: Source) -> set[Row]:
        """Return the ids whose data retention has deleted, with retention's notes about them."""
        return set(retained.ids_taken(self.lake, source).collect())

    def _note_taken(self, known: Mapping[str, set[Row]]) -> None:
        table, names = self.stream.gold[0], [source.table for source in self.stream.sources]  # as in Maintain
        kept = retained.taken_of(self.lake, "gold", table.name).before
        clean = {name: retained.taken_of(self.lake, "silver", name).before for name in names}
        times = [pipeline.micros(before) for before in clean.values() if before is not None]
        if kept is not None:  # a later record must not be counted together with a deleted row
            self.life.gold_us = {table.name: pipeline.micros(kept)}
            times.append(pipeline.micros(kept + table.merge_radius))
        for source in self.stream.sources:
            before = clean[source.table]
            gone = retained.taken_of(self.lake, "bronze", source.table).gone
            ids = self._ids_taken(source) - known[source.table]
            self.life.taken[source.table].append(
                Taken(
                    self.processed(source),
                    max(times, default=None),
                    None if before is None else pipeline.micros(before),
                    {(one.topic, one.partition): one.last for one in gone},
                    frozenset(bytes(row.fingerprint) for row in ids),
                    source.sequence_by,
                    max(self._decided_us, pipeline.micros(self.now)),
                )
            )

    def rest(self) -> None:
        """Redo killed actions, and run all layers until nothing is left to do.

        Just enough time passes for evicted rows to be written again.
        """
        self.wait_for_kill = None
        self.elapsed_s += _EVICTED_EVERY_S
        unfinished, self.unfinished = self.unfinished, []
        for again in unfinished:
            again()
        with self.process():
            self.run(LAYERS)
            if self.form in {"windows", "calls"}:  # its step may not have checked the clock since
                self.restart()
                self._is_standing = True  # the clock does not advance until everything is compared
                self.run(LAYERS)

    def move_on(self) -> None:
        """Let the clock advance again after a rest."""
        self._is_standing = False

    def statuses(self) -> set[str]:
        """Return the statuses of the letters."""
        return {row["status"] for row in pipeline.rows_of(self.settings, pipeline.DEAD_LETTERS)}

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Record errors that the block raises with a message; they are valid results, too."""
        try:
            yield
        except LakehouseError as error:
            self.notices.append(f"refused: {str(error)[:300]}")


@contextmanager
def _clocks(world: World) -> Iterator[None]:
    """Make commits and Redis checks use the world's time, and make Redis report its evicted keys.

    Delta's own records keep the machine's time.
    """

    class Clock:
        def time(self) -> float:
            return world.now.timestamp()

        def monotonic(self) -> float:
            return world.elapsed_s

    def told(client: redis.Redis) -> dict[str, Any]:
        said = redis_client.told(client)
        return {**said, "evicted_keys": int(said.get("evicted_keys", 0)) + world.evicted}

    with (
        patch.object(commits, "time", Clock()),
        patch.object(to_redis, "time", Clock()),
        patch.object(to_redis, "_LOOK_EVERY_S", 0.0),
        patch.object(redis_sink, "told", told),
    ):
        yield
