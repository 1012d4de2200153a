"""Names that several streams of a lake must not share, or that no table can have."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from lakehouse.errors import SettingsError
from lakehouse.records.dead_letters import DEAD_LETTERS
from lakehouse.records.validation import clean_schema
from lakehouse.stream import Stream

_NAME = re.compile(r"[a-z][a-z0-9_]{0,99}")
_WAY_OUT = "give one another name, or choose what runs with LAKEHOUSE_STREAMS"


def check_names(streams: Sequence[Stream]) -> None:
    """Raise SettingsError where streams share a name, a table or a topic, or a name cannot be a table's.

    A stream may read a topic that another one fills. Columns are checked, too: each once, and none that
    silver adds to a contract's.
    """
    owners: dict[str, set[str]] = defaultdict(set)
    counts: dict[str, int] = defaultdict(int)
    for stream in streams:
        _check_columns(stream)
        for what, name in _names(stream):
            if name is not None and not _NAME.fullmatch(name):
                raise SettingsError(
                    f"{what} of stream {stream.name} cannot be a name here: lower-case letters, digits and "
                    "underscores, beginning with a letter"
                )
            counts[what] += 1
            owners[what].add(stream.name)
    taken = {f"table silver.{DEAD_LETTERS.name}"}
    for what, count in counts.items():
        if count > 1 or what in taken:
            who = " and ".join(sorted(owners[what]))
            both = "is lakehouse's own" if what in taken else "is there twice"
            raise SettingsError(f"{what} {both} (stream {who}): {_WAY_OUT}")


def _names(stream: Stream) -> Iterator[tuple[str, str | None]]:
    """Yield what has to be one stream's alone, in words, and its name where that has to be a table's."""
    yield f"stream {stream.name}", stream.name
    for source in stream.sources:
        yield f"table silver.{source.table}", source.table
        yield f"reading topic {source.topic}", None
    for table in stream.tables:
        yield f"table gold.{table.name}", table.name
        if table.export.topic is not None:
            yield f"filling topic {table.export.topic}", None


def _check_columns(stream: Stream) -> None:
    every = {f"silver.{source.table}": clean_schema(source.contract).names for source in stream.sources}
    every |= {f"gold.{table.name}": table.schema.names for table in stream.tables}
    for table, names in every.items():
        lowered = [name.lower() for name in names]
        twice = sorted({name for name in lowered if lowered.count(name) > 1})
        if twice:
            raise SettingsError(
                f"stream {stream.name} gives {table} the column {', '.join(twice)} more than once: give its "
                "field another column, Field(name, column, type)"
            )
