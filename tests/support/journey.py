"""One lake with every stream, and its history in chapters, with a real Kafka and Redis.

    first     300 sample events of each stream, some malformed or repeated; every layer catches up
    repeated  the same layers again: nothing waits, so nothing is written
    crashed   300 more events, through all layers together; in each layer one step fails after writing
              a micro-batch, is recreated, and continues after it

At the end, everything is compared with the oracles in tests/oracles, before any test changes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from pyspark.sql import SparkSession

from lakehouse.dev.samples.loads import GENERATORS, Load, send
from lakehouse.engine.layers import LAYERS, LayerName
from lakehouse.engine.runtime.runner import BatchDone, RunOptions, run, utc_now
from lakehouse.engine.runtime.triggers import AVAILABLE_NOW
from lakehouse.settings import Settings
from lakehouse.storage.kafka.topics import create_topics
from lakehouse.storage.tables import Lake
from lakehouse.streams.registry import load
from lakehouse.testing.kills import CrashError
from tests.chaos.checks import Books, differences
from tests.chaos.files import TABLES
from tests.support import pipeline
from tests.support.pipeline import await_
from tests.support.streams import STREAMS

EVENTS = 300
MALFORMED = 45
"""Events of each stream, sent twice; there are more malformed events than kinds of them."""

SHAPES: Mapping[str, Mapping[str, float]] = {"sales": {"tombstones": 0.02}, "transactions": {"hot_user": 0.5}}
CRASHES: Mapping[LayerName, str] = {
    "bronze": "bronze.call_metrics",
    "silver": "silver.sales_events",
    "gold": "gold.metrics_summary_10m",
    "export": "export.metrics_1m",
}
"""The query of each layer that crashes."""

_PATIENCE_S = 5  # a call is due three seconds after its last event (see the fixture)


@dataclass
class Journey:
    """The records made at the end of each chapter; the lake itself may have changed since.

    `done` counts micro-batches by query and number, `notices` contains the run's notices, and `messages`
    counts records by output topic.
    """

    spark: SparkSession
    settings: Settings
    done: dict[str, Counter[tuple[str, int | None]]] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    versions: dict[str, dict[str, int]] = field(default_factory=dict)
    messages: dict[str, dict[str, int]] = field(default_factory=dict)
    books: Books = field(default_factory=Books)
    differences: list[str] = field(default_factory=list)

    def travel(self) -> None:
        """Go through all chapters."""
        topics = {self.settings.topic(name): 2 for one in STREAMS for name in one.topics}
        create_topics(self.settings.kafka.access, topics)
        loaded = self._load(seed=1)
        for chapter in ("first", "repeated"):
            self.done[chapter] = Counter()
            self._run(chapter, ["bronze", "silver"])
            self._await_calls(loaded)
            self._run(chapter, ["gold", "export"])
            self._note(chapter)
        loaded = self._load(seed=2)
        self.done["crashed"] = Counter()
        self._run("crashed", LAYERS, crashes=set(CRASHES.values()))
        self._await_calls(loaded)
        self._run("crashed", LAYERS)  # closes the calls
        self._note("crashed")
        self.books, self.differences = differences(self.settings)

    def _load(self, seed: int) -> datetime:
        for stream in GENERATORS:
            shape = SHAPES.get(stream, {})
            load = Load(stream, EVENTS, seed=seed, malformed=MALFORMED / EVENTS, duplicates=0.05, shape=shape)
            assert send(load, self.settings).failed == 0
        return utc_now()

    def _await_calls(self, loaded: datetime) -> None:
        """Wait until every call is due before gold is written, because all calls are closed in the oracle."""
        await_(lambda: utc_now() > loaded + timedelta(seconds=_PATIENCE_S))

    def _run(self, chapter: str, layers: Sequence[LayerName], crashes: Collection[str] = ()) -> None:
        """Catch up; each query of `crashes` fails once, after writing its first micro-batch."""
        waiting = set(crashes)

        def on_batch(done: BatchDone) -> None:
            self.done[chapter][done.query, done.batch] += 1
            if done.query in waiting:
                waiting.remove(done.query)
                raise CrashError(done.query)

        run(
            Lake(self.spark, self.settings.lake),
            load(self.settings),
            layers,
            self.settings,
            RunOptions(AVAILABLE_NOW, on_batch=on_batch, on_notice=self.notices.append),
        )

    def _note(self, chapter: str) -> None:
        self.versions[chapter] = pipeline.versions(self.settings, TABLES)
        names = [table.export.topic for one in STREAMS for table in one.tables if table.export.topic]
        servers = self.settings.kafka.bootstrap_servers
        self.messages[chapter] = {
            name: len(pipeline.read_topic(servers, self.settings.topic(name))) for name in names
        }
