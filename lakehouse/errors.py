"""Every error that a user can cause or mend.

    LakehouseError
    ├── SettingsError         a setting is unknown, malformed or contradicts another
    ├── ServiceError          a broker or another store could not be started, reached or stopped
    │   ├── AccessDeniedError a broker denies a right to this application
    │   ├── RegistryError     a schema registry does not answer, or refuses
    │   ├── SinkTroubleError  a store that rows are sent to does not take them
    │   └── WebError          a server does not answer by HTTP, or not as the policy wants it
    ├── ProduceError          events could not be delivered to a topic
    ├── MissingExtraError     a package is not installed that an extra of this distribution brings
    ├── VersionError          Spark or Delta lacks what this code needs of it
    ├── TableError            a Delta table is missing, or not what the stream declares
    ├── PositionError         what a table was made from is not what lies there now
    ├── StreamError           a micro-batch failed for a reason no layer knows
    │   └── HeapError         a micro-batch does not fit in the memory of Spark
    ├── RefusedError          more records were refused than allowed; what could be done is done
    └── QueryError            a SQL statement was refused

A message says what happened, to what, what was expected and what to do. The command line and the jobs
print it as one line and exit with `exit_code`; anything else is a defect and keeps its stack trace.
"""

from __future__ import annotations

from itertools import chain, takewhile

_ITEM = "- "
_FRAME = "at "  # of a stack of Java's
_MOST_LISTED = 1_000  # characters


class LakehouseError(Exception):
    """Root of the tree: a failure with a message for the user."""

    exit_code = 1


class SettingsError(LakehouseError):
    """A setting is unknown, malformed or contradicts another."""

    exit_code = 2


class ServiceError(LakehouseError):
    """A broker or another store could not be started, reached or stopped."""


class AccessDeniedError(ServiceError):
    """A broker denies a right to this application: it names the user, the operation and the resource."""


class RegistryError(ServiceError):
    """A schema registry does not answer, or refuses what it is asked; a missing schema is no such error."""


class SinkTroubleError(ServiceError):
    """A store that rows are sent to is out of reach, or full, or refuses what it is asked."""


class ProduceError(LakehouseError):
    """Events could not be delivered to a topic."""


class MissingExtraError(LakehouseError):
    """A package is not installed that an extra of this distribution brings."""


class VersionError(LakehouseError):
    """Spark or Delta is of a version that lacks what this code needs of it."""


class TableError(LakehouseError):
    """A Delta table is missing, or is not what the stream declares."""


class PositionError(LakehouseError):
    """How far a query has read, as its table says, does not fit the table or topic that it reads."""


class StreamError(LakehouseError):
    """A step failed with an error that no layer knows; its cause is chained."""


class HeapError(StreamError):
    """A micro-batch does not fit in Spark's memory; its cause is chained."""


class RefusedError(LakehouseError):
    """A run has caught up, and silver has refused more of its records than the settings allow."""

    exit_code = 3


class QueryError(LakehouseError):
    """A SQL statement was refused."""


def first_line(error: object) -> str:
    """Return the first line of an error's text that is not empty, and what follows if it ends with a colon.

    That is a list, or the next line. Names in it may have U+2028. Delta says so which row violates a CHECK:
    `… violated by row with values:`, and a line ` - column : value` for each.
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
