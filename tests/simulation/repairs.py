"""Users' actions on a lake: decide about letters, rebuild, maintain, change tables with other programs."""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import ClassVar

from lakehouse.engine.records.dead_letters import SENT_AGAIN_AS, Selection
from lakehouse.operations.maintenance.fold_state import clear_state
from lakehouse.operations.maintenance.upkeep import Keeper, tasks
from lakehouse.operations.repair.rebuild_gold import WindowSpan, rebuild_gold
from lakehouse.operations.repair.rebuild_silver import Landed, rebuild_silver
from lakehouse.operations.repair.replay import discard, replay
from lakehouse.operations.repair.resolve import resolve_by_columns, resolve_by_record
from lakehouse.storage.spark.offset_ranges import OffsetRange
from lakehouse.streams.definition import Source
from tests.oracles.alone import looked_at
from tests.simulation.actions import Action
from tests.simulation.compare import landings
from tests.simulation.model import Decision, outcomes_of, record_of, settings_of
from tests.simulation.world import World
from tests.support import pipeline
from tests.support.pipeline import DEAD_LETTERS, Coordinates, Row, coordinates_of


def open_letters(world: World) -> list[Row]:
    """Return the open letters, in the order of their places."""
    found = (row for row in pipeline.rows_of(world.settings, DEAD_LETTERS) if row["status"] == "open")
    return sorted(found, key=coordinates_of)


@dataclass(frozen=True)
class _OfLetters(Action):
    """Decide about an open letter, by its number `which` or, with -1, about all of them.

    Before commit number `land_before`, records that wait in Kafka land and are judged; with 0, none do.
    """

    which: int = -1
    land_before: int = field(default=0, kw_only=True)

    what: ClassVar[str] = ""

    def do(self, world: World) -> None:
        letters = open_letters(world)
        if not letters:
            return
        chosen = letters if self.which < 0 else [letters[self.which % len(letters)]]
        selection = Selection() if self.which < 0 else Selection(id=chosen[0]["id"])
        places = {coordinates_of(letter) for letter in chosen}
        before = _admissions(world, places)
        after_us = _processed(world)
        at = world.decided_at()
        is_done = False
        landing = _landing(world, self.land_before, after_us)
        with world.process(partial(self.do, world)), world.refusing(), landing:
            self._decide(world, selection, at)
            is_done = True
        for source in world.stream.sources:  # a replay itself notes the records that it has admitted
            found = _admissions(world, places)[source.table] - before[source.table]
            said = max(found, key=lambda one: one[1], default=(after_us[source.table], 0))
            after_us[source.table], _ = said
            is_done |= bool(found)
        if is_done or {coordinates_of(one) for one in open_letters(world)} & places < places:
            for letter in sorted(chosen, key=coordinates_of):
                source = source_of(world, letter)
                after = after_us[source.table]
                # Letters of a micro-batch that silver has not finished are not changed.
                if (letter["ingested_at"] or 0) <= after:
                    self._put_down(world, source, coordinates_of(letter), after, pipeline.micros(at))

    @abstractmethod
    def _decide(self, world: World, selection: Selection, at: datetime) -> None: ...

    def _put_down(self, world: World, source: Source, place: Coordinates, after_us: int, at_us: int) -> None:
        made = Decision(
            self.what,  # type: ignore[arg-type]
            place,
            after_us,
            at_us,
            allows_late=getattr(self, "allow_late", False),
            made_with=(source.unique_by, source.sequence_by),
            has_admitted=self.what == "replay" and bool(_admissions(world, {place})[source.table]),
        )
        world.life.decisions[source.table].append(made)


def _processed(world: World) -> dict[str, int]:
    return {source.table: world.processed(source) for source in world.stream.sources}


def _landing(world: World, number: int, after_us: dict[str, int]) -> AbstractContextManager[None]:
    """Let waiting records land and be judged before the commit with this number, and update `after_us`."""

    def land() -> None:
        world.run(("bronze", "silver"))
        after_us.update(_processed(world))

    return world.before_commit(number, land)


def table_of(letter: Row) -> str:
    """Return the silver table of a letter's source."""
    return str(letter["job"]).removeprefix("silver.")


def source_of(world: World, letter: Row) -> Source:
    """Return a letter's source."""
    (source,) = (one for one in world.stream.sources if one.table == table_of(letter))
    return source


def _admissions(world: World, places: Collection[Coordinates]) -> dict[str, set[tuple[int, int]]]:
    """Return by source when replays admitted these records: after which landing, and at which time (us)."""
    found = defaultdict[str, set[tuple[int, int]]](set)
    letters = [(table_of(row), row) for row in pipeline.rows_of(world.settings, DEAD_LETTERS)]
    for source in world.stream.sources:
        rows = pipeline.rows_of(world.settings, f"silver.{source.table}")
        for table, row in (*((source.table, row) for row in rows), *letters):
            one = row["admitted"]
            if table == source.table and one is not None and coordinates_of(row) in places:
                after_us = 0 if one["after"] is None else pipeline.micros(one["after"])
                found[table].add((after_us, pipeline.micros(one["at"])))
    return found


@dataclass(frozen=True)
class Replay(_OfLetters):
    """Replay the letters that a dry run has reported."""

    allow_late: bool = False
    what: ClassVar[str] = "replay"

    def _decide(self, world: World, selection: Selection, at: datetime) -> None:
        world.where = "replay"
        late = self.allow_late
        tried = replay(world.lake, [world.stream], selection, at, allow_late=late, dry_run=True)
        done = replay(world.lake, [world.stream], selection, at, allow_late=late)
        if not self.land_before and replace(done, skipped=0, in_flight=0) != replace(
            tried, skipped=0, in_flight=0
        ):
            raise AssertionError(f"a dry run of the replay said {tried}, and it was {done}")


@dataclass(frozen=True)
class ReplayWhileRunning(Replay):
    """Run silver, and replay letters before its commit number `before`, or at the end if it makes fewer."""

    before: int = 2

    allow_late: bool = True

    def _decide(self, world: World, selection: Selection, at: datetime) -> None:
        decided = False

        def decide() -> None:
            nonlocal decided
            decided = True
            replay(world.lake, [world.stream], selection, at, allow_late=True)

        with world.before_commit(self.before, decide):
            world.run(("silver",))
        if not decided:
            decide()


@dataclass(frozen=True)
class Discard(_OfLetters):
    """Discard letters."""

    what: ClassVar[str] = "discard"

    def _decide(self, world: World, selection: Selection, at: datetime) -> None:
        world.where = "discard"
        discard(world.lake, [world.stream], selection, at)


@dataclass(frozen=True)
class Resolve(Action):
    """Close open letter `which` by silver's newest row or, with `same`, by the row with its event time.

    Before commit number `land_before`, records that wait in Kafka land and are judged; with 0, none do.
    """

    which: int = 0
    same: bool = False
    land_before: int = 0

    def do(self, world: World) -> None:
        letters = open_letters(world)
        if not letters:
            return
        letter = letters[self.which % len(letters)]
        source = source_of(world, letter)
        rows = pipeline.rows_of(world.settings, f"silver.{source.table}")
        if not rows:
            return
        topic, partition, offset = by = max(map(coordinates_of, rows), key=lambda one: one[2])
        after_us, at = _processed(world), world.decided_at()
        same = _rows_like(world, source, letter, rows) if self.same else []
        selection = Selection(id=letter["id"])
        landing = _landing(world, 0 if self.same else self.land_before, after_us)
        with world.process(partial(self.do, world)), world.refusing(), landing:
            world.where = "resolve"
            if self.same:
                by = same[0] if len(same) == 1 else by
                done = resolve_by_columns(world.lake, [world.stream], selection, ["event_time"], at)
                if done.resent != (len(same) == 1):
                    raise AssertionError(f"resolve --same has closed {done.resent} letters; rows: {same}")
            else:
                record = OffsetRange(topic, partition, offset, offset)
                resolve_by_record(world.lake, [world.stream], selection, record, at)
        place = coordinates_of(letter)
        (closed,) = (
            one for one in pipeline.rows_of(world.settings, DEAD_LETTERS) if one["id"] == letter["id"]
        )
        if closed["status"] == "resent" and closed["reasons"][-1]["message"] == _sent_again_as(by):
            ids = source.unique_by, source.sequence_by
            made = Decision(
                "resolve", place, after_us[source.table], pipeline.micros(at), by=by, made_with=ids
            )
            world.life.decisions[source.table].append(made)


def _rows_like(world: World, source: Source, letter: Row, rows: Sequence[Row]) -> list[Coordinates]:
    """Return the rows with a letter's event time that have neither answered a letter nor have an open one."""
    world.note_landings()
    place = coordinates_of(letter)
    landed_us = landings(world.settings, world.stream).get(place)
    if landed_us is None or landed_us > world.processed(source):
        return []
    (sent,) = (one for one in world.life.sent if one.place == place)
    time_us = looked_at(record_of(world.life, sent), settings_of(world.life, source)).event_time_us
    letters = pipeline.rows_of(world.settings, DEAD_LETTERS)
    said = (one["reasons"][-1]["message"] for one in letters if one["status"] == "resent")
    used = {*said, *(_sent_again_as(coordinates_of(one)) for one in letters if one["status"] == "open")}
    found = [coordinates_of(row) for row in rows if row["event_time"] == time_us]
    return [one for one in found if _sent_again_as(one) not in used]


def _sent_again_as(place: Coordinates) -> str:
    return SENT_AGAIN_AS + "/".join(map(str, place))


@dataclass(frozen=True)
class RebuildSilver(Action):
    """Rebuild silver. Before its commit `land_before`, records that wait in Kafka land and are judged.

    Records are rebuilt if they were sent at most `since_s` and at least `until_s` seconds ago; 0: no limit.
    Sources with ids are always rebuilt completely. With `allow_late`, late records are in time.
    """

    land_before: int = 0
    since_s: int = 0
    until_s: int = 0
    allow_late: bool = False

    def do(self, world: World) -> None:
        ends = (
            world.tick() - timedelta(seconds=ago) if ago else None for ago in (self.since_s, self.until_s)
        )
        span, again = Landed(*ends), replace(self, land_before=0)
        landing = world.before_commit(self.land_before, lambda: world.run(("bronze", "silver")))
        late = [(one, self._late(world, one, span)) for one in world.stream.sources if self.allow_late]
        is_refused = True
        with world.process(partial(again.do, world)), world.refusing(), landing:
            world.where = "rebuild silver"
            rebuild_silver(world.lake, world.stream, span, world.now, allow_late=self.allow_late)
            is_refused = False
            if self.allow_late:
                world.run(("gold",))
                for table in world.stream.gold:  # like `lakehouse rebuild silver`
                    rebuild_gold(world.lake, table, WindowSpan(), force=True)
            if span == Landed() or all(one.unique_by for one in world.stream.sources):
                world.foreign -= {"silver", "letters"}
        if not is_refused or world.writes.killed is not None:
            for source, found in late:
                world.life.decisions[source.table] += found

    def _late(self, world: World, source: Source, span: Landed) -> list[Decision]:
        """Return in-time decisions for late records that silver has processed and the rebuild reads."""
        world.note_landings()
        after_us, at_us = world.processed(source), pipeline.micros(world.decided_at())
        is_open = {
            place
            for place, one in outcomes_of(world.life, source).items()
            if one.status == "open" and "late" in one.rules
        }
        read = {
            place
            for place, landed_us in landings(world.settings, world.stream).items()
            if landed_us <= after_us and (source.unique_by or _is_within(span, world, place))
        }
        return [Decision("in time", place, after_us, at_us) for place in is_open & read]


def _is_within(span: Landed, world: World, place: Coordinates) -> bool:
    (sent,) = (one for one in world.life.sent if one.place == place)
    at = datetime.fromtimestamp(sent.kafka_timestamp_ms / 1000, UTC)
    return (span.since is None or at >= span.since) and (span.until is None or at < span.until)


def forget_in_time(world: World, gone: Collection[Coordinates] | None = None) -> None:
    """Forget in-time decisions for records in `gone` (None: all), which only their silver rows recorded."""
    for made in world.life.decisions.values():
        made[:] = [
            one for one in made if one.what != "in time" or (gone is not None and one.place not in gone)
        ]


@dataclass(frozen=True)
class RebuildGold(Action):
    """Rebuild gold, or only the rows of the last `hours`."""

    hours: int = 0
    force: bool = True

    def do(self, world: World) -> None:
        span = WindowSpan(first=world.now - timedelta(hours=self.hours)) if self.hours else WindowSpan()
        world.tick()
        with world.process(partial(self.do, world)), world.refusing():
            world.where = "rebuild gold"
            for table in world.stream.gold:
                rebuild_gold(world.lake, table, span, force=self.force)
            if not self.hours and "silver" not in world.foreign:
                world.foreign.discard("gold")


@dataclass(frozen=True)
class Maintain(Action):
    """Maintain every table.

    Tables with 0 days, later gold tables, and sides other than `side` if it is set, keep everything.
    """

    bronze: int = 0
    silver: int = 0
    gold: int = 0
    letters: int = 0
    side: int = -1

    def do(self, world: World) -> None:
        table, given = world.stream.gold[0], dict[str, int]()
        for source in world.stream.sources if self.side < 0 else [world.side(self.side)]:
            given |= {f"bronze.{source.table}": self.bronze, f"silver.{source.table}": self.silver}
        given |= {f"gold.{table.name}": self.gold, DEAD_LETTERS: self.letters}
        kept = {one: 86_400 * days for one, days in given.items() if days}
        settings = world.settings.changed({"maintenance.keep_rows_s": kept})
        world.tick()
        with world.process(partial(self.do, world)), world.retaining(), world.refusing():
            world.where = "maintain"
            for task in tasks([world.stream], settings):
                Keeper(world.lake, settings).keep(task, world.now)


@dataclass(frozen=True)
class ClearState(Action):
    """Clear the fold state of gold rows that no later record can change, unless it is replayed."""

    def do(self, world: World) -> None:
        world.tick()
        with world.process(partial(self.do, world)), world.refusing():
            world.where = "clear state"
            clear_state(world.lake, [world.stream])
