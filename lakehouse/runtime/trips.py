"""Runs trips: a stream's layers as one query, and beside it the layers that have fallen behind.

If a layer has something to read from its tables, when the run starts or after a failure, its own query
catches up first; then it joins the trips. In a live run it catches up beside the trips, and reads what came
meanwhile between two of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

from lakehouse.layers.query import BatchResult, LayerName, LayerQuery, QueryMaker
from lakehouse.layers.step import Step
from lakehouse.layers.trip import Trip
from lakehouse.progress import checkpoints
from lakehouse.runtime.groups import BatchDone, Common, Group
from lakehouse.runtime.running import Running
from lakehouse.runtime.triggers import AVAILABLE_NOW
from lakehouse.runtime.turns import Turns
from lakehouse.spark.execution import executing_for

_AT_ONCE = 2
_FOLLOWING: tuple[LayerName, ...] = ("silver", "gold", "export")


class TripGroup(Group):
    """The trips of some streams, made from their layers' query makers.

    In a run that catches up, layers that fail are left behind; see `lakehouse.runtime.runner`.
    """

    def __init__(self, common: Common, makers: Mapping[LayerName, Sequence[QueryMaker]]) -> None:
        self._landing: dict[str, list[QueryMaker]] = {}
        for maker in makers["bronze"]:
            self._landing.setdefault(maker.stream, []).append(maker)
        trips = [
            QueryMaker(name, ones[0].name, partial(self._trip, name)) for name, ones in self._landing.items()
        ]
        following = [maker for layer in _FOLLOWING for maker in makers.get(layer, ())]
        super().__init__(common, [*following, *trips], turns=_turns(common, len(trips)))
        self._members = {one.maker.name: one for one in self._queries[: len(following)]}
        self._trips: dict[str, Trip] = {}
        self._steps: dict[str, Step] = {}

    def _trip(self, stream: str) -> LayerQuery:
        """Return the query of a stream's trips, which begins where bronze has arrived."""
        common = self._common
        land = [maker.make() for maker in self._landing[stream]]
        for query in land:
            common.guards.check(query, common.clock())
        for step in self._joined(stream):
            step.join()  # a failed trip may have left something for it in its tables
        trip = Trip(
            common.lake,
            land,
            partial(self._joined, stream),
            common.settings,
            self._tell,
            is_live=common.is_live,
        )
        self._trips[stream] = trip
        return LayerQuery(
            "bronze",
            land[0].name,
            trip.records,
            trip.process_batch,
            target=None,
            close=trip.close,
            checkpoint=trip.checkpoint,
        )

    def left_behind(self) -> frozenset[str]:
        """Return the streams that have a layer which did not take part to the end, for whatever reason."""
        joined = {name for name, step in self._steps.items() if step.joined and not step.is_behind()}
        return frozenset(one.maker.stream for name, one in self._members.items() if name not in joined)

    def _is_quiet(self) -> bool:
        return all(trip.is_idle for trip in list(self._trips.values()))

    def _joined(self, stream: str) -> list[Step]:
        ours = [name for name, one in self._members.items() if one.maker.stream == stream]
        steps = [self._steps.get(name) for name in ours]
        return [step for step in steps if step is not None and step.joined]

    def _tell(self, name: str, number: int, result: BatchResult, took_s: float) -> None:
        one = self._members.get(name)
        if one is not None:
            one.progress(number)
        self._common.on_batch(BatchDone(name, number, result, took_s))
        if one is not None:  # a trip's own phases are reported by Spark
            self._common.watch.on_phases(name, {"addBatch": round(took_s * 1000)})

    def _is_trip(self, one: Running) -> bool:
        return one.maker.name not in self._members

    def _form_ring(self) -> None:
        """Nobody waits for anybody: a trip has all that it reads."""

    def _await_turn(self, one: Running) -> None:
        stop = self._common.stop
        self._turns.book(one.maker.name, lambda: one.leaves or stop.requested)

    def _is_done(self, one: Running, done: BatchDone) -> None:
        if not self._is_trip(one):
            super()._is_done(one, done)

    def _begin(self) -> None:
        for layer in _FOLLOWING:
            self._join([one for name, one in self._members.items() if name.startswith(f"{layer}.")])
        self._bring_up([one for one in self._queries if self._is_trip(one)])

    def _join(self, ones: Sequence[Running]) -> None:
        """Let members join, after those that have to have caught up; nothing runs meanwhile."""
        self._bring_up(ones)
        behind = [one for one in ones if one.query is not None and not self._has_joined(one)]
        if behind and not self._common.stop.requested:
            self._catch_up(behind)
            self._bring_up([one for one in behind if self._troubles.is_due(one.maker.name)])

    def _has_joined(self, one: Running) -> bool:
        step = self._steps.get(one.maker.name)
        return step is not None and step.joined

    def _catch_up(self, ones: Iterable[Running], *, beside: bool = False) -> None:
        """Let members catch up by their own queries; with turns of their own unless `beside` trips."""
        now = replace(self._common, trigger=AVAILABLE_NOW, export=None)
        makers = []
        for one in ones:
            one.take_down()
            self._steps.pop(one.maker.name, None)
            makers.append(one.maker)
        Group(now, makers, tries_again=False, turns=self._turns if beside else None).run()

    def _bring_up(self, queries: Iterable[Running]) -> None:
        ones = list(queries)
        for one in ones:
            if self._is_trip(one):
                one.take_down()  # each start finds out again where it begins
        super()._bring_up(ones)

    def _start(self, one: Running, query: LayerQuery) -> None:
        if self._is_trip(one):
            super()._start(one, query)
            return
        self._common.guards.check(query, self._common.clock())
        step = Step(self._common.lake, query)
        step.join()
        self._steps[one.maker.name] = step

    def _is_at_work(self, one: Running) -> bool:
        if self._is_trip(one):
            return super()._is_at_work(one)
        name, step = one.maker.name, self._steps.get(one.maker.name)
        if step is not None and step.failure is not None:
            failure = step.failure
            del self._steps[name]
            self._take_down(one, failure)
        elif step is not None and step.joined:
            if one.has_progressed:
                self._troubles.is_over(name)
        elif self._common.is_live and self._troubles.is_due(name) and not self._is_held(one):
            self._common.watch.on_restart(name)
            self._rejoin(one)
        return False

    def _is_held(self, one: Running) -> bool:
        return one.query is not None and one.query.is_held()

    def _rejoin(self, one: Running) -> None:
        """Let a member catch up beside the trips, and between two of them for what came meanwhile."""
        self._catch_up([one], beside=True)
        if self._troubles.is_due(one.maker.name) and not self._common.stop.requested:
            with self._turns.all():
                self._join([one])

    def _reading(self, one: Running) -> Iterable[LayerQuery]:
        if not self._is_trip(one):
            return super()._reading(one)
        return (maker.make() for maker in self._landing[one.maker.stream])

    def _tick(self, one: Running) -> bool:
        rounds = one.rounds
        is_failing = super()._tick(one)
        trip, spark, now = self._trips.get(one.maker.stream), self._common.lake.spark, self._common.clock()
        if trip is None:
            return is_failing
        if one.rounds > rounds:
            with self._turns.all(), executing_for(spark, few=True):
                trip.send(spark, checkpoints.new_header(spark, now), now, of=one.maker.name)
        elif self._common.is_live and self._is_trip(one) and trip.is_idle:
            self._look_after(trip, now)
        return is_failing

    def _look_after(self, trip: Trip, now: datetime) -> None:
        """Do what the next trip would do, because none comes.

        Rows may have waited long enough for a table. Or somebody else has written some: a replay, a rebuild,
        a layer that caught up by its own query. A step that has to read those leaves, and joins again with
        them.
        """
        spark = self._common.lake.spark
        if not (trip.is_due(now) or trip.behind() or trip.has_changes()):
            return
        with self._turns.all(), executing_for(spark, few=True):
            for step in trip.behind():
                step.leave()
            header = checkpoints.new_header(spark, now)
            if trip.is_due(now):
                trip.merge_waiting(spark, header, now)
            trip.send(spark, header, now)

    def _settle(self) -> None:
        spark, now = self._common.lake.spark, self._common.clock()
        for trip in self._trips.values():
            if trip.is_waited_for:
                with executing_for(spark, few=True):
                    trip.merge_waiting(spark, checkpoints.new_header(spark, now), now)
        for name, step in self._steps.items():
            one = self._members[name]
            if step.failure is not None:
                self._troubles.add_last(name, one.maker.stream, self._told(one, step.failure))


def _turns(common: Common, trips: int) -> Turns:
    """Return turns for so many streams: in a live run for two at a time.

    Half of a trip is Spark's planning and Delta's bookkeeping, which use one core.
    """
    cores = common.lake.spark.sparkContext.defaultParallelism
    return Turns(common.lake.spark, min(_AT_ONCE, trips, cores) if common.is_live else common.at_once)
