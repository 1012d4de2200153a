"""Gold rows for an HTTP endpoint, at least once: the endpoint keeps the newest version of each row.

The endpoint also keeps the position up to which it has a table, which the sink sets at the end of each
micro-batch. Version and position make repeated and late requests harmless: the newer row stays, and a
position is set only if it still is the one that the sink has seen. `endpoint.py` is a complete endpoint;
its docstring lists the requests.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import datetime
from typing import Any

from lakehouse.sinks import (
    Audited,
    Change,
    Exported,
    Findings,
    Position,
    Sending,
    Settings,
    SinkKind,
    SinkTroubleError,
    changes_of,
    outgoing,
)
from shop_sinks.client import Client
from shop_sinks.comparing import Stored, compare

NAME, LABEL = "http", "the HTTP endpoint"
MOST_ROWS = 500
_MOST_CHARACTERS = 4 << 20
_LOOK_EVERY_S, _LOOK_AGAIN_S = 5.0, 60.0


class ToEndpoint:
    """The rows of one gold table, on their way to the endpoint."""

    name = NAME

    def __init__(self, exported: Exported) -> None:
        self._exported = exported
        self._client = Client(exported.settings)
        self._posts: _Posts | None = None  # None if the endpoint already has the micro-batch
        self._look_at = 0.0  # on the monotonic clock

    def begin(self, sending: Sending) -> None:
        """Begin a micro-batch. Raises SinkTroubleError if the endpoint lacks earlier rows."""
        self._posts, span = None, sending.span
        reached = _position(self._client, self._exported)
        if reached is None and not sending.is_first:
            raise SinkTroubleError(f"{LABEL} has no rows of {self._exported.table.name}; it is filled")
        if reached is not None and reached.is_before(span.before):
            raise SinkTroubleError(f"{LABEL} has {self._exported.table.name} up to {reached}; it is filled")
        if reached is None or reached.is_before(span.after):
            self._posts = _Posts(
                self._client,
                self._exported,
                expected=reached,
                position=span.after,
                series=series_of(sending),
            )

    def write(self, changes: Sequence[Change]) -> None:
        """Post the rows that fill a request, and keep the others for the next one."""
        if self._posts is not None:
            self._posts.add(changes)

    def end(self) -> int:
        """Post the remaining rows and the position. Return how many rows changed at the endpoint."""
        posts, self._posts = self._posts, None
        self._look_at = time.monotonic() + _LOOK_EVERY_S
        return 0 if posts is None else posts.end()

    def lacks_rows(self) -> bool:
        """Return whether the endpoint has no position for the table, or false if it is unreachable.

        The endpoint is asked at most every five seconds, and once a minute while it is unreachable.
        """
        if time.monotonic() < self._look_at:
            return False
        self._look_at = time.monotonic() + _LOOK_EVERY_S
        try:
            return _position(self._client, self._exported) is None
        except SinkTroubleError:
            self._look_at = time.monotonic() + _LOOK_AGAIN_S
            return False

    def require(self) -> None:
        """Raise SinkTroubleError unless the endpoint answers."""
        _position(self._client, self._exported)

    def fill(self, reached: Position | None, now: datetime) -> int:  # noqa: ARG002 - rows carry no time
        """Send all rows that gold has at `reached`. The endpoint then drops all others.

        Sends nothing if the endpoint has reached that position.
        """
        stored = _position(self._client, self._exported)
        if reached is None or (stored is not None and not stored.is_before(reached)):
            return 0
        version, refill = reached.version - (0 if reached.is_beginning else 1), uuid.uuid4().hex
        posts = _Posts(
            self._client,
            self._exported,
            expected=stored,
            position=Position(version + 1),
            series=f"refill {refill}",
            refill=refill,
        )
        with outgoing(self._exported.standing_at(version), changes_of(self._exported.table)) as rows:
            posts.add(rows.in_parts())
        return posts.end()

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


class _Posts:
    """The requests of one micro-batch or refill: rows, in order and numbered, and then the position.

    `expected` is the endpoint's position before them, and `position` the one after. `series` is the same if
    the same rows are sent again.
    """

    def __init__(
        self,
        client: Client,
        exported: Exported,
        *,
        expected: Position | None,
        position: Position,
        series: str,
        refill: str | None = None,
    ) -> None:
        self._client, self._id, self._series = client, exported.sent_as, series
        self._table = {
            "table": exported.table.name,
            "id": self._id,
            "generation": exported.generation,
            "refill": refill,
        }
        self._ends = {
            "expected": _as_json(expected),
            "position": _as_json(position),
            "last": position.version - 1,
        }
        self._rows = list[dict[str, Any]]()
        self._characters = self._number = self._changed = 0

    def add(self, changes: Iterable[Change]) -> None:
        for one in changes:
            self._rows.append({"key": one.row_key, "version": one.version, "message": one.value})
            self._characters += len(one.row_key) + len(one.value or "")
            if len(self._rows) == MOST_ROWS or self._characters >= _MOST_CHARACTERS:
                self._post_rows()

    def end(self) -> int:
        if self._rows:
            self._post_rows()
        self._post("/position", self._ends)
        return self._changed

    def _post_rows(self) -> None:
        self._post("/rows", {"rows": self._rows})
        self._rows, self._characters = [], 0

    def _post(self, path: str, more: dict[str, Any]) -> None:
        key = idempotency_key(self._id, self._series, self._number)
        answer = self._client.post(path, self._table | more, {"Idempotency-Key": key})
        self._number += 1
        with _understood():
            self._changed += int(answer["changed"])


def series_of(sending: Sending) -> str:
    """Return the text that identifies a micro-batch's rows: its span.

    If VACUUM has removed changes, a retry has other rows in the same span, so the time is added.
    """
    span = f"{sending.span.before} to {sending.span.after}"
    return f"{span} at {sending.now.isoformat()}" if sending.begins_anew else span


def idempotency_key(table: str, series: str, number: int) -> str:
    """Return the key of a request: the same for the same table, micro-batch and number."""
    return hashlib.sha256(f"{table}\n{series}\n{number}".encode()).hexdigest()


def audit(audited: Audited) -> Findings:
    """Compare gold at the endpoint's position with the endpoint's rows.

    A row that the endpoint has in a newer version is in flight, and is not compared.
    """
    exported = audited.exported
    with closing(Client(exported.settings)) as client:
        position = _position(client, exported)
        if position is None:
            return Findings(0, 1, [({}, f"{LABEL} has no position for this table")])
        if position.is_beginning:
            return Findings(not_compared=[f"not compared: {LABEL} is being filled"])
        return compare(audited, position.version - 1, _rows(client, exported.table.name), LABEL)


def _rows(client: Client, table: str) -> Iterator[tuple[str, Stored]]:
    """Yield the endpoint's rows in the order of their keys."""
    after = ""
    while page := _page(client, table, after):
        yield from page
        after = page[-1][0]


def _page(client: Client, table: str, after: str) -> list[tuple[str, Stored]]:
    answer = client.get("/rows", table=table, after=after)
    with _understood():
        return [(row["key"], Stored(row["version"], row["message"])) for row in answer["rows"]]


def _position(client: Client, exported: Exported) -> Position | None:
    """Return the endpoint's position for the table, or None if there is none.

    Raises SinkTroubleError if the endpoint has a newer table of this name.
    """
    found = client.get("/position", table=exported.table.name, id=exported.sent_as)
    with _understood():
        is_newer = (found["generation"] or 0) > exported.generation
        position = None if found["position"] is None else Position(*found["position"])
    if is_newer:
        raise SinkTroubleError(
            f"{LABEL} has rows of {exported.table.name} from a lake that is newer than this one; each lake "
            "needs its own endpoint"
        )
    return position


@contextmanager
def _understood() -> Iterator[None]:
    """Raise SinkTroubleError if an answer has another form than the block expects."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise SinkTroubleError(f"{LABEL} answers in a form that is not the one in endpoint.py") from error


def _as_json(position: Position | None) -> list[int | None] | None:
    return None if position is None else [position.version, position.files]


def _require(settings: Settings) -> None:
    with closing(Client(settings)) as client:
        client.get("/")


KIND = SinkKind(
    NAME,
    LABEL,
    is_set=lambda settings: NAME in settings.sinks,
    require=_require,
    make=ToEndpoint,
    audit=audit,
)
