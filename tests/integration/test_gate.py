"""With --gate, gold is exported only while its suites hold; records continue to land."""

from __future__ import annotations

import json
import threading
from collections import Counter
from datetime import datetime

import pytest
from pyspark.sql import SparkSession

from lakehouse.common.events import Kind
from lakehouse.dev.samples.loads import Load, send
from lakehouse.engine.layers import LAYERS
from lakehouse.engine.ops_tables.event_table import newest
from lakehouse.engine.runtime.runner import RunOptions, run
from lakehouse.engine.runtime.signals import Stop
from lakehouse.engine.runtime.triggers import AVAILABLE_NOW
from lakehouse.operations.catalog.spark_sql import ask
from lakehouse.operations.quality.gate import SuiteGate
from lakehouse.settings import Settings
from lakehouse.storage.kafka.topics import create_topics
from lakehouse.storage.tables import Lake
from lakehouse.streams.definition import Stream
from tests.support import pipeline
from tests.support.commands import Ended, run_command
from tests.support.pipeline import await_
from tests.support.settings import MakeSettings
from tests.support.streams import STREAMS, TRANSACTIONS

pytestmark = pytest.mark.soak

GOLD, SILVER = "gold.user_transactions_5m", "silver.transactions"
STREAM = (TRANSACTIONS,)
INSERT_NOBODY = "INSERT INTO {gold} SELECT 'nobody', window_start, window_end, 1, 0 FROM {gold} LIMIT 1"


class Gated:
    """A lake of transactions whose gold is exported through a gate; `said` are the gate's notices."""

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        self.spark = spark
        self.settings = settings
        self.said: list[str] = []
        self._seed = 0
        self._waiting: list[str] = []

    def command(self, *arguments: str) -> Ended:
        return run_command(environment_of(self.settings), *arguments, spark=self.spark)

    def catch_up(self) -> None:
        """Run the command, and note what it says about the gate."""
        stream = ("--stream", "transactions")
        ended = self.command("run", "all", *stream, "--trigger", AVAILABLE_NOW, "--gate")
        assert ended.returncode == 0, ended.stderr
        self.said += [line for line in ended.stdout.splitlines() if line.startswith("gate of ")]

    def export(self) -> None:
        """Run the export alone."""
        lake = Lake(self.spark, self.settings.lake)
        gate = SuiteGate(lake, STREAMS, self.settings, self.said.append)
        run(lake, STREAM, ["export"], self.settings, RunOptions(AVAILABLE_NOW, gate=gate))

    def run_live(self, stop: Stop) -> None:
        lake = Lake(self.spark, self.settings.lake)
        self._gate = SuiteGate(lake, STREAMS, self.settings, self.said.append)
        run(
            lake, STREAM, LAYERS, self.settings, RunOptions("200 ms", gate=self, gate_interval_s=1, stop=stop)
        )

    def check(self, stream: Stream, now: datetime) -> bool:
        while self._waiting:
            self.sql(self._waiting.pop())
        return self._gate.check(stream, now)

    def produce(self) -> None:
        self._seed += 1
        assert send(Load("transactions", 200, seed=self._seed), self.settings).failed == 0

    def count(self, table: str) -> int:
        return len(pipeline.rows_of(self.settings, table))

    def sent(self) -> Counter[int | None]:
        """Return how often each count has been sent, with None for a row that was withdrawn."""
        topic = self.settings.topic("aggregated-transactions")
        records = pipeline.read_topic(self.settings.kafka.bootstrap_servers, topic)
        return Counter(
            None if record.value is None else json.loads(record.value)["count"] for record in records
        )

    def sql(self, statement: str) -> None:
        """Change gold as a user would, without waiting until nothing else is writing to it."""
        gold = f"delta.`{pipeline.path_of(self.settings, GOLD)}`"
        ask(self.spark, statement.format(gold=gold), limit=1, write=True)

    def sql_before_the_next_look(self, statement: str) -> None:
        """Change gold just before a live run's gate looks: a change between look and export would be sent."""
        self._waiting.append(statement)

    def health(self) -> tuple[int, list[str]]:
        """Return the exit code of `lakehouse status --exit-code`, and why the stream's gate is closed."""
        ended = self.command("status", "--stream", "transactions", "--exit-code", "--format", "json")
        gate = json.loads(ended.stdout)["streams"][0]["gate"]
        assert gate["is_open"] is not bool(ended.returncode)
        return ended.returncode, gate["reasons"]


def environment_of(settings: Settings) -> dict[str, str]:
    return {
        "LAKEHOUSE_HOME": str(settings.home),
        "LAKEHOUSE_LAKE": settings.lake,
        "LAKEHOUSE_KAFKA_BOOTSTRAP_SERVERS": settings.kafka.bootstrap_servers,
        "LAKEHOUSE_REDIS_URL": settings.redis.url.get_secret_value(),
        "LAKEHOUSE_TOPICS": json.dumps(settings.topics),
        "COLUMNS": "300",
    }


@pytest.fixture
def gated(nameless: SparkSession, make_settings: MakeSettings) -> Gated:
    settings = make_settings()
    topics = {settings.topic(name): 2 for stream in STREAM for name in stream.topics}
    create_topics(settings.kafka.access, topics)
    return Gated(nameless, settings)


@pytest.mark.slow
def test_a_catch_up_lands_everything_and_exports_nothing_while_a_suite_does_not_hold(gated: Gated) -> None:
    gated.produce()
    gated.catch_up()
    before = gated.sent()
    assert before.total() == gated.count(GOLD)
    assert gated.said == []

    gated.sql(INSERT_NOBODY)
    landed = gated.count(SILVER)
    gated.produce()
    gated.catch_up()

    assert gated.count(SILVER) > landed
    assert gated.sent() == before
    (closed,) = gated.said
    assert closed.startswith("gate of transactions closed; nothing is exported: gold.user_transactions_5m: ")
    code, reasons = gated.health()
    assert code == 1
    assert reasons[0].startswith("gold.user_transactions_5m: ")
    gated.sql(INSERT_NOBODY.replace("nobody", "nobody else"))
    gated.export()
    assert len(gated.said) == 1  # a new run knows this; more such rows are no news

    gated.sql("DELETE FROM {gold} WHERE user_id LIKE 'nobody%'")
    gated.export()

    assert gated.said[1:] == ["gate of transactions open again"]
    assert gated.health() == (0, [])
    assert gated.sent() > before
    assert 0 not in gated.sent()  # the wrong row has never left
    opened, noted = newest(gated.settings.lake, kinds=[Kind.GATE], limit=10)  # by the two commands
    assert (opened.stream, opened.message) == ("transactions", "gate of transactions open")
    assert noted.message == closed
    assert [*json.loads(noted.details or "")["reasons"]] == reasons


@pytest.mark.slow
def test_a_live_run_exports_by_itself_as_soon_as_the_data_is_right(gated: Gated) -> None:
    stop = Stop()
    running = threading.Thread(target=gated.run_live, args=(stop,))
    running.start()
    try:
        gated.produce()
        await_(gated.sent)
        gated.sql_before_the_next_look(INSERT_NOBODY)
        await_(lambda: len(gated.said) == 1)
        before = gated.sent()
        landed = gated.count(SILVER)
        gated.produce()
        await_(lambda: gated.count(SILVER) > landed)
        assert gated.sent() == before
        gated.sql("DELETE FROM {gold} WHERE user_id = 'nobody'")
        await_(lambda: gated.sent() > before)
    finally:
        stop.request()
        running.join(300)
    assert not running.is_alive()

    assert gated.said[1:] == ["gate of transactions open again"]
    assert 0 not in gated.sent()
