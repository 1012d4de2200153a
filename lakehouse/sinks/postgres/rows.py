"""Export a gold table to PostgreSQL exactly once: rows and position share a transaction.

gold.<table> in PostgreSQL has the gold table's columns, except fold state and columns without a simple type.
Its primary key is the table's key. `_generation` and `_version` identify the gold commit that wrote the row,
or the gold version from which PostgreSQL was filled. An older version never replaces a newer version.
gold.lakehouse_positions stores each table's position.

A micro-batch is one transaction: a COPY into a temporary table, an INSERT … ON CONFLICT, a DELETE, and the
position. After an outage, a server catches up from its own position. A server that contains another table's
rows, or has lost rows, is refilled with all gold rows in one transaction.

A database can be unable to store a row, for example because the encoding cannot represent a character. Such a
row is recorded as unsent. Only its key is sent, as a deletion, so no earlier state of the row remains. Other
rows are not affected.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

import psycopg
from psycopg.errors import UntranslatableCharacter
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from lakehouse.common.errors import StoreWord, TableError
from lakehouse.common.printable import printable
from lakehouse.sinks.change import REFUSED, TOO_LARGE, Change, UnsentRow, next_chunk
from lakehouse.sinks.outgoing import changes_of, outgoing
from lakehouse.sinks.port import Exported, Sending
from lakehouse.sinks.postgres import statements
from lakehouse.sinks.postgres.client import (
    PostgresTroubleError,
    connect,
    encoding_of,
    is_of_a_row,
    reported,
    takes_any_text,
    what,
)
from lakehouse.sinks.postgres.layout import LABEL, MOST_KEY_BYTES, NAME, key_alone, key_bytes, line_of
from lakehouse.sinks.postgres.statements import Sql, prepare_table
from lakehouse.storage import tables
from lakehouse.storage.spark.query_errors import are_files_gone
from lakehouse.storage.tables import Position

Incoming = tuple[str, int, bool]
"""A row: COPY line, version, and whether the row is deleted. A plain tuple is by far the fastest type."""


class Receiver:
    """Copies rows into a connection's temporary table, within the connection's transaction."""

    def __init__(self, connection: psycopg.Connection, table: Sql) -> None:
        self.has_gone = False
        self._connection = connection
        self._table = table
        self._encoding = encoding_of(connection)
        self._takes: dict[str, bool] = {}  # whether the server can store each character

    def take(self, rows: Sequence[Incoming]) -> Mapping[int, str]:
        """Copy the rows, and return the reason for each row that could not be copied, keyed by row number.

        Raises psycopg.Error for errors that are not about a row.
        """
        refused = dict(self._lacking(rows))
        every = range(len(rows))
        refused |= self._copy(rows, [one for one in every if one not in refused] if refused else every)
        if refused:
            keys = [self._key_of(rows[number]) for number in refused]
            in_vain = {number for number, _ in self._lacking(keys)}
            self._copy(keys, [number for number in range(len(keys)) if number not in in_vain])
        self.has_gone |= bool(refused) or any(is_gone for _, _, is_gone in rows)
        return {number: why for number, why in sorted(refused.items()) if not rows[number][2]}

    def _key_of(self, row: Incoming) -> Incoming:
        line, version, _ = row
        return key_alone(line, self._table.declared), version, True

    def _copy(self, rows: Sequence[Incoming], chosen: Sequence[int]) -> dict[int, str]:
        """Copy the chosen rows. Find refused rows by bisection, and return the reason for each row number."""
        if not chosen:
            return {}
        try:
            with self._connection.transaction(), self._connection.cursor().copy(self._table.copy()) as copy:
                copy.write(_text(rows if len(chosen) == len(rows) else [rows[number] for number in chosen]))
        except psycopg.Error as error:
            if not is_of_a_row(error):
                raise
            if len(chosen) == 1:
                return {chosen[0]: what(error)}
        else:
            return {}
        middle = len(chosen) // 2
        return self._copy(rows, chosen[:middle]) | self._copy(rows, chosen[middle:])

    def _lacking(self, rows: Sequence[Incoming]) -> Iterator[tuple[int, str]]:
        """Yield the number of each row that the database's encoding cannot represent, with the reason."""
        if takes_any_text(self._encoding):
            return
        used = [set[str]() if line.isascii() else set(line) for line, _, _ in rows]
        self._ask(sorted(one for one in set[str]().union(*used) - self._takes.keys() if not one.isascii()))
        lacks = {character for character, is_taken in self._takes.items() if not is_taken}
        for number, characters in enumerate(used):
            if found := lacks.intersection(characters):
                one = min(found)
                yield number, f"the encoding {self._encoding} has no {printable(one)} (U+{ord(one):04X})"

    def _ask(self, characters: Sequence[str]) -> None:
        """Find out which of these characters the server can store, by bisection."""
        if not characters:
            return
        try:
            with self._connection.transaction():
                self._connection.execute("SELECT %s::text", ["".join(characters)])
        except UntranslatableCharacter:
            if len(characters) > 1:
                middle = len(characters) // 2
                self._ask(characters[:middle])
                self._ask(characters[middle:])
                return
            self._takes[characters[0]] = False
        else:
            self._takes |= dict.fromkeys(characters, True)


def _text(rows: Sequence[Incoming]) -> str:
    return "".join([f"{line}\t{version}\t{'t' if is_gone else 'f'}\n" for line, version, is_gone in rows])


_LOOK_EVERY_S, _LOOK_AGAIN_S = 5.0, 30.0
_CHUNK_ROWS = 10_000


@dataclass(frozen=True)
class _Standing:
    """A table's position in PostgreSQL (None if rows might be missing), and whether the table is empty."""

    position: Position | None
    is_empty: bool


class ToPostgres:
    """The PostgreSQL sink. It writes one gold table's rows over one connection."""

    name = NAME

    def __init__(self, exported: Exported) -> None:
        self._exported = exported
        self._url = exported.settings.postgres.url.get_secret_value()
        self._sql = Sql(exported.table)
        self._connection: psycopg.Connection | None = None
        self._sending: Sending | None = None  # None if PostgreSQL already has the micro-batch
        self._receiver: Receiver | None = None
        self._look_at = 0.0  # on the monotonic clock

    def begin(self, sending: Sending) -> None:
        """Begin a transaction, unless an earlier attempt has committed this micro-batch.

        Raises PostgresTroubleError if earlier rows are missing.
        """
        self._sending = None
        if not self._is_ready():
            self.close()
        with self._asking() as connection:
            standing, span = self._standing(connection, locks=True), sending.span
            position = standing.position
            if position is None and not (sending.is_first and standing.is_empty):
                raise PostgresTroubleError(
                    f"{LABEL} is missing rows of gold.{self._sql.name}; the export will add them",
                    StoreWord.BEHIND,
                )
            if position is not None and position.is_before(span.before):
                raise PostgresTroubleError(
                    f"{LABEL} has gold.{self._sql.name} up to {position}; the export will catch up",
                    StoreWord.BEHIND,
                )
            if position is not None and not position.is_before(span.after):
                connection.rollback()
                return
        self._sending = sending

    def write(self, changes: Sequence[Change]) -> None:
        """Copy the rows into the temporary table, unless PostgreSQL already has the micro-batch."""
        if self._sending is not None:
            with self._asking() as connection:
                self._receive(connection, changes, self._sending.now)

    def end(self) -> int:
        """Merge the rows, commit them with the position, and return how many rows changed."""
        sending, self._sending = self._sending, None
        self._look_at = time.monotonic() + _LOOK_EVERY_S
        if sending is None:
            return 0
        with self._asking() as connection:
            rows = self._merge(connection)
            self._note(connection, sending.span.after)
        return rows

    def lacks_rows(self) -> bool:
        """Return whether rows are missing, or false if PostgreSQL is unreachable.

        PostgreSQL is queried at most every five seconds.
        """
        if time.monotonic() < self._look_at:
            return False
        self._look_at = time.monotonic() + _LOOK_EVERY_S
        try:
            return self._position() is None
        except PostgresTroubleError:
            self._look_at = time.monotonic() + _LOOK_AGAIN_S
            return False

    def require(self) -> None:
        """Raise PostgresTroubleError unless PostgreSQL answers, and the tables exist or can be created."""
        if not self._is_ready():
            self.close()
        self._position()

    def fill(self, reached: Position | None, now: datetime) -> int:
        """Send the rows changed since PostgreSQL's position. If it is unknown or too old, send all rows."""
        if reached is None:
            return 0
        position = self._position()
        if position is not None and not position.is_before(reached):
            return 0
        if position is not None and not position.is_beginning and not reached.is_beginning:
            try:
                return self._catch_up(position, reached, now)
            except (PySparkException, Py4JError, TableError) as error:
                if not isinstance(error, TableError) and not are_files_gone(error):
                    raise
        return self._replace(position, reached, now)

    def close(self) -> None:
        """Close the connection, and discard uncommitted work."""
        connection, self._connection, self._receiver = self._connection, None, None
        if connection is not None:
            connection.close()

    def _catch_up(self, first: Position, end: Position, now: datetime) -> int:
        newest = self._exported.changed_between(first.version, end.version)
        return self._filled(newest, first, end, now, is_all=False)

    def _replace(self, first: Position | None, reached: Position, now: datetime) -> int:
        """Replace all rows with gold's rows at `reached`.

        If VACUUM has removed this version, gold's newest version is used instead.
        """
        exported, version = self._exported, reached.version - (0 if reached.is_beginning else 1)
        try:
            return self._replaced_by(version, first, now)
        except (PySparkException, Py4JError) as error:
            if not are_files_gone(error):
                raise
        return self._replaced_by(tables.version_of(exported.spark, exported.path), first, now)

    def _replaced_by(self, version: int, first: Position | None, now: datetime) -> int:
        standing = self._exported.standing_at(version)
        return self._filled(standing, first, Position(version + 1), now, is_all=True)

    def _filled(
        self, leaving: DataFrame, first: Position | None, end: Position, now: datetime, *, is_all: bool
    ) -> int:
        messages = changes_of(self._exported.table, {NAME: line_of(self._exported.table)})
        with outgoing(leaving, messages) as rows, self._asking() as connection:
            if self._standing(connection, locks=True).position != first:
                raise PostgresTroubleError(
                    f"another export has sent rows of gold.{self._sql.name}; stop one of the two exports"
                )
            changes = rows.in_parts()
            while chunk := next_chunk(changes, _CHUNK_ROWS):
                self._receive(connection, chunk, now)
            written = self._merge(connection, is_all=is_all)
            self._note(connection, end)
        return written

    def _position(self) -> Position | None:
        with self._asking() as connection:
            found = self._standing(connection, locks=False)
            connection.rollback()
        return found.position

    def _standing(self, connection: psycopg.Connection, *, locks: bool) -> _Standing:
        """Return the table's state. With `locks`, other exports of the table wait for this transaction."""
        asked = statements.LOCKED_POSITION if locks else statements.POSITION
        found = connection.execute(asked, [self._sql.name]).fetchone()
        is_empty = self._is_empty(connection)
        if found is None:
            return _Standing(None, is_empty)
        table, generation, version, files, was_empty = found
        if generation > self._exported.generation:
            raise PostgresTroubleError(
                f"{LABEL} has rows of gold.{self._sql.name} from a lake that is newer than this one; each "
                "lake needs its own database (postgres.url)"
            )
        is_whole = table == self._exported.sent_as and was_empty >= is_empty
        return _Standing(Position(version, files) if is_whole else None, is_empty)

    def _receive(self, connection: psycopg.Connection, changes: Sequence[Change], now: datetime) -> None:
        if self._receiver is None:
            self._receiver = Receiver(connection, self._sql)
        fitting = [change for change in changes if change.own[NAME] is not None]
        rows = [(change.own[NAME], change.version, change.value is None) for change in fitting]
        refused = self._receiver.take(rows)
        unsent = [_too_large(change) for change in changes if change.own[NAME] is None]
        unsent += [UnsentRow.of(fitting[number], f"{REFUSED}: {why}") for number, why in refused.items()]
        if unsent:
            self._exported.note_unsent(NAME, unsent, now)

    def _merge(self, connection: psycopg.Connection, *, is_all: bool = False) -> int:
        """Merge the copied rows into the table, and return how many rows changed."""
        receiver, self._receiver = self._receiver, None
        generation = self._exported.generation
        if is_all:
            connection.execute(self._sql.analyze())
            gone = connection.execute(self._sql.delete_others()).rowcount
            return gone + connection.execute(self._sql.replace(generation)).rowcount
        rows = connection.execute(self._sql.upsert(generation)).rowcount
        if receiver is not None and receiver.has_gone:
            rows += connection.execute(self._sql.delete(generation)).rowcount
        return rows

    def _note(self, connection: psycopg.Connection, position: Position) -> None:
        of_table = [self._sql.name, self._exported.sent_as, self._exported.generation]
        connection.execute(
            statements.NOTE, [*of_table, position.version, position.files, self._is_empty(connection)]
        )
        connection.commit()

    def _is_empty(self, connection: psycopg.Connection) -> bool:
        answer = connection.execute(self._sql.is_empty()).fetchone()
        return answer is not None and bool(answer[0])

    def _is_ready(self) -> bool:
        """Return whether the connection can begin a transaction, because the server might have closed it."""
        connection = self._connection
        if connection is None:
            return False
        self._receiver = None
        try:
            connection.rollback()
            connection.execute("SELECT")
            connection.rollback()
        except psycopg.Error:
            return False
        return True

    @contextmanager
    def _asking(self) -> Iterator[psycopg.Connection]:
        """Yield the connection after preparing the tables, and close it if the block fails."""
        try:
            if self._connection is None:
                self._connection = connect(self._url)
                prepare_table(self._connection, self._sql)
                self._connection.commit()
            with reported(self._sql.name):
                yield self._connection
        except BaseException:
            self.close()
            raise


def _too_large(change: Change) -> UnsentRow:
    return UnsentRow.of(change, TOO_LARGE, key_bytes(change.row_key), MOST_KEY_BYTES)
