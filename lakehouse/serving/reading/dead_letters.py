"""Read dead letters without Spark: counts, lists and single letters.

If the dead-letter table does not exist yet, the results are empty. A response contains at most 256 KiB of a
letter's value, key or header, as hex, text and JSON.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from lakehouse.common.readable import readable
from lakehouse.engine.records.dead_letters import DEAD_LETTERS, SCHEMA
from lakehouse.serving.reading import delta
from lakehouse.serving.reading.delta import FirstRows, Found, Order, Snapshot, Table
from lakehouse.serving.reading.shapes import MOST_LETTERS, ShapeGroup, by_shape, shape_of
from lakehouse.storage.tables.specs import path_of
from lakehouse.streams.messages.json_text import is_json_text
from lakehouse.streams.messages.layout import Row

MOST = 256 * 1024
_MOST_HEADERS = 100
_MOST_NAME = 1_000
_LONGEST_CHARACTER = 4
_VALUES_AT_ONCE = 64
_MOST_BEGUN = 120

Part = Literal["value", "key", "header"]


def bytes_of(row: Row, part: Part, header: int) -> bytes | None:
    """Return the bytes of a record's value, key or header, or None if it is null.

    Raises IndexError if the record has no header with this index.
    """
    data: bytes | None = (row["headers"] or [])[header]["value"] if part == "header" else row[part]
    return data


def outline(row: Row) -> Mapping[str, Any]:
    """Return the lengths of a record's value, key and first hundred headers, with None for null parts."""
    headers = row["headers"] or []
    return {
        "valueLength": _length(row["value"]),
        "keyLength": _length(row["key"]),
        "headers": [
            {"key": one["key"][:_MOST_NAME], "length": _length(one["value"])}
            for one in headers[:_MOST_HEADERS]
        ],
        "headerCount": len(headers),
    }


def piece(data: bytes | None, offset: int) -> str:
    """Return JSON text with the piece of the data at an offset, and `next`, the offset of the next piece.

    The piece is returned as hex. It is also returned as text if it is UTF-8, and as JSON if it is the
    complete data and is valid JSON. A piece of text never ends in the middle of a character.
    """
    if data is None:
        return "null"
    given = data[offset : offset + MOST]
    is_last = offset + len(given) >= len(data)
    given, text = _text(given) if not is_last else (given, _decoded(given))
    said = {
        "length": len(data),
        "offset": offset,
        "next": None if is_last else offset + len(given),
        "hex": given.hex(),
        "text": text,
    }
    is_json = is_last and offset == 0 and text is not None and is_json_text(text)
    return f'{json.dumps(said, ensure_ascii=False)[:-1]},"json":{text if is_json else "null"}}}'


def _text(given: bytes) -> tuple[bytes, str | None]:
    """Return the bytes up to the last complete UTF-8 character, and their text.

    If the bytes are not UTF-8, return all of them and None.
    """
    for cut in range(_LONGEST_CHARACTER):
        whole = given[: len(given) - cut]
        if (text := _decoded(whole)) is not None:
            return whole, text
    return given, None


def _decoded(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _length(data: bytes | None) -> int | None:
    return None if data is None else len(data)


RAW = ("key", "value", "headers")
LISTED = tuple(name for name in SCHEMA.names if name not in RAW)
_NEWEST: Mapping[str, Any] = {"first_seen": "descending", "id": "ascending"}


@dataclass(frozen=True)
class WantedLetters:
    """A filter for dead letters. A dead letter must match every condition that is not None.

    `text` must occur in the message of one of its reasons; case is ignored. Times are in epoch microseconds.
    """

    stream: str | None = None
    topic: str | None = None
    rule: str | None = None
    text: str | None = None
    status: str | None = None
    since: int | None = None
    until: int | None = None
    after: tuple[Any, ...] | None = None

    def conditions(self) -> list[ds.Expression]:
        """Return the filters on stream, topic, status and time. `keep` applies the filters on reasons."""
        equal = {"stream": self.stream, "topic": self.topic, "status": self.status}
        found = [delta.equals(name, value) for name, value in equal.items() if value is not None]
        found += [] if self.since is None else [delta.since("first_seen", self.since)]
        return found + ([] if self.until is None else [delta.before("first_seen", self.until)])

    def keep(self, part: pa.Table) -> pa.Table:
        """Return the dead letters that have the wanted rule and the wanted text among their reasons."""
        if self.rule is not None:
            letters, rules = _reasons(part, "rule")
            part = part.take(pc.unique(letters.filter(pc.equal(rules, self.rule))))
        if self.text is not None:
            letters, messages = _reasons(part, "message")
            found = pc.match_substring(messages, self.text, ignore_case=True)
            part = part.take(pc.unique(letters.filter(found)))
        return part


@dataclass(frozen=True)
class Shapes:
    """Dead letters by the shape of their value: the groups, and the number of dead letters in all of them.

    `has_more` is true if more dead letters match than are in the groups.
    """

    groups: Sequence[ShapeGroup]
    letters: int
    has_more: bool = False


_NO_SHAPES = Shapes((), 0)


@dataclass(frozen=True)
class Names:
    """The names of streams, topics and rules that can occur in dead letters."""

    streams: Collection[str]
    topics: Collection[str]
    rules: Collection[str]


class Letters:
    """The dead letters in a lake. All methods block, and raise TableAwayError if the table is unreadable."""

    def __init__(self, lake: str) -> None:
        self._table = Table(path_of(lake, DEAD_LETTERS.layer, DEAD_LETTERS.name))

    def versions(self) -> dict[str, tuple[int, int]]:
        """Return the generation and version of silver.dead_letters, keyed by the table's SQL name.

        The result is empty if the table cannot be read.
        """
        return delta.versions_of({DEAD_LETTERS.qualified_name: self._table})

    def counts(self, wanted: WantedLetters) -> Found[list[dict[str, Any]]]:
        """Count dead letters by stream, rule and status, largest count first.

        A dead letter that breaks two rules is counted once for each.
        """

        def read(snapshot: Snapshot) -> list[dict[str, Any]]:
            counter = Counter[tuple[str, str, str]]()
            columns = ("stream", "status", "reasons")
            for part in snapshot.rows(columns, delta.everything(wanted.conditions())):
                counter.update(_counted(wanted.keep(part)))
            names = ("stream", "rule", "status", "count")
            largest_first = sorted(counter.items(), key=lambda one: (-one[1], one[0]))
            return [dict(zip(names, (*group, count), strict=True)) for group, count in largest_first]

        return delta.read_or(self._table, read, [])

    def names(self) -> Names:
        """Return the names of all streams, topics and rules that occur in dead letters."""

        def read(snapshot: Snapshot) -> Names:
            streams, topics, rules = set[str](), set[str](), set[str]()
            for part in snapshot.rows(("stream", "topic", "reasons"), None):
                streams.update(part["stream"].unique().to_pylist())
                topics.update(part["topic"].unique().to_pylist())
                rules.update(_reasons(part, "rule")[1].unique().to_pylist())
            return Names(streams, topics, rules)

        return delta.read_or(self._table, read, Names((), (), ())).value

    def newest(self, wanted: WantedLetters, most: int) -> Found[FirstRows]:
        """Return the newest `most` dead letters that match, newest first, without their raw bytes."""
        order = Order(_NEWEST, wanted.after)
        return delta.read_or(
            self._table,
            lambda snapshot: delta.first_rows(
                snapshot, LISTED, wanted.conditions(), order=order, most=most, keep=wanted.keep
            ),
            FirstRows([]),
        )

    def beginnings_of(self, rows: Sequence[Row]) -> Found[dict[str, str | None]]:
        """Return the beginning of each letter's value as one line of text, or None for a null value, by id.

        `rows` has the letters, newest first, with their `id` and `first_seen`.
        """

        def read(snapshot: Snapshot) -> dict[str, str | None]:
            return {id_: _beginning(value) for id_, value in _values_of(snapshot, rows)} if rows else {}

        return delta.read_or(self._table, read, {})

    def shapes(self, wanted: WantedLetters) -> Found[Shapes]:
        """Group the newest 500 dead letters that match by the shape of their value, largest group first."""
        columns = ("id", "topic", "partition", "offset", "first_seen", "reasons")

        def read(snapshot: Snapshot) -> Shapes:
            first = delta.first_rows(
                snapshot,
                columns,
                wanted.conditions(),
                order=Order(_NEWEST),
                most=MOST_LETTERS,
                keep=wanted.keep,
            )
            if not first.rows:
                return _NO_SHAPES
            shapes = {id_: shape_of(value) for id_, value in _values_of(snapshot, first.rows)}
            groups = by_shape((shapes[row["id"]], row) for row in first.rows)
            return Shapes(groups, len(first.rows), has_more=first.has_more)

        return delta.read_or(self._table, read, _NO_SHAPES)

    def letter(self, id_: str) -> Found[Row | None]:
        """Return one dead letter without its raw bytes, or None if the id is unknown."""

        def read(snapshot: Snapshot) -> Row | None:
            for part in snapshot.rows(LISTED, delta.equals("id", id_)):
                for row in delta.as_rows(part, LISTED):
                    return row
            return None

        return delta.read_or(self._table, read, None)

    def of_record(self, stream: str, topic: str, partition: int, offset: int) -> Found[list[Row]]:
        """Return the dead letters of one record in a stream, without raw bytes."""
        values = {"stream": stream, "topic": topic, "partition": partition, "offset": offset}
        return self._matching([delta.equals(name, value) for name, value in values.items()])

    def with_unique_id(self, stream: str, unique_id: str) -> Found[list[Row]]:
        """Return a stream's dead letters whose records have this id (`unique_by`), without raw bytes."""
        return self._matching([delta.equals("stream", stream), delta.equals("unique_id", unique_id)])

    def beginning(self, prefix: str) -> Found[list[Row]]:
        """Return the dead letters whose own id (not their record's) has this prefix, without raw bytes."""
        return self._matching([pc.starts_with(ds.field("id"), pattern=prefix)])

    def _matching(self, where: list[ds.Expression]) -> Found[list[Row]]:
        return delta.read_or(self._table, lambda snapshot: delta.all_rows(snapshot, LISTED, where), [])

    def record(self, id_: str) -> Found[Row | None]:
        """Return a dead letter's status and the raw bytes of its record, or None if the id is unknown."""
        columns = ("status", *RAW)
        return delta.read_or(self._table, lambda snapshot: snapshot.one("id", id_, columns), None)


def _values_of(snapshot: Snapshot, rows: Sequence[Row]) -> Iterator[tuple[str, bytes | None]]:
    """Yield the ids and values of letters, given newest first; at least one.

    Values can be large, so only those of the given letters are read, and a few at a time.
    """
    ids = ds.field("id").isin([row["id"] for row in rows])
    oldest = delta.since("first_seen", rows[-1]["first_seen"])
    for part in snapshot.rows(("id", "value"), delta.everything([oldest, ids]), most=_VALUES_AT_ONCE):
        yield from zip(part["id"].to_pylist(), part["value"].to_pylist(), strict=True)


def _beginning(value: bytes | None) -> str | None:
    return None if value is None else readable(value[:_MOST_BEGUN], _MOST_BEGUN, length=len(value))


def _reasons(part: pa.Table, field: Literal["rule", "message"]) -> tuple[pa.Array, pa.Array]:
    """Return two arrays with one entry per reason: the row index of its dead letter, and the given field."""
    reasons = part["reasons"].combine_chunks()
    return pc.list_parent_indices(reasons), pc.struct_field(pc.list_flatten(reasons), field)


def _counted(part: pa.Table) -> dict[tuple[str, str, str], int]:
    if not part.num_rows:
        return {}
    letters, rules = _reasons(part, "rule")
    names = {name: part[name].combine_chunks().take(letters) for name in ("stream", "status")}
    table = pa.table({"letter": letters, "rule": rules, **names})
    once = table.group_by(["letter", "stream", "rule", "status"]).aggregate([])
    found = once.group_by(["stream", "rule", "status"]).aggregate([([], "count_all")])
    return {(one["stream"], one["rule"], one["status"]): one["count_all"] for one in found.to_pylist()}
