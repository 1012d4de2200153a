"""Many small cases through a stream at once, each as several copies with different orders and cuts.

A case is a list of events. A copy of it has the same events in some order, cut into micro-batches in some
way: all at once, in two pieces, or spread over all of them. A copy's names (a service, a product, a user)
begin with its own name, so that one frame has room for all copies of all cases; a micro-batch is what they
put into one bronze commit of a source. Whatever the order in which they arrive, the events of a copy have
offsets in the order of the case, as if partitions were read from their ends.

`fold_copies` calls the stream's own functions on plain frames, without a lake.

    cases = generated(st.lists(EVENTS, min_size=1, max_size=12), 100)
    outcome = fold_copies(spark, settings, SALES, copies_of(cases, seed=1), to_raw, landed_at=NOON)
    outcome.accepted("sales_events", Sale)   the clean records, as the oracle judges them
    outcome.rows["gold.product_sales"]       what the stream has made of them
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from random import Random
from typing import Generic, TypeVar

import hypothesis
from hypothesis import HealthCheck, Phase, given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from lakehouse.engine.layers.bronze import SCHEMA
from lakehouse.settings import Settings
from lakehouse.streams.definition import Stream
from tests.oracles.judging import Event, Judged
from tests.support import pipeline, verdicts
from tests.support.chance import chance
from tests.support.folding import Folding
from tests.support.pipeline import DEAD_LETTERS, Coordinates, Raw, Row

BATCHES = 4
PIECES = (1, 2, BATCHES)

T = TypeVar("T")
E = TypeVar("E", bound=Event)


def generated(cases: st.SearchStrategy[T], number: int) -> list[T]:
    """Return cases from Hypothesis, all of them collected first, so that Spark runs once for all."""
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
    """A case with one order and cut: its events by micro-batch, each with its place in the case."""

    case: int
    name: str
    batches: Sequence[Sequence[tuple[int, T]]]


def copies_of(
    cases: Sequence[Sequence[T]], *, seed: int, orders: int = 2, pieces: Sequence[int] = PIECES
) -> list[Copy[T]]:
    """Return every case in random orders, and each order cut at random into so many pieces."""
    rng = chance(seed)
    return [
        Copy(number, f"{number}.{order}.{count}", cut_up(events, count, rng))
        for number, case in enumerate(cases)
        for order in range(orders)
        for events in [rng.sample(list(enumerate(case)), len(case))]
        for count in pieces
    ]


def cut_up(events: Sequence[tuple[int, T]], pieces: int, rng: Random) -> list[Sequence[tuple[int, T]]]:
    """Return the events in order, cut at random and put into so many of the micro-batches."""
    batches = sorted(rng.sample(range(BATCHES), pieces))
    edges = sorted(rng.randint(0, len(events)) for _ in range(pieces - 1))
    ranges = zip([0, *edges], [*edges, len(events)], strict=True)
    content = dict(zip(batches, (events[start:end] for start, end in ranges), strict=True))
    return [content.get(batch, []) for batch in range(BATCHES)]


@dataclass(frozen=True)
class Outcome:
    """What a stream made of the copies.

    `landed` has bronze's rows by micro-batch, and `rows` those of every other table, by the tables' names.
    `at(time)` returns these rows after the clock has advanced without new records.
    """

    stream: Stream
    settings: Settings
    landed: Mapping[str, Sequence[Sequence[Row]]]
    rows: Mapping[str, Sequence[Row]]
    at: Callable[[datetime], Mapping[str, Sequence[Row]]]

    def verdicts(self, table: str) -> dict[Coordinates, Judged]:
        """Return the oracle's verdicts on the records of a source, given by its table."""
        source = next(source for source in self.stream.sources if source.table == table)
        return verdicts.judge_batches(filter(None, self.landed[table]), self.settings, source)

    def accepted(self, table: str, make: Callable[..., E]) -> list[E]:
        """Return the records of a source that the oracle finds clean, as events of its kind."""
        return verdicts.accepted(self.verdicts(table), make)

    def silver_differences(self) -> Iterator[str]:
        """Yield how silver and the dead letters differ from the oracle's."""
        refused: dict[Coordinates, Judged] = {}
        for source in self.stream.sources:
            judged = self.verdicts(source.table)
            refused |= judged
            if not verdicts.same_silver(self.rows[f"silver.{source.table}"], judged):
                yield f"silver.{source.table} is not what the oracle accepts"
        if not verdicts.same_dead_letters(self.rows[DEAD_LETTERS], refused):
            yield "the dead letters are not what the oracle refuses, for its reasons"


def fold_copies(
    spark: SparkSession,
    settings: Settings,
    stream: Stream,
    copies: Iterable[Copy[T]],
    to_raw: Callable[[str, T], tuple[str, Raw]],
    *,
    landed_at: datetime,
    now: datetime | None = None,
) -> Outcome:
    """Judge and fold the copies, micro-batch by micro-batch.

    `to_raw` turns a copy's name and an event into its source's table and its record.
    """
    cuts = _cuts(stream, copies, to_raw)
    folding = Folding(spark, stream, settings)
    for batch in range(BATCHES):
        folding.take({table: batches[batch] for table, batches in cuts.items()}, landed_at=landed_at, now=now)
    landed = {
        source.table: [
            _bronze(pipeline.landed(settings, cut, landed_at=landed_at, source=source))
            for cut in cuts[source.table]
        ]
        for source in stream.sources
    }

    def rows() -> dict[str, list[Row]]:
        return {name: folding.rows(name) for name in _tables(stream)}

    def at(moment: datetime) -> dict[str, list[Row]]:
        folding.tick(moment)
        return rows()

    return Outcome(stream, settings, landed, rows(), at)


def _tables(stream: Stream) -> list[str]:
    silver = [f"silver.{source.table}" for source in stream.sources]
    return [DEAD_LETTERS, *silver, *(f"gold.{table.name}" for table in stream.tables)]


def _cuts(
    stream: Stream, copies: Iterable[Copy[T]], to_raw: Callable[[str, T], tuple[str, Raw]]
) -> dict[str, list[list[Raw]]]:
    """Return what each micro-batch lands for each source, with the copies shuffled together."""
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
    rng = chance(3)
    for cut in itertools.chain.from_iterable(cuts.values()):
        rng.shuffle(cut)
    return cuts


def _bronze(rows: Iterable[Sequence[object]]) -> list[Row]:
    named = (dict(zip(SCHEMA.names, row, strict=True)) for row in rows)
    return [
        {
            name: pipeline.micros(value) if isinstance(value, datetime) else value
            for name, value in row.items()
        }
        for row in named
    ]
