"""Exclusive access to a source's records, for decisions that depend on all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from lakehouse.engine.layers import silver
from lakehouse.storage.tables import Lake, leases
from lakehouse.streams.definition import Source


@contextmanager
def holding(lake: Lake, source: Source, what: str, *, is_whole: bool = True) -> Iterator[None]:
    """Lock a source's letters against other decisions about them; with `is_whole`, lock silver as well.

    This is necessary because the outcome for an id depends on all its records. Raises TableError if another
    process holds the letters or silver.
    """
    paths, name = silver.paths_of(lake, source), silver.query_name(source)
    with ExitStack() as held:
        letters = leases.held_part(lake.spark, paths.dead, source.table, f"{what} of {name}")
        held.enter_context(letters)
        if is_whole:
            held.enter_context(leases.held(lake.spark, paths.clean, name))
        yield
