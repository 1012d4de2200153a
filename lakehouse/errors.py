"""Every error that a user can cause or mend.

    LakehouseError
    ├── SettingsError         a setting is unknown, malformed or contradicts another
    ├── ServiceError          a broker or another store could not be started, reached or stopped
    │   ├── AccessDeniedError a broker denies a right to this application
    │   ├── RegistryError     a schema registry does not answer, or refuses
    │   └── SinkTroubleError  a store that rows are sent to does not take them
    ├── ProduceError          events could not be delivered to a topic
    ├── MissingExtraError     a package is not installed that an extra of this distribution brings
    ├── VersionError          Spark or Delta lacks what this code needs of it
    ├── TableError            a Delta table is missing, or not what the stream declares
    ├── PositionError         what a table was made from is not what lies there now
    ├── StreamError           a micro-batch failed for a reason no layer knows
    │   └── HeapError         a micro-batch does not fit in the memory of Spark
    └── QueryError            a SQL statement was refused

A message says what happened, to what, what was expected and what to do. The command line and the jobs
print it as one line and exit with `exit_code`; anything else is a defect and keeps its stack trace.
"""

from __future__ import annotations

from itertools import takewhile

_ITEM = "- "
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


class QueryError(LakehouseError):
    """A SQL statement was refused."""


def first_line(error: object) -> str:
    """Return the first line of an error's text that is not empty, and the list that it announces.

    Names in it may have U+2028. Delta says so which row violates a CHECK: `… violated by row with values:`,
    and a line ` - column : value` for each.
    """
    lines = filter(None, (line.strip() for line in str(error).split("\n")))
    line = next(lines, "no message")
    if not line.endswith(":"):
        return line
    listed = (one.removeprefix(_ITEM) for one in takewhile(lambda one: one.startswith(_ITEM), lines))
    return f"{line} {', '.join(listed)}"[: len(line) + _MOST_LISTED].rstrip()
