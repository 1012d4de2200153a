"""Exclusive access to a source's records, for decisions that depend on all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from lakehouse.engine.layers import silver
from lakehouse.storage.tables import Lake, leases
from lakehouse.streams.definition import Source


@contextmanager
def holding(lake: Lake, source: Source, what: str) -> Iterator[None]:
    """Lock a source's dead letters, so that no other process can make decisions about them.

    If silver must wait for these decisions (`is_waiting`), also locks silver. Raises TableError if another
    process holds the dead letters or silver.
    """
    paths, name = silver.paths_of(lake, source), silver.query_name(source)
    with ExitStack() as held:
        letters = leases.held_part(lake.spark, paths.dead, source.table, f"{what} of {name}")
        held.enter_context(letters)
        if is_waiting(lake, source):
            held.enter_context(leases.held(lake.spark, paths.clean, name))
        yield


def is_waiting(lake: Lake, source: Source) -> bool:
    """Return whether silver must wait during decisions about dead letters: if its records have or had ids.

    The outcome for an id depends on all its records. If silver did not wait, it could process a deletion
    before the deleted record is admitted, and find no row; or it could remove an admitted row before its dead
    letter is closed.
    """
    return source.unique_by is not None or lake.is_made_otherwise(silver.spec(source))
