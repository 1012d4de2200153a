"""All records of a topic, for the audit, including those that Spark's source cannot read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import reduce
from itertools import zip_longest
from typing import TypeVar

from pyspark.sql import DataFrame, SparkSession

from lakehouse.settings.kafka_access import KafkaAccess
from lakehouse.storage.kafka.refusals import denied
from lakehouse.storage.spark.kafka_source import Place, misdated, read_apart, read_between
from lakehouse.storage.spark.offset_ranges import OffsetRange

_T = TypeVar("_T")
_Span = tuple[int, int]


class WholeTopic:
    """The records of a topic; `asked` finds those that Spark's source cannot read."""

    def __init__(self, spark: SparkSession, access: KafkaAccess, topic: str) -> None:
        self._spark = spark
        self.name = topic
        self.access = access
        self._ends: Mapping[int, int] = {}
        self._apart: dict[Place, tuple[int, DataFrame]] = {}

    def asked(self, ask: Callable[[WholeTopic], _T]) -> _T:
        """Return the result of `ask`, which reads the topic.

        Calls it again whenever Spark's source has failed at a record, with that record read separately.
        """
        while True:
            try:
                return ask(self)
            except Exception as error:
                no = denied(self.access, error, {"topic": f"Read topic {self.name}"})
                if no is not None:
                    raise no from error
                place = misdated(error)
                if place is None or place in self._apart:
                    raise
                self._set_apart(place)

    def between(self, ranges: Mapping[int, _Span], lost: Iterable[OffsetRange] = ()) -> DataFrame:
        """Return the records between two offsets of each partition, except those noted as lost."""
        self._ends = {number: end for number, (_, end) in ranges.items()}
        gone = [(one.partition, (one.first, one.last + 1)) for one in lost]
        gone += [(place.partition, (place.offset, end)) for place, (end, _) in self._apart.items()]
        spans = [
            [(number, one) for one in _around(span, sorted(cut for at, cut in gone if at == number))]
            for number, span in ranges.items()
        ]
        by_turn = [dict(one for one in turn if one is not None) for turn in zip_longest(*spans)]
        frames = [read_between(self._spark, self.access, self.name, turn) for turn in by_turn or [{}]]
        return reduce(DataFrame.unionByName, [*frames, *(rows for _, rows in self._apart.values())])

    def _set_apart(self, place: Place) -> None:
        while True:
            end = self._ends[place.partition]
            found = read_apart(self._spark, self.access, place, end)
            self._apart[place] = found.reached, found.rows
            place = Place(place.topic, place.partition, found.reached)
            if not found.is_misdated or found.reached >= end:
                return


def _around(span: _Span, cuts: Iterable[_Span]) -> Iterator[_Span]:
    """Yield the parts of a span outside the cuts; an empty span if there are none."""
    first, end = span
    left = False
    for begin, after in cuts:
        if first < min(begin, end):
            yield first, min(begin, end)
            left = True
        first = max(first, after)
    if first < end or not left:
        yield min(first, end), end
