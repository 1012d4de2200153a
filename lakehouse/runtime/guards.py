"""What must hold before a query starts: its checkpoint, its tables and its topic belong together.

Each check refuses with what happened and the way out; nothing is skipped silently. A query that has never
started notes in its checkpoint which tables and topic it belongs to, before Spark writes anything there. A
checkpoint older than this feature gets the note once it has passed the other checks.

| what happened | noticed by | | --- | --- | | the checkpoint is gone | rows in a table that the query fills |
| a table or a topic was recreated, the checkpoint is another lake's | other ids than those noted | | an older
checkpoint was put back | a transaction in a table that it has not planned yet | | the topic's offsets run
back | the partition ends before the position that was reached | | Kafka dropped records that had not landed |
the partition begins after that position |
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lakehouse import tables
from lakehouse.errors import CheckpointError
from lakehouse.events import Kind, note
from lakehouse.layers.query import Allow, LayerQuery
from lakehouse.ops import data_losses
from lakehouse.ops.data_losses import LostRange
from lakehouse.progress import checkpoints
from lakehouse.settings import Settings
from lakehouse.tables import Lake
from lakehouse.topics import Topic, describe_topic

_Position = dict[int, int]


@dataclass(frozen=True)
class Guards:
    """The checks' inputs: `allow` is what is not refused; `notice` is told what was let through."""

    lake: Lake
    settings: Settings
    allow: Collection[Allow] = ()
    notice: Callable[[str], None] = lambda _text: None

    def check(self, query: LayerQuery, now: datetime) -> None:
        """Raise CheckpointError unless the query may start; a rerun checks again and changes nothing.

        Allowed losses of records are noted in ops.data_losses, and the checkpoint moves past them.
        """
        checkpoint = self.lake.checkpoint(query.name)
        query.preflight(self.allow)
        topic = self._topic(query)
        identity = self._identity(query, topic)
        if not checkpoints.exists(self.lake.spark, checkpoint):
            self._refuse_lost(query, checkpoint)
            checkpoints.write_identity(self.lake.spark, checkpoint, identity)
            return
        noted = checkpoints.read_identity(self.lake.spark, checkpoint)
        if noted is not None:
            _refuse_other_topic(query, checkpoint, noted.get("topic"), identity["topic"])
            _refuse_other_tables(query, checkpoint, noted["tables"], identity["tables"])
        self._refuse_older(query, checkpoint, noted)
        if query.topic is not None:
            self._check_offsets(query, checkpoint, topic, now)
            if noted and topic is None:
                identity["topic"] = noted["topic"]
        if noted != identity:
            checkpoints.write_identity(self.lake.spark, checkpoint, identity)

    def refuse_losses(self, query: LayerQuery, cause: BaseException) -> None:
        """Raise CheckpointError if the records that a failed query was to read are gone; otherwise return."""
        checkpoint = self.lake.checkpoint(query.name)
        topic = self._topic(query)
        noted = checkpoints.read_identity(self.lake.spark, checkpoint)
        try:
            if noted is not None:
                _refuse_other_topic(query, checkpoint, noted.get("topic"), _noted_topic(query, topic))
            if query.topic is not None:
                self._refuse_lost_offsets(query, self._place(query, checkpoint), topic)
        except CheckpointError as refusal:
            raise refusal from cause

    def _topic(self, query: LayerQuery) -> Topic | None:
        if query.topic is None:
            return None
        return describe_topic(self.settings.kafka_bootstrap_servers, query.topic)

    def _identity(self, query: LayerQuery, topic: Topic | None) -> dict[str, Any]:
        ids = {name: tables.table_id(self.lake.spark, path) for name, path in query.tables.items()}
        return {"query": query.name, "tables": ids, "topic": _noted_topic(query, topic)}

    def _refuse_lost(self, query: LayerQuery, checkpoint: str) -> None:
        if query.target is None:
            return
        filled = tables.has_rows(self.lake.spark, query.target)
        beside = {
            name: condition
            for name, condition in query.co_targets.items()
            if tables.has_rows(self.lake.spark, query.tables[name], condition)
        }
        if not filled and not beside:
            return
        whose = "has rows" if filled else f"has rows in {' and '.join(beside)}"
        rows = "".join(
            f", the rows of {name} where {condition}" if condition != _ALL else f", {query.tables[name]}"
            for name, condition in beside.items()
        )
        raise CheckpointError(
            f"{query.name} {whose}, but its checkpoint {checkpoint} is gone; starting again from the "
            f"beginning would write them twice. Put the checkpoint back, or delete {query.target}{rows} (and "
            f"what was made from it) and run again to rebuild it"
        )

    def _refuse_older(self, query: LayerQuery, checkpoint: str, noted: Mapping[str, Any] | None) -> None:
        if query.target is None:
            return
        planned = checkpoints.last_planned(self.lake.spark, checkpoint)
        application = query.application(str(checkpoints.query_id(self.lake.spark, checkpoint)))
        for name in (query.name, *query.co_targets):
            written = tables.transactions(self.lake.spark, query.tables[name])
            last = written.get(application)
            if last is not None and last > (-1 if planned is None else planned):
                raise CheckpointError(
                    f"{name} has micro-batch {last} of {query.name}, but the checkpoint {checkpoint} has "
                    f"planned none after {'the start' if planned is None else planned}: it is older than the "
                    f"table, and its next micro-batches would be skipped. Put the newest checkpoint "
                    f"back, or delete it and {query.target} (and what was made from it) and run again to "
                    f"rebuild it"
                )
            others = [one for one in written if one.startswith(query.application("")) and one != application]
            done = checkpoints.last_done(self.lake.spark, checkpoint) is not None
            if noted is None and name == query.name and others and last is None and done:
                raise CheckpointError(
                    f"{query.name} was filled with another checkpoint than {checkpoint}: it does not know "
                    f"this one's query. Put the table's own checkpoint back, or delete both and run again "
                    f"to rebuild it"
                )

    def _check_offsets(self, query: LayerQuery, checkpoint: str, topic: Topic | None, now: datetime) -> None:
        place = self._place(query, checkpoint)
        if Allow.DATA_LOSS not in self.allow:
            self._refuse_lost_offsets(query, place, topic)
            return
        losses = _lost_offsets(query, place, topic)
        if not losses or topic is None:
            return
        data_losses.note(self.lake, losses, query.name, now)
        moved = _reached(place, topic) | {loss.partition: loss.last_offset + 1 for loss in losses}
        self._move_on(checkpoint, place, {str(query.topic): moved})
        told = f"{_lost(query, losses)}; allowed, and noted in {data_losses.DATA_LOSSES.qualified_name}"
        note(Kind.DATA_LOSS, told, layer=query.layer, table=query.name)
        self.notice(told)

    def _refuse_lost_offsets(self, query: LayerQuery, place: _CheckpointState, topic: Topic | None) -> None:
        losses = _lost_offsets(query, place, topic)
        if losses:
            raise CheckpointError(
                f"{_lost(query, losses)}: they have expired. Run once with --allow {Allow.DATA_LOSS} to note "
                f"them in {data_losses.DATA_LOSSES.qualified_name} as lost and continue after them"
            )

    def _place(self, query: LayerQuery, checkpoint: str) -> _CheckpointState:
        """Return how far the query has written; what was only planned does not count."""
        planned = checkpoints.last_planned(self.lake.spark, checkpoint)
        done = checkpoints.last_done(self.lake.spark, checkpoint)
        application = query.application(str(checkpoints.query_id(self.lake.spark, checkpoint)))
        written = tables.transactions(self.lake.spark, str(query.target)).get(application, -1)
        last = planned
        if planned is not None and planned != done and written < planned:
            last = planned - 1 if planned else None
        position = checkpoints.kafka_position(self.lake.spark, checkpoint, last)
        for other in position.keys() - {query.topic}:
            raise _other_topic(query, checkpoint, other)
        return _CheckpointState(planned, done, last, position.get(str(query.topic)))

    def _move_on(self, checkpoint: str, place: _CheckpointState, position: dict[str, _Position]) -> None:
        if place.planned is None:
            checkpoints.forget_start(self.lake.spark, checkpoint)
            return
        if place.last is not None and place.last != place.done and place.last == place.planned:
            checkpoints.note_done(self.lake.spark, checkpoint, place.last)
        batch = 0 if place.last is None else place.last + 1
        checkpoints.plan_nothing(self.lake.spark, checkpoint, batch, place.planned, position)


@dataclass(frozen=True)
class _CheckpointState:
    """The last micro-batches planned, done and written, and the offsets that the written ones reach."""

    planned: int | None
    done: int | None
    last: int | None
    position: _Position | None


_ALL = "true"
_NEW_TOPIC = (
    "Its records have the coordinates of others in the tables. Use another LAKEHOUSE_LAKE for them, or "
    "delete {}, its checkpoint and what was made from it, and run again"
)


def _lost_offsets(query: LayerQuery, place: _CheckpointState, topic: Topic | None) -> list[LostRange]:
    """Return what the topic no longer has and the query has not written; refuse offsets that run back."""
    position = place.position
    if position is None:
        return []
    if topic is None or any(topic.ends.get(n, -1) < offset for n, offset in position.items()):
        ends = "is gone" if topic is None else f"ends at {_shown(topic.ends)}"
        raise CheckpointError(
            f"{query.name} has read topic {query.topic} up to {_shown(position)}, but it {ends}: its offsets "
            f"run back, as if it had been deleted and recreated. {_NEW_TOPIC.format(query.target)}"
        )
    return [
        LostRange(str(query.topic), n, offset, topic.earliest[n] - 1)
        for n, offset in sorted(_reached(place, topic).items())
        if topic.earliest[n] > offset
    ]


def _reached(place: _CheckpointState, topic: Topic) -> _Position:
    """Return the offsets that have been reached; a new partition begins at 0."""
    return {n: (place.position or {}).get(n, 0) for n in topic.earliest}


def _lost(query: LayerQuery, losses: Iterable[LostRange]) -> str:
    return f"Kafka no longer has offsets {', '.join(map(str, losses))}, which {query.name} has not read"


def _noted_topic(query: LayerQuery, topic: Topic | None) -> dict[str, str | None] | None:
    return None if query.topic is None else {"name": query.topic, "id": topic.id if topic else None}


def _other_topic(query: LayerQuery, checkpoint: str, noted: str) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint {checkpoint} is of topic {noted}, the settings say {query.topic}. Set "
        f"LAKEHOUSE_TOPICS as it was, or use another LAKEHOUSE_LAKE for the other topic"
    )


def _refuse_other_topic(
    query: LayerQuery, checkpoint: str, noted: Mapping[str, Any] | None, found: Mapping[str, Any] | None
) -> None:
    if noted is None or found is None:
        return
    if noted["name"] != found["name"]:
        raise _other_topic(query, checkpoint, noted["name"])
    if noted["id"] and found["id"] and noted["id"] != found["id"]:
        raise CheckpointError(
            f"topic {found['name']} was deleted and recreated: {query.name} has read the one with id "
            f"{noted['id']}, this one has {found['id']}. {_NEW_TOPIC.format(query.target)}"
        )


def _refuse_other_tables(
    query: LayerQuery, checkpoint: str, noted: Mapping[str, str], found: Mapping[str, str]
) -> None:
    others = sorted(name for name in noted.keys() & found.keys() if noted[name] != found[name])
    if not others:
        return
    fills = "" if query.target is None else f" and {query.target}"
    what = (
        f"{', '.join(others)} {'was' if len(others) == 1 else 'were'} deleted and recreated, or the "
        f"checkpoint belongs to another lake"
    )
    raise CheckpointError(
        f"the checkpoint {checkpoint} of {query.name} knows other tables of these names: {what}. Put "
        f"back what belongs together, or delete the checkpoint{fills} (and what was made from it) and run "
        f"again to rebuild it"
    )


def _shown(offsets: Mapping[int, int]) -> str:
    return ", ".join(f"{n}:{offset}" for n, offset in sorted(offsets.items())) or "nothing"
