"""Many small cases through the pipeline at once, each as copies in several orders and cuts.

A case is a list of events. A copy of it is the same events in some order and cut into micro-batches in some
way: all at once, in a few pieces, spread over all of them. A copy's names (a service, a product, a user)
begin with the copy's own name, so that one run of the pipeline has room for all copies of all cases; a
micro-batch is what they put into one bronze commit of a source. Whatever the order in which they arrive, the
events of a copy have offsets in the order of the case, as if partitions were read from their ends.

Half-way and at the end the last micro-batch of every query is run again, as after a crash.

    cases = generated(st.lists(EVENTS, min_size=1, max_size=12), 100)
    outcome = run_copies(spark, settings, SALES, copies_of(cases, seed=1), to_raw)
    outcome.accepted("sales_events", Sale)   the clean records, as the oracle judges them
    outcome.rows["gold.product_sales"]       what the pipeline has made of them
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Generic, TypeVar

import hypothesis
from hypothesis import HealthCheck, Phase, given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from lakehouse.settings import Settings
from lakehouse.stream import Stream
from tests import pipeline, verdicts
from tests.oracles.judging import Event, Judged
from tests.pipeline import DEAD_LETTERS, Coordinates, Raw, Row

BATCHES = 6
PIECES = (1, 3, BATCHES)

T = TypeVar("T")
E = TypeVar("E", bound=Event)


def generated(cases: st.SearchStrategy[T], number: int) -> list[T]:
    """Cases that hypothesis makes up: collected first, so that Spark runs once for all of them."""
    collected: list[T] = []

    @hypothesis.settings(
        max_examples=number,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases)
    def collect(case: T) -> None:
        collected.append(case)

    collect()
    return collected


@dataclass(frozen=True)
class Copy(Generic[T]):
    """A case in one order and cut: by micro-batch its events, each with its place in the case."""

    case: int
    name: str
    batches: Sequence[Sequence[tuple[int, T]]]


def copies_of(
    cases: Sequence[Sequence[T]], *, seed: int, orders: int = 2, pieces: Sequence[int] = PIECES
) -> list[Copy[T]]:
    """Return every case in random orders, and each order cut at random into so many pieces."""
    rng = random.Random(seed)  # noqa: S311 - meant to be repeatable
    return [
        Copy(number, f"{number}.{order}.{count}", _cut(events, count, rng))
        for number, case in enumerate(cases)
        for order in range(orders)
        for events in [rng.sample(list(enumerate(case)), len(case))]
        for count in pieces
    ]


def _cut(events: Sequence[tuple[int, T]], pieces: int, rng: random.Random) -> list[Sequence[tuple[int, T]]]:
    batches = sorted(rng.sample(range(BATCHES), pieces))
    edges = sorted(rng.randint(0, len(events)) for _ in range(pieces - 1))
    cut = zip([0, *edges], [*edges, len(events)], strict=True)
    content = dict(zip(batches, (events[start:end] for start, end in cut), strict=True))
    return [content.get(batch, []) for batch in range(BATCHES)]


@dataclass(frozen=True)
class Outcome:
    """What a run of the pipeline made of the copies.

    `landed` and `rows` are the rows of bronze by micro-batch and of every other table, by the tables' names;
    `replayed` are the queries and numbers of the micro-batches that were run again.
    """

    stream: Stream
    settings: Settings
    landed: Mapping[str, Sequence[Sequence[Row]]]
    rows: Mapping[str, Sequence[Row]]
    replayed: Sequence[tuple[str, int | None]]

    def verdicts(self, table: str) -> dict[Coordinates, Judged]:
        """The oracle's verdicts on the records of a source, named by its table."""
        source = next(source for source in self.stream.sources if source.table == table)
        return verdicts.judge_batches(filter(None, self.landed[table]), self.settings, source)

    def accepted(self, table: str, make: Callable[..., E]) -> list[E]:
        """The records of a source that the oracle finds clean, as events of its kind."""
        return verdicts.accepted(self.verdicts(table), make)

    def silver_differences(self) -> Iterator[str]:
        """In what silver and the dead letters are not the oracle's."""
        refused: dict[Coordinates, Judged] = {}
        for source in self.stream.sources:
            judged = self.verdicts(source.table)
            refused |= judged
            if not verdicts.same_silver(self.rows[f"silver.{source.table}"], judged):
                yield f"silver.{source.table} is not what the oracle accepts"
        if not verdicts.same_dead_letters(self.rows[DEAD_LETTERS], refused):
            yield "the dead letters are not what the oracle refuses, for its reasons"


def run_copies(
    spark: SparkSession,
    settings: Settings,
    stream: Stream,
    copies: Iterable[Copy[T]],
    to_raw: Callable[[str, T], tuple[str, Raw]],
    *,
    landed_at: datetime,
    now: datetime | None = None,
) -> Outcome:
    """Land the copies in two halves, run silver and gold after each, and run their last micro-batches again.

    `to_raw` makes of a copy's name and an event the table of its source and its record.
    """
    settings = settings.model_copy(update={"max_bytes_per_batch": "1"})
    cuts = _cuts(stream, copies, to_raw)
    replayed: list[tuple[str, int | None]] = []
    for half in (slice(0, BATCHES // 2), slice(BATCHES // 2, BATCHES)):
        for source in stream.sources:
            full = list(filter(None, cuts[source.table][half]))
            pipeline.land(spark, settings, full, landed_at=landed_at, source=source)
        done = pipeline.run_layers(spark, settings, "silver", "gold", stream=stream, now=now)
        for query in {one.query for one in done}:
            pipeline.forget_last_commit(settings, query)
        again = pipeline.run_layers(spark, settings, "silver", "gold", stream=stream, now=now)
        replayed += [(one.query, one.batch) for one in again]
    return Outcome(
        stream,
        settings,
        {
            source.table: _as_landed(
                pipeline.rows_of(spark, settings, f"bronze.{source.table}"), cuts[source.table]
            )
            for source in stream.sources
        },
        tables_of(spark, settings, stream),
        replayed,
    )


def tables_of(spark: SparkSession, settings: Settings, stream: Stream) -> dict[str, list[Row]]:
    """Return the rows of the tables of silver and gold of a lake that has one stream."""
    names = [DEAD_LETTERS, *(f"silver.{source.table}" for source in stream.sources)]
    names += [f"gold.{path.name}" for path in Path(settings.lake, "gold").iterdir()]
    return {name: pipeline.rows_of(spark, settings, name) for name in names}


def _cuts(
    stream: Stream, copies: Iterable[Copy[T]], to_raw: Callable[[str, T], tuple[str, Raw]]
) -> dict[str, list[list[Raw]]]:
    """Return for each source what every micro-batch lands, the copies shuffled among each other."""
    cuts: dict[str, list[list[Raw]]] = {
        source.table: [[] for _ in range(BATCHES)] for source in stream.sources
    }
    first_offset = 0
    for copy in copies:
        for batch, events in enumerate(copy.batches):
            for place, event in events:
                table, raw = to_raw(copy.name, event)
                cuts[table][batch].append(replace(raw, offset=first_offset + place))
        first_offset += sum(map(len, copy.batches))
    rng = random.Random(3)  # noqa: S311 - meant to be repeatable
    for cut in itertools.chain.from_iterable(cuts.values()):
        rng.shuffle(cut)
    return cuts


def _as_landed(rows: Iterable[Row], cuts: Iterable[Iterable[Raw]]) -> list[list[Row]]:
    by_offset = {row["offset"]: row for row in rows}
    return [[by_offset[raw.offset] for raw in cut] for cut in cuts]
