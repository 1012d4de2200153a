"""A run: the pipeline starts, faults follow a seeded schedule, and then it is left undisturbed and checked.

    outcome = run_chaos(home, Plan(seed=1, rate=50, seconds=300))
    outcome.differences                                            empty: nothing was lost or duplicated

Everything that a run starts ends with it, whatever happens, and every wait in it is bounded.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Literal, get_args

from kafka import KafkaConsumer
from kafka.structs import TopicPartition
from pydantic import SecretStr

from lakehouse.common.errors import ServiceError
from lakehouse.engine.layers import LAYERS
from lakehouse.settings import Settings
from lakehouse.settings.fields import merged
from lakehouse.settings.keys import all_keys
from lakehouse.storage.kafka.topics import create_topics
from tests.chaos import mixed
from tests.chaos.checks import Books, audit_differences, differences
from tests.chaos.faults import DECK, FAULTS, POINTS, Outage, Scene
from tests.chaos.files import BRONZE, TABLES, behind
from tests.chaos.load import Feeder
from tests.chaos.services import OwnServices
from tests.chaos.supervisor import ALL, Exit, Shift, Supervisor
from tests.support.cluster import Cluster
from tests.support.pipeline import rows_of, versions
from tests.support.processes import LAKEHOUSE, Place

_ATTEMPTS = 5
_UP_TIMEOUT_S = 600.0
_BACK_TIMEOUT_S = 120.0
_CATCH_UP_TIMEOUT_S = 1200.0
_STOP_TIMEOUT_S = 180.0
_LOOK_S = 1.0
# Calls close within seconds, and products often cross the threshold.
_STREAMS = {"calls": {"gap": "3s", "grace": "5s"}, "sales": {"threshold": 100}}


Way = Literal["layers", "together", "turns", "cluster"]
WAYS: tuple[Way, ...] = get_args(Way)
_LIVE = ["--trigger", "1 second"]
_APART: Shift = {layer: [LAKEHOUSE, "run", layer, *_LIVE] for layer in LAYERS}
_TOGETHER: Shift = {ALL: [LAKEHOUSE, "run", "all", *_LIVE]}
_PROPERTIES = ".venv/share/lakehouse/cluster.properties"
_ON_CLUSTER = {
    "spark.cores.max": "2",  # an executor on each worker
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.log.level": "ERROR",
}


@dataclass(frozen=True)
class Plan:
    """The plan of a run: all faults in `deck`, over and over for `seconds`, or once if `seconds` is 0.

    `rate` is in events per second, of which the share `poison` is poison. `quiet_s` is the longest pause
    between two faults, and `calm` is the probability that all layers may recover before the next fault, which
    can otherwise hit a layer that is starting. The `way` decides whether each layer has its own process, or
    one process runs all layers, or these two alternate: when a process ends, the others are ended, too, and
    the other way follows. With `cluster`, each layer's job is submitted to the run's own standalone cluster.
    For `mixed`, see tests/chaos/mixed.py.
    """

    seed: int
    rate: float
    seconds: float = 0.0
    deck: Sequence[str] = DECK
    shuffled: bool = True
    poison: float = 0.05
    quiet_s: float = 6.0
    calm: float = 0.5
    outage: Outage = field(default_factory=Outage)
    way: Way = "layers"
    mixed: bool = False

    def shifts(self, cluster: Cluster | None) -> list[Shift]:
        """Return the sets of processes that run together; if there are several sets, they take turns."""
        if cluster is not None:
            return [{layer: _submitted(layer, cluster) for layer in LAYERS}]
        return {"layers": [_APART], "together": [_TOGETHER], "turns": [_TOGETHER, _APART]}[self.way]


@dataclass
class Outcome:
    """The results. `faults` and `misses` are counts by name; missed points are tried again."""

    books: Books = field(default_factory=Books)
    faults: Counter[str] = field(default_factory=Counter)
    misses: Counter[str] = field(default_factory=Counter)
    starts: Mapping[str, int] = field(default_factory=dict)
    exits: Sequence[Exit] = ()
    back_s: Mapping[str, Sequence[float]] = field(default_factory=dict)
    faults_s: float = 0.0
    caught_up_s: float = 0.0
    differences: list[str] = field(default_factory=list)


def run_chaos(home: Path, plan: Plan, say: Callable[[str], None] = lambda _text: None) -> Outcome:
    """Run the plan in `home`, which should be empty, and return the results."""
    outcome = Outcome()
    with OwnServices(home / "services", with_registry=plan.mixed) as services:
        place = Place(home, services.endpoints, services.endpoints.redis, "chaos")
        database, chosen = services.postgres.url(), dict[str, Any]()
        if services.registry is not None:
            chosen |= mixed.settings_for(services.registry.access.url)
        chosen["streams"] = merged(_STREAMS, chosen.get("streams", {}))
        settings = place.settings({**chosen, "postgres.url": SecretStr(database)})
        environment = place.environment | {
            all_keys()[name].variable: json.dumps(value) if isinstance(value, dict) else str(value)
            for name, value in {**chosen, "postgres.url": database}.items()
        }
        create_topics(
            services.endpoints.access,
            dict.fromkeys(place.topics.values(), settings.kafka.topic_partitions),
        )
        with (
            Feeder(settings, rate=plan.rate, seed=plan.seed, poison=plan.poison) as feeder,
            Cluster(home / "cluster", cores=6) if plan.way == "cluster" else nullcontext() as cluster,
            Supervisor(plan.shifts(cluster), environment | _secret_of(cluster)) as supervisor,
        ):
            rng = Random(plan.seed)
            scene = Scene(settings, services, supervisor, rng, plan.outage, cluster)
            if not supervisor.await_up(LAYERS, _UP_TIMEOUT_S):
                raise ServiceError(f"the layers did not come up; those that ended: {supervisor.exits}")
            say("all layers are up")
            began = time.monotonic()
            for name in _schedule(plan, rng):
                _bring_about(name, scene, outcome, say)
                if rng.random() < plan.calm:
                    supervisor.await_up(LAYERS, _BACK_TIMEOUT_S)
            if not plan.seconds:
                _make_up_for_misses(plan, scene, outcome, say)
            outcome.faults_s = time.monotonic() - began
            feeder.stop()
            say(f"{feeder.given:,} events were given to the client; catching up")
            outcome.differences += await_end(settings, outcome)
            say(f"caught up in {outcome.caught_up_s:.1f} s")
            outcome.differences += supervisor.stop(_STOP_TIMEOUT_S)
        outcome.starts, outcome.back_s, outcome.exits = supervisor.starts, supervisor.back_s, supervisor.exits
        _keep_words(outcome.exits, home / "exits")
        outcome.differences += _unclear(outcome.exits)
        outcome.books, found = differences(settings)
        outcome.differences += found
        outcome.differences += audit_differences(environment, home / "audit")
    return outcome


def _secret_of(cluster: Cluster | None) -> dict[str, str]:
    return {} if cluster is None else cluster.environment


def _submitted(layer: str, cluster: Cluster) -> list[str]:
    options = _ON_CLUSTER | {"spark.driver.host": cluster.driver_host}
    conf = [word for name, value in options.items() for word in ("--conf", f"{name}={value}")]
    where = ["--master", cluster.master, "--deploy-mode", "client", "--properties-file", _PROPERTIES]
    return ["spark-submit", *where, *conf, f"jobs/{layer}.py", *_LIVE]


def _schedule(plan: Plan, rng: Random) -> Iterator[str]:
    """Yield names of faults, with pauses between them: each fault once per deck, until the time is up."""
    deadline = time.monotonic() + plan.seconds
    while True:
        deck = list(plan.deck)
        if plan.shuffled:
            rng.shuffle(deck)
        for name in deck:
            if plan.seconds and time.monotonic() > deadline:
                return
            yield name
            time.sleep(rng.uniform(0, plan.quiet_s))
        if not plan.seconds:
            return


def _bring_about(name: str, scene: Scene, outcome: Outcome, say: Callable[[str], None]) -> None:
    for _ in range(_ATTEMPTS if name in POINTS else 1):
        result = FAULTS[name](scene)
        say(f"{name}: {'' if result.hit else 'missed; '}{result.note}")
        (outcome.faults if result.hit else outcome.misses)[name] += 1
        if result.hit:
            return


def _make_up_for_misses(plan: Plan, scene: Scene, outcome: Outcome, say: Callable[[str], None]) -> None:
    """Retry the points that were missed, if the deck is used only once."""
    for _ in range(_ATTEMPTS):
        for name in plan.deck:
            if name in POINTS and not outcome.faults[name]:
                _bring_about(name, scene, outcome, say)


def await_end(settings: Settings, outcome: Outcome) -> list[str]:
    """Wait until every query has read everything and every call is closed; return anything outstanding."""
    began = time.monotonic()
    ends = _ends(settings)
    seen: Mapping[str, int] = {}
    waiting = ["the first look"]
    while time.monotonic() < began + _CATCH_UP_TIMEOUT_S:
        before, seen = seen, versions(settings, TABLES)
        waiting = behind(settings, ends)
        if not waiting and "open" in {row["status"] for row in rows_of(settings, "gold.call_records")}:
            waiting = ["gold.call_records has open calls"]
        if not waiting and before == seen:
            outcome.caught_up_s = time.monotonic() - began
            return []
        time.sleep(_LOOK_S)
    outcome.caught_up_s = time.monotonic() - began
    return [f"not caught up after {_CATCH_UP_TIMEOUT_S:.0f} s: {', '.join(waiting)}"]


def _ends(settings: Settings) -> dict[str, dict[int, int]]:
    """Return the input topics' ends by partition, under the topics' default names."""
    consumer = KafkaConsumer(bootstrap_servers=settings.kafka.bootstrap_servers, group_id=None)
    try:
        return {
            topic: {
                place.partition: end
                for place, end in consumer.end_offsets(
                    [TopicPartition(settings.topic(topic), n) for n in range(settings.kafka.topic_partitions)]
                ).items()
            }
            for topic in BRONZE.values()
        }
    finally:
        consumer.close()


def _unclear(exits: Sequence[Exit]) -> Iterator[str]:
    """Return the processes that ended without a single clear line that tells a user what to do."""
    for one in exits:
        errors = [line for line in one.stderr if line.startswith("error: ")]
        text = "\n".join([*one.stdout, *one.stderr])
        if "Traceback" in text or len(errors) != 1 or one.code == 0:
            yield (
                f"{one.name} ended with {one.code} after {one.condition}, without one clear "
                f"line: {text[-1500:]}"
            )


def _keep_words(exits: Sequence[Exit], directory: Path) -> None:
    """Write the output of each process that ended by itself to a separate file."""
    directory.mkdir()
    for number, one in enumerate(exits):
        name = f"{number:03}-{one.name}-{one.condition.replace(' ', '-')}-{one.code}.txt"
        (directory / name).write_text("\n".join([*one.stdout, "", *one.stderr, ""]), encoding="utf-8")
