"""Check a lake's streams for duplicate and invalid names, and for topics with more than one use."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from lakehouse.common.errors import SettingsError
from lakehouse.common.printable import printable
from lakehouse.settings import Settings
from lakehouse.streams.contract import OWN_TABLES, SILVER_ADDS
from lakehouse.streams.definition import Stream
from lakehouse.streams.topics import topics_of

_NAME = re.compile(r"[a-z][a-z0-9_]{0,99}")
_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WAY_OUT = "choose another name, or list the streams to run in only_streams"


def check_names(streams: Sequence[Stream]) -> None:
    """Raise SettingsError for names and tables that are used more than once, and for invalid names.

    Column names must also be unique, valid in SQL, and different from the columns that silver adds.
    """
    owners: dict[str, set[str]] = defaultdict(set)
    counts: dict[str, int] = defaultdict(int)
    for stream in streams:
        _check_columns(stream)
        for what, name in _names(stream):
            if not _NAME.fullmatch(name):
                raise SettingsError(
                    f"{what} (stream {stream.name}) has an invalid name: use at most 100 lower-case letters, "
                    "digits and underscores, beginning with a letter"
                )
            counts[what] += 1
            owners[what].add(stream.name)
    taken = {f"table silver.{name}" for name in OWN_TABLES}
    for what, count in counts.items():
        if count > 1 or what in taken:
            who = " and ".join(sorted(owners[what]))
            both = "is reserved" if what in taken else "is declared twice"
            raise SettingsError(f"{what} {both} (stream {who}): {_WAY_OUT}")


def check_topics(streams: Sequence[Stream], settings: Settings) -> None:
    """Raise SettingsError if a topic, under its configured name, has more than one use.

    A topic that is both input and output would feed itself: for example, each dead letter would be read as a
    record and become another dead letter. Two streams cannot read the same topic, because dead letters are
    identified by their record's coordinates. If a topic contained two kinds of messages, consumers could not
    distinguish them.
    """
    uses: dict[str, list[str]] = defaultdict(list)
    for one in topics_of(streams, settings):
        uses[one.topic].append(one.what)
    for topic, several in uses.items():
        if len(several) > 1:
            raise SettingsError(
                f"topic {topic} has {len(several)} uses: {'; '.join(several)}. A topic can be one stream's "
                "input, or one output: choose another topic for one of these uses (topic or to in "
                "[streams.NAME], kafka.dead_letter_topic, alerts.topic), or list the streams to run in "
                "only_streams"
            )


def _names(stream: Stream) -> Iterator[tuple[str, str]]:
    """Yield each name that must be unique and valid for a table, with a description."""
    yield f"stream {stream.name}", stream.name
    for source in stream.sources:
        yield f"table silver.{source.table}", source.table
    for table in stream.tables:
        yield f"table gold.{table.name}", table.name


def _check_columns(stream: Stream) -> None:
    every = {
        f"silver.{source.table}": [*(field.column for field in source.contract.fields), *SILVER_ADDS]
        for source in stream.sources
    }
    every |= {f"gold.{table.name}": table.schema.names for table in stream.tables}
    for table, names in every.items():
        if odd := [name for name in names if not _COLUMN.fullmatch(name)]:
            raise SettingsError(
                f"stream {stream.name} gives {table} the column {printable(odd[0])!r}, which is not a valid "
                "name: use ASCII letters, digits and underscores, not beginning with a digit. Assign the "
                "field to a different column"
            )
        lowered = [name.lower() for name in names]
        twice = sorted({name for name in lowered if lowered.count(name) > 1})
        if twice:
            raise SettingsError(
                f"stream {stream.name} gives {table} the column {', '.join(twice)} more than once: "
                "assign the field to a different column"
            )
