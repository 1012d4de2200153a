"""A stream's queries with their sources and targets, for observers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lakehouse.engine.layers import LayerName, letters_export
from lakehouse.streams.definition import Stream


@dataclass(frozen=True)
class StreamQuery:
    """A query and its sources: tables by qualified name or, in bronze, the topic by default name.

    `target` is the table that the query writes, or None for an export. The table's log contains the query's
    progress.
    """

    layer: LayerName
    name: str
    reads: tuple[str, ...]
    target: str | None


def queries_of(stream: Stream) -> tuple[StreamQuery, ...]:
    """Return all of a stream's queries, in layer order."""
    names = [source.table for source in stream.sources]
    return (
        *(
            StreamQuery("bronze", f"bronze.{one.table}", (one.topic,), f"bronze.{one.table}")
            for one in stream.sources
        ),
        *(StreamQuery("silver", f"silver.{name}", (f"bronze.{name}",), f"silver.{name}") for name in names),
        *(
            StreamQuery(
                "gold", f"gold.{one.name}", tuple(f"silver.{n}" for n in one.reads), f"gold.{one.name}"
            )
            for one in stream.gold
        ),
        *(StreamQuery("export", f"export.{one.name}", (f"gold.{one.name}",), None) for one in stream.tables),
    )


def streams_by_query(streams: Iterable[Stream]) -> dict[str, str]:
    """Return the name of each query's stream, keyed by query name."""
    found = dict[str, str]()
    for stream in streams:
        found |= {query.name: stream.name for query in queries_of(stream)}
        found[letters_export.name_of(stream)] = stream.name
    return found


def tables_of(stream: Stream) -> tuple[str, ...]:
    """Return the qualified names of a stream's own tables."""
    return (
        *(f"{layer}.{source.table}" for layer in ("bronze", "silver") for source in stream.sources),
        *(f"gold.{kept.name}" for kept in stream.tables),
    )


def query_of(name: str) -> str:
    """Return the name of a query, given the name that a run uses for it or for its clock-driven work."""
    return name.removesuffix(" by the clock")


def gate_of(stream: str) -> str:
    """Return the name that a run uses for a stream's gate."""
    return f"gate of {stream}"
