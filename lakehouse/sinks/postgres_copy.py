"""Rows on their way into PostgreSQL: into the temporary table, each that the database can hold.

A row that it cannot hold is found and told of, and the others go on. Of that row its key alone is sent, as
gone: no former state of it stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import psycopg
from psycopg.errors import UntranslatableCharacter

from lakehouse.printable import printable
from lakehouse.sinks.postgres_client import encoding_of, takes_any_text
from lakehouse.sinks.postgres_errors import is_of_a_row, what
from lakehouse.sinks.postgres_layout import key_alone
from lakehouse.sinks.postgres_sql import Sql


class Incoming(NamedTuple):
    """A row: its line, the version that has it so, and whether it is gone."""

    line: str
    version: int
    is_gone: bool

    @property
    def text(self) -> str:
        """The line as it is copied."""
        return f"{self.line}\t{self.version}\t{'t' if self.is_gone else 'f'}\n"


class Receiver:
    """Copies rows into the temporary table of a connection, within its transaction."""

    def __init__(self, connection: psycopg.Connection, table: Sql) -> None:
        self.has_gone = False
        self._connection = connection
        self._table = table
        self._encoding = encoding_of(connection)
        self._takes: dict[str, bool] = {}  # the characters that were asked for

    def take(self, rows: Sequence[Incoming]) -> Mapping[int, str]:
        """Copy rows, and return why others cannot be, each by its number.

        Raises psycopg.Error for what is about no row.
        """
        refused = dict(self._lacking(rows))
        fitting = [number for number in range(len(rows)) if number not in refused]
        refused |= self._copy(rows, fitting)
        if refused:
            keys = [self._key_of(rows[number]) for number in refused]
            in_vain = {number for number, _ in self._lacking(keys)}
            self._copy(keys, [number for number in range(len(keys)) if number not in in_vain])
        self.has_gone |= bool(refused) or any(row.is_gone for row in rows)
        return {number: why for number, why in sorted(refused.items()) if not rows[number].is_gone}

    def _key_of(self, row: Incoming) -> Incoming:
        return Incoming(key_alone(row.line, self._table.declared), row.version, is_gone=True)

    def _copy(self, rows: Sequence[Incoming], chosen: Sequence[int]) -> dict[int, str]:
        """Copy those rows; where the server refuses some, find them by halves."""
        if not chosen:
            return {}
        try:
            with self._connection.transaction(), self._connection.cursor().copy(self._table.copy()) as copy:
                copy.write("".join(rows[number].text for number in chosen))
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
        """Yield the rows with characters that the database's encoding has not got, and one of these."""
        if takes_any_text(self._encoding):
            return
        used = [set[str]() if row.line.isascii() else set(row.line) for row in rows]
        self._ask(sorted(one for one in set[str]().union(*used) - self._takes.keys() if not one.isascii()))
        lacks = {character for character, is_taken in self._takes.items() if not is_taken}
        for number, characters in enumerate(used):
            if found := lacks.intersection(characters):
                one = min(found)
                yield number, f"the encoding {self._encoding} has no {printable(one)} (U+{ord(one):04X})"

    def _ask(self, characters: Sequence[str]) -> None:
        """Ask the server which characters it takes."""
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
