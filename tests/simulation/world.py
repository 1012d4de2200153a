"""One small real lake, with a real broker, Redis and PostgreSQL, and a clock of its own.

Services and the session are shared by the stories of a process; the lake, the topics, and what is in Redis
and PostgreSQL are a story's own. Times are UTC. The clock begins at EPOCH, which lies ahead of any machine's:
what reads the machine's clock (Delta's commits, the leases) then sees the past, as it would in a life.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import psycopg
import redis
from delta.exceptions import DeltaConcurrentModificationException
from py4j.protocol import Py4JJavaError
from pydantic import SecretStr

from lakehouse.errors import LakehouseError, PositionError
from lakehouse.kafka.clients import Message
from lakehouse.kafka.topics import administering, create_topics
from lakehouse.layers import bronze, export, gold, silver
from lakehouse.layers.step import LAYERS, LayerName, Permitted, Step, StepMaker
from lakehouse.ops import retained
from lakehouse.stream import Source, Stream
from lakehouse.tables import Lake, commits, delta_internals
from lakehouse.testing.kills import CrashError
from tests import pipeline
from tests.pipeline import Coordinates, Raw, coordinates_of, path_of
from tests.redis_databases import url_of
from tests.simulation.model import Life, Sent, Taken
from tests.simulation.services import Shared
from tests.simulation.writes import Writes
from tests.streams import METRICS, METRICS_1M, SALES, TRANSACTIONS, under

EPOCH = datetime(2027, 1, 4, 12, tzinfo=UTC)
PARTITIONS = 2
_ANY_TIME = {
    "message.timestamp.before.max.ms": str(2**63 - 1),
    "message.timestamp.after.max.ms": str(2**63 - 1),
}
_REDIS = 9
_MOST_BATCHES = 60
_TRIES = 3
CONFLICTS = (Py4JJavaError, DeltaConcurrentModificationException)

_IDS = {"unique_by": {"transactions-topic": "transactionId"}}
FORMS: dict[str, tuple[Stream, dict[str, Any]]] = {
    "corrected": (TRANSACTIONS, {**_IDS, "sequence_by": {"transactions-topic": "version"}}),
    "unique": (TRANSACTIONS, _IDS),
    "plain": (TRANSACTIONS, {}),
    "sales": (SALES, {}),
    "windows": (
        replace(METRICS, gold=(METRICS_1M,)),
        {
            "emit": {"metrics_1m": "final"},
            "unique_by": {"metrics-events": "id"},
            "sequence_by": {"metrics-events": "version"},
        },
    ),
}
"""What a story's stream is: its tables, and the settings under which they are made."""


class StuckError(AssertionError):
    """A step did not come to rest, or failed again and again."""


@dataclass(frozen=True)
class Told:
    """A record that the broker has taken, as it was sent, with what its story says of it."""

    place: tuple[str, int, int]
    at: datetime
    raw: Raw
    fields: dict[str, Any] | None


class World:
    """The lake of one story; a Writes counts, or ends, what its processes write."""

    def __init__(self, given: Shared, form: str) -> None:
        stream, changes = FORMS[form]
        self.form = form
        self.shared = given
        self.directory = Path(tempfile.mkdtemp(prefix="story-", dir=given.home))
        self.now = EPOCH
        self.told: list[Told] = []
        self.done: list[str] = []
        self.notices: list[str] = []
        self.writes = Writes()
        self.wait_for_kill: tuple[int, bool] | None = None
        self.where = "nothing"
        self.foreign = 0
        self.unfinished: list[Callable[[], None]] = []
        self._decided_us = 0
        self.partitions = PARTITIONS
        self._base = stream
        self._made: Stream | None = None
        self._steps: dict[LayerName, list[Step]] = {}
        suffix = uuid.uuid4().hex[:8]
        names = {one.topic for one in stream.sources} | {
            table.export.topic for table in stream.tables if table.export.topic is not None
        }
        self.settings = given.settings.model_copy(
            update={
                "lake": str(self.directory / "lake"),
                "topics": {name: f"{name}-{suffix}" for name in names},
                "topic_partitions": PARTITIONS,
                "shuffle_partitions": 1,
                "redis_ttl_s": 100 * 365 * 86_400,  # Delta's own times are the machine's
                "redis_url": SecretStr(url_of(given.settings.redis_url.get_secret_value(), _REDIS)),
                "postgres_url": SecretStr(given.postgres),
                **changes,
            }
        )
        self.life = Life(self.settings)

    @property
    def stream(self) -> Stream:
        """The stream, as the settings make it now."""
        if self._made is None:
            self._made = under(self.settings, self._base)
        return self._made

    @property
    def source(self) -> Source:
        """Its only source."""
        return self.stream.sources[0]

    @property
    def topic(self) -> str:
        """The topic that it reads."""
        return self.settings.topic(self.source.topic)

    @property
    def lake(self) -> Lake:
        """The lake, by the session that all stories share."""
        return Lake(self.shared.spark, self.settings.lake)

    def path(self, table: str) -> Path:
        """Return where a table lies."""
        return path_of(self.settings, table)

    # The life of a story.

    def begin(self) -> None:
        """Make topics and an empty lake, and empty the stores."""
        with self.shared.timed("beginning"):
            own = [self.settings.topic(one.topic) for one in self.stream.sources]
            create_topics(self.settings.kafka, dict.fromkeys(own, PARTITIONS), _ANY_TIME)
            with redis.Redis.from_url(self.settings.redis_url.get_secret_value()) as client:
                client.flushdb()
            with psycopg.connect(self.shared.postgres, autocommit=True) as connection:
                connection.execute("DROP SCHEMA IF EXISTS gold CASCADE")
            self._lake_from_template()

    def _lake_from_template(self) -> None:
        found = self.shared.templates.get(self.form)
        if found is None:
            for maker in [one for layer in LAYERS[:3] for one in self._makers(layer)]:
                maker.make().close()
            found = self.shared.home / f"template-{self.form}"
            shutil.copytree(self.settings.lake, found)
            self.shared.templates[self.form] = found
        else:
            shutil.copytree(found, self.settings.lake)

    def end(self) -> None:
        """Close everything, and leave nothing."""
        with self.shared.timed("end"):
            self.restart()
            self.shared.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
            with suppress(Exception), administering(self.settings.kafka) as admin:
                admin.delete_topics(list(self.settings.topics.values()))
            shutil.rmtree(self.directory, ignore_errors=True)

    def restart(self) -> None:
        """Forget what the steps know, as the end of their process does."""
        for step in [one for steps in self._steps.values() for one in steps]:
            with suppress(Exception):
                step.close()
        self._steps.clear()

    # What actions are made of.

    def tell(self, raw: Raw, fields: dict[str, Any] | None) -> None:
        """Send a record, and wait until the broker has it."""
        at_ms, delivered = int(self.now.timestamp() * 1000), list[Message]()

        def note(error: object, message: Message) -> None:
            if error is not None:
                raise AssertionError(f"the broker has not taken a record: {error}")
            delivered.append(message)

        with self.shared.timed("send"):
            self.shared.producer.produce(
                self.topic,
                raw.value,
                raw.key,
                partition=-1 if raw.partition is None else raw.partition,
                headers=list(raw.headers),
                timestamp=at_ms,
                on_delivery=note,
            )
            self.shared.producer.flush(60)
        (sent,) = delivered
        place = self.topic, cast("int", sent.partition()), cast("int", sent.offset())
        self.told.append(Told(place, self.now, raw, fields))
        self.life.sent.append(Sent(self.source.table, place, at_ms, raw.key, raw.value, raw.headers))

    def tick(self) -> datetime:
        """Move the clock on by a second, and return what it shows."""
        self.now += timedelta(seconds=1)
        return self.now

    def decided_at(self) -> datetime:
        """Move the clock on, and return when a decision is made: later than any earlier one."""
        self._decided_us = max(pipeline.micros(self.tick()), self._decided_us + 1)
        return self.now

    @contextmanager
    def process(self, again: Callable[[], None] | None = None) -> Iterator[None]:
        """Do the block as a process, which a kill that waits ends; the next one knows its tables alone.

        `again` is what a person does at last, if the process was killed; null: nothing.
        """
        number, after = self.wait_for_kill or (0, False)
        self.wait_for_kill = None
        self.writes = replace(self.writes, kill_at=number, after=after, count=0, killed=None)
        try:
            looking = patch("lakehouse.sinks.to_redis._LOOK_EVERY_S", 0.0)
            with _clock(lambda: self.now), looking, self.writes.watched(lambda: self.where):
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
        """Let layers take so many micro-batches each, or come to rest; `one_by_one`: as small as can be."""
        for layer in layers:
            for number in range(len(self._makers(layer))):
                self._go(layer, number, batches, one_by_one=one_by_one)

    def _go(self, layer: LayerName, number: int, batches: int | None, *, one_by_one: bool) -> None:
        failures = 0
        left = _MOST_BATCHES if batches is None else batches
        while left > 0:
            try:
                step = self._stepped(layer)[number]
                self.where = step.name
                step.limit = 1 if one_by_one else None
                if step.is_held() or not self._take(step, layer):
                    break
                left -= 1
            except CrashError:
                raise
            except Exception as error:
                if self.writes.killed is not None:
                    raise CrashError from error
                failures += 1
                self.restart()
                if failures == _TRIES:
                    raise StuckError(f"{layer} fails: {type(error).__name__}: {str(error)[:600]}") from error
        if left == 0 and batches is None:
            raise StuckError(f"{layer} does not come to rest")

    def _take(self, step: Step, layer: LayerName) -> bool:
        with self.shared.timed(f"{layer} plan"):
            batch = step.plan({})
        if batch is not None:
            with self.shared.timed(f"{layer} write"), step.write(batch, self.tick()):
                return True
        ticker = step.ticker
        if ticker is not None and ticker.is_due(self.now):
            with self.shared.timed(f"{layer} tick"):
                ticker.tick(self.now)
        return False

    def _stepped(self, layer: LayerName) -> list[Step]:
        if layer not in self._steps:
            with self.shared.timed(f"{layer} start"):
                self._steps[layer] = [maker.make() for maker in self._makers(layer)]
        return self._steps[layer]

    def _makers(self, layer: LayerName) -> list[StepMaker]:
        lake, stream, settings = self.lake, self.stream, self.settings
        permitted = Permitted(notice=self.notices.append)
        match layer:
            case "bronze":
                return bronze.steps(lake, stream, settings, permitted)
            case "silver":
                return silver.steps(lake, stream, settings.bytes_per_batch, permitted)
            case "gold":
                return gold.steps(lake, stream, settings.bytes_per_batch)
            case "export":
                return export.steps(lake, stream, settings, permitted)

    def run_beside(self, layer: LayerName) -> None:
        """Plan a micro-batch of a layer, let another process run to rest, and write what was planned."""
        for number, first in enumerate(self._stepped(layer)):
            self.where = first.name
            batch = first.plan({})
            self._steps.pop(layer, None)
            self._go(layer, number, None, one_by_one=False)
            self._steps.pop(layer, None)
            if batch is None:
                continue
            # Which say that another process has gone on.
            with suppress(PositionError, *CONFLICTS), first.write(batch, self.tick()):
                pass
            first.close()

    @contextmanager
    def before_commit(self, number: int, work: Callable[[], None]) -> Iterator[None]:
        """Let another process work before the commit of this number of the block; 0: before none."""
        real, count = delta_internals.commit, 0

        def commit(*arguments: Any, **named: Any) -> int:
            nonlocal count
            count += 1
            if count == number:
                work()
            return real(*arguments, **named)

        with patch.object(delta_internals, "commit", commit):
            yield

    def change_settings(self, **changes: Any) -> None:
        """Go on under other settings, in a new process."""
        self.restart()
        self._made, self.settings = None, self.settings.model_copy(update=changes)
        self.life.settings = self.settings

    def note_landings(self) -> None:
        """Note when each record of bronze landed, which the oracle takes as given."""
        for row in pipeline.rows_of(self.settings, f"bronze.{self.source.table}"):
            self.life.landed[coordinates_of(row)] = row["ingested_at"]

    def judged(self) -> list[Coordinates]:
        """Return the records that silver has judged: its rows, and letters."""
        names = (f"silver.{self.source.table}", pipeline.DEAD_LETTERS)
        return [coordinates_of(row) for name in names for row in pipeline.rows_of(self.settings, name)]

    @contextmanager
    def retaining(self) -> Iterator[None]:
        """Note what retention takes in the block."""
        self.note_landings()
        try:
            yield
        finally:
            self._note_taken()

    def _note_taken(self) -> None:
        landed = retained.taken_of(self.lake, "bronze", self.source.table)
        clean = retained.taken_of(self.lake, "silver", self.source.table)
        kept = retained.taken_of(self.lake, "gold", self.stream.gold[0].name)
        times = [pipeline.micros(one.before) for one in (clean, kept) if one.before is not None]
        self.life.gold_us = (
            {} if kept.before is None else {self.stream.gold[0].name: pipeline.micros(kept.before)}
        )
        noted = pipeline.noted(self.settings, f"silver.{self.source.table}")
        ids = retained.ids_taken(self.lake, self.source).collect()
        self.life.taken[self.source.table].append(
            Taken(
                noted.get(f"silver.{self.source.table} landed", 0),
                max(times, default=None),
                None if clean.before is None else pipeline.micros(clean.before),
                {(one.topic, one.partition): one.last for one in landed.gone},
                frozenset(bytes(row.fingerprint) for row in ids),
                max(self._decided_us, pipeline.micros(self.now)),
            )
        )

    def rest(self) -> None:
        """Do again what was killed, and run all layers until nothing waits."""
        self.wait_for_kill = None
        unfinished, self.unfinished = self.unfinished, []
        for again in unfinished:
            again()
        with self.process():
            self.run(LAYERS)
            if self.form == "windows":  # whose living step may rest from its last look at the clock
                self.restart()
                self.run(LAYERS)

    def statuses(self) -> set[str]:
        """Return the statuses that letters have."""
        return {row["status"] for row in pipeline.rows_of(self.settings, pipeline.DEAD_LETTERS)}

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Note what the block refuses in words, which is an answer, too."""
        try:
            yield
        except LakehouseError as error:
            self.notices.append(f"refused: {str(error)[:300]}")


@contextmanager
def _clock(shown: Callable[[], datetime]) -> Iterator[None]:
    """Let commits note this clock's time; Delta's own notes in them stay the machine's."""

    class Clock:
        def time(self) -> float:
            return shown().timestamp()

    with patch.object(commits, "time", Clock()):
        yield
