"""Queries' positions, recorded as transactions in the tables that the queries fill. All functions are pure.

Each commit of a micro-batch contains, atomically with its rows, one Delta transaction (`txn`) per source
whose position it advances. The transaction's application id names the query and the source; its version is
the first unread version or offset:

    silver.metrics_events reads 5d0f...                   57   every version of bronze before 57
    silver.metrics_events reads 5d0f...@12                 3   3 files of version 12, where the query began
    bronze.metrics_events reads metrics-events:9Zc.../0  812   every offset of partition 0 before 812
    bronze.metrics_events begins metrics-events:9Zc.../0 500   the user chose to begin at this offset

A table is identified by its Delta id, and a topic by its name and its Kafka id. A table or topic that was
recreated under the same name therefore counts as a different source. If a query fills two tables,
transactions in the first table also name the second table: `silver.metrics_events of 8a2b... reads 5d0f...`.
"""

from __future__ import annotations

from collections.abc import Mapping

from lakehouse.storage.tables.specs import Move, Position

Transactions = Mapping[str, int]
"""The version in the last transaction of each application in a table, keyed by application id."""

_READS = " reads "
_BEGINS = " begins "
_OF = " of "
_ALL = 1 << 62  # more files than any version has


BEFORE_ALL = Position(0)


def application(query: str, source: str, *, of: str | None = None) -> str:
    """Return the application id of a query's transactions for a source.

    If the query fills several tables, `of` is the id of the last one, for transactions in the other tables.
    """
    return f"{query}{'' if of is None else f'{_OF}{of}'}{_READS}{source}"


def position_in(noted: Transactions, application_: str) -> Position | None:
    """Return the application's position in its source, or None if none is recorded."""
    version = noted.get(application_)
    if version is not None:
        return Position(version)
    begun = _begun(noted, application_)
    return None if begun is None else Position(begun, noted[f"{application_}@{begun}"])


def beginning_in(noted: Transactions, application_: str) -> Position | None:
    """Return the position before the first file of the version with which an application began.

    Return None if the application did not begin with the files in a version.
    """
    begun = _begun(noted, application_)
    return None if begun is None else Position(begun, 0)


def moves(application_: str, noted: Transactions, before: Position, after: Position) -> tuple[Move, ...]:
    """Return the moves with which a commit records the application's new position `after`."""

    def move(name: str, to: int) -> Move:
        return Move(name, noted.get(name), to)

    if after.files is not None:
        return (move(f"{application_}@{after.version}", after.files),)
    if not before.is_beginning:
        return (move(application_, after.version),)
    # Record that the query began with the files in a version, not with the first commit.
    return (move(application_, after.version), move(f"{application_}@{before.version}", _ALL))


def sources_in(noted: Transactions, query: str, *, of: str | None = None) -> set[str]:
    """Return the sources for which the query has recorded positions."""
    prefix = application(query, "", of=of)
    return {name.removeprefix(prefix).partition("@")[0] for name in noted if name.startswith(prefix)}


def topic_source(topic: str, topic_id: str | None) -> str:
    """Return the name that identifies a topic as a source. Brokers older than 2.8 have no topic ids."""
    return f"{topic}:{topic_id or '-'}"


def offsets_in(noted: Transactions, query: str, topic_source_: str) -> dict[int, int]:
    """Return the query's first unread offset in each partition of a topic."""
    prefix = application(query, f"{topic_source_}/")
    return {int(name.removeprefix(prefix)): at for name, at in noted.items() if name.startswith(prefix)}


def offset_moves(
    query: str, topic_source_: str, before: Mapping[int, int], after: Mapping[int, int]
) -> tuple[Move, ...]:
    """Return the moves with which a commit records the query's new offsets."""
    return tuple(
        Move(application(query, f"{topic_source_}/{partition}"), before.get(partition), offset)
        for partition, offset in sorted(after.items())
        if before.get(partition) != offset
    )


def begins(query: str, topic_source_: str, at: Mapping[int, int]) -> tuple[Move, ...]:
    """Return the moves with which a commit records the offsets at which the user chose to begin."""
    return tuple(
        Move(f"{query}{_BEGINS}{topic_source_}/{partition}", None, offset)
        for partition, offset in sorted(at.items())
    )


def begun_in(noted: Transactions, query: str, topic: str) -> dict[int, int]:
    """Return the offsets at which the user chose to begin, if any, keyed by partition."""
    prefix = f"{query}{_BEGINS}{topic}:"
    return {int(name.rpartition("/")[2]): offset for name, offset in noted.items() if name.startswith(prefix)}


def _begun(noted: Transactions, application_: str) -> int | None:
    prefix = f"{application_}@"
    begun = (int(name.removeprefix(prefix)) for name in noted if name.startswith(prefix))
    return max(begun, default=None)
