"""Errors that a user can cause or fix.

    LakehouseError
    ├── SettingsError         a setting is unknown or malformed, or contradicts another
    ├── ServiceError          a broker or store could not be started, reached or stopped
    │   ├── AccessDeniedError the broker denies this application a permission
    │   ├── RegistryError     the schema registry does not answer, or refuses a request
    │   ├── SinkTroubleError  an output store is unreachable or full, or refuses a request
    │   └── WebError          an HTTP request failed, or the network policy forbids it
    ├── ProduceError          records could not be delivered to a topic
    ├── MissingExtraError     a package from an optional extra is not installed
    ├── VersionError          Spark or Delta has an unsupported version
    ├── TableError            a Delta table is missing or differs from its declaration
    ├── PositionError         a table's read position does not match its source
    ├── StreamError           a step failed with an unexpected error
    │   └── HeapError         a micro-batch does not fit in Spark's memory
    ├── RefusedError          silver refused more records than allowed; the rest were processed
    └── QueryError            a SQL statement was refused

A message states what happened, where, what was expected, and how to fix it. The command line and the jobs
print it on one line and exit with `exit_code`. Any other exception is a bug and keeps its stack trace.
"""

from __future__ import annotations

from enum import StrEnum
from itertools import chain, takewhile

_ITEM = "- "
_FRAME = "at "  # a frame of a Java stack trace
_MOST_LISTED = 1_000  # characters


class LakehouseError(Exception):
    """The base class: a failure with a message for the user."""

    exit_code = 1


class SettingsError(LakehouseError):
    """A setting is unknown or malformed, or contradicts another setting."""

    exit_code = 2


class StoreWord(StrEnum):
    """The state of a store that an export fills, in one word, from best to worst.

    WELL     it has every row, or none has waited too long
    UNKNOWN  it cannot be determined
    BEHIND   rows have waited for too long, or it is being filled after it lacked rows
    FULL     it has no room for more rows
    REFUSED  it answers, but refuses the user, a command or a row
    AWAY     it cannot be reached
    """

    WELL = "well"
    UNKNOWN = "unknown"
    BEHIND = "behind"
    FULL = "full"
    REFUSED = "refused"
    AWAY = "away"


class ServiceError(LakehouseError):
    """A broker or another store could not be started, reached or stopped.

    `word` is the state of the store that this error implies: the given one, or that of its class.
    """

    word = StoreWord.AWAY

    def __init__(self, message: str, word: StoreWord | None = None) -> None:
        super().__init__(message)
        self.word = word or self.word


class AccessDeniedError(ServiceError):
    """The broker denies this application a permission. The message names the user, operation and resource."""

    word = StoreWord.REFUSED


class RegistryError(ServiceError):
    """The schema registry is unreachable or refuses a request. A missing schema does not raise this error."""


class SinkTroubleError(ServiceError):
    """An output store is unreachable or full, or refuses a request: `word` says which of these."""

    word = StoreWord.BEHIND


class ProduceError(LakehouseError):
    """Records could not be delivered to a topic."""


class MissingExtraError(LakehouseError):
    """A package from an optional extra is not installed."""


class VersionError(LakehouseError):
    """The installed version of Spark or Delta lacks a required feature."""


class TableError(LakehouseError):
    """A Delta table is missing or differs from its declaration."""


class PositionError(LakehouseError):
    """A query's recorded read position does not match the table or topic that it reads."""


class StreamError(LakehouseError):
    """A step failed with an unexpected error, which is chained as the cause."""


class HeapError(StreamError):
    """A micro-batch does not fit in Spark's memory. The original error is chained as the cause."""


class RefusedError(LakehouseError):
    """A catch-up run processed all records, but silver refused more of them than the settings allow."""

    exit_code = 3


class QueryError(LakehouseError):
    """A SQL statement was refused."""


def first_line(error: object) -> str:
    """Return the first non-empty line of an error's text, with the lines after it if it ends with a colon.

    The lines after the colon are a list, or a single line. Only line feeds end a line, because names can
    contain U+2028. Delta reports the row that violates a CHECK as `… violated by row with values:` followed
    by ` - column : value` lines.
    """
    lines = filter(None, (line.strip() for line in str(error).split("\n")))
    said = next(lines, "no message")
    most = len(said) + _MOST_LISTED
    while said.endswith(":") and len(said) < most:
        after = next(lines, None)
        if after is None or after.startswith(_FRAME):
            return said.rstrip(":")
        if after.startswith(_ITEM):
            items = takewhile(lambda one: one.startswith(_ITEM), chain([after], lines))
            after = ", ".join(one.removeprefix(_ITEM) for one in items)
        said = f"{said} {after}"
    return said[:most].rstrip()
