"""Copies rows into PostgreSQL's temporary table, except those that the database cannot hold.

A row that it cannot hold is found and reported, and the others are copied. Of that row only the key is sent,
as deleted, so that no former state of it remains.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import psycopg
from psycopg.errors import UntranslatableCharacter

from lakehouse.common.printable import printable
from lakehouse.sinks.postgres.client import encoding_of, is_of_a_row, takes_any_text, what
from lakehouse.sinks.postgres.layout import key_alone
from lakehouse.sinks.postgres.statements import Sql

Incoming = tuple[str, int, bool]
"""A row's line, its version, and whether it is deleted. A plain tuple is the cheapest by far."""


class Receiver:
    """Copies rows into the temporary table of a connection, within its transaction."""

    def __init__(self, connection: psycopg.Connection, table: Sql) -> None:
        self.has_gone = False
        self._connection = connection
        self._table = table
        self._encoding = encoding_of(connection)
        self._takes: dict[str, bool] = {}  # whether the server takes a character

    def take(self, rows: Sequence[Incoming]) -> Mapping[int, str]:
        """Copy rows, and return why others cannot be copied, by their numbers.

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
        """Copy the chosen rows; if the server refuses some, find them by bisection."""
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
        """Yield the numbers of rows with characters that the database's encoding lacks, and the reason."""
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


def _text(rows: Sequence[Incoming]) -> str:
    return "".join([f"{line}\t{version}\t{'t' if is_gone else 'f'}\n" for line, version, is_gone in rows])
