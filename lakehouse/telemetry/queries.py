"""The queries of a stream, seen from outside: what each reads and fills."""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse.layers.step import LayerName
from lakehouse.settings import Settings
from lakehouse.stream import Stream


@dataclass(frozen=True)
class StreamQuery:
    """A query by its name. It reads qualified names of tables; a bronze query reads its topic.

    `target` is the table that it fills, which says how far it has come; null for an export.
    """

    layer: LayerName
    name: str
    reads: tuple[str, ...]
    target: str | None


def queries_of(stream: Stream, settings: Settings) -> tuple[StreamQuery, ...]:
    """Return every query of a stream, each after those whose tables it reads."""
    topics = {source.table: settings.topic(source.topic) for source in stream.sources}
    return (
        *(
            StreamQuery("bronze", f"bronze.{name}", (topic,), f"bronze.{name}")
            for name, topic in topics.items()
        ),
        *(StreamQuery("silver", f"silver.{name}", (f"bronze.{name}",), f"silver.{name}") for name in topics),
        *(
            StreamQuery(
                "gold", f"gold.{table.name}", tuple(f"silver.{n}" for n in table.reads), f"gold.{table.name}"
            )
            for table in stream.gold
        ),
        *(
            StreamQuery("export", f"export.{kept.name}", (f"gold.{kept.name}",), None)
            for kept in stream.tables
        ),
    )


def tables_of(stream: Stream) -> tuple[str, ...]:
    """Return the qualified names of a stream's own tables."""
    return (
        *(f"{layer}.{source.table}" for layer in ("bronze", "silver") for source in stream.sources),
        *(f"gold.{kept.name}" for kept in stream.tables),
    )


def query_of(name: str) -> str:
    """Return the query behind a name that a run uses: its own, or that of its work by the clock."""
    return name.removesuffix(" by the clock")


def gate_of(stream: str) -> str:
    """Return the name that a run uses for a stream's gate."""
    return f"gate of {stream}"
