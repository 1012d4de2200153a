"""Search the lake, its stores and its topics for subjects. Nothing is written, and Spark is not needed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime

from lakehouse.common.errors import SettingsError
from lakehouse.engine.formats.schemas import DIRECTORY
from lakehouse.operations.erasure.encoded import decoder
from lakehouse.operations.erasure.lake import LAKE, LakeScan
from lakehouse.operations.erasure.matching import LEAST_BYTES
from lakehouse.operations.erasure.report import Book, Report, Searched
from lakehouse.operations.erasure.searching import Search
from lakehouse.operations.erasure.stores import search_store
from lakehouse.operations.erasure.subjects import Subjects
from lakehouse.operations.erasure.topics import KAFKA, search_topic
from lakehouse.operations.maintenance.upkeep import least_kept, tasks
from lakehouse.settings import Settings
from lakehouse.sinks import registry
from lakehouse.streams.definition import Stream
from lakehouse.streams.topics import topics_of

_IDS = "ids"


def verify(
    subjects: Subjects,
    settings: Settings,
    streams: Sequence[Stream],
    on_searched: Callable[[Searched], None],
    *,
    only: Collection[str] = (),
) -> Report:
    """Search for subjects, and return the places that have their ids and what could not be searched.

    only         the places to search: lake, kafka, or the name of a store; empty: all
    on_searched  called with each table, topic and store that has been searched

    Records and files that are written during the search may be missed. A place that cannot be searched is in
    the report. Raises SettingsError if `only` names a store that is not configured. No id is in the report.
    """
    at, book = datetime.now(UTC), Book(subjects, on_searched)
    search = Search(subjects, decoder(settings.lake))
    stores = registry.used(settings)
    names = [LAKE, *(kind.name for kind in stores), KAFKA]
    if unknown := sorted(set(only) - set(names)):
        raise SettingsError(f"--place {unknown[0]}: it is not configured; configured: {', '.join(names)}")
    chosen = [name for name in names if not only or name in only]
    if LAKE in chosen:
        kept = {
            f"{task.spec.layer}/{task.spec.name}": least_kept(task, settings)
            for task in tasks(streams, settings)
        }
        LakeScan(settings.lake, kept, search, book).run()
        if settings.maintenance.every_s is None:
            book.note(
                "maintenance.every is never: old files and commits stay until `lakehouse maintain` runs"
            )
    for kind in stores:
        if kind.name in chosen:
            search_store(kind, settings, search, book)
    if KAFKA in chosen:
        for use in topics_of(streams, settings):
            search_topic(settings.kafka.access, use.topic, use.kind, search, book)
    _miss_ids(search, book)
    left_out = [name for name in names if name not in chosen]
    if KAFKA in chosen and _has_unused_streams(settings):
        left_out.append("topics of streams that are not in use (only_streams, enabled)")
    return book.report(at, left_out)


def _miss_ids(search: Search, book: Book) -> None:
    """Record the ids that could not be compared with everything."""
    for line in search.subjects.short:
        why = f"it has fewer than {LEAST_BYTES} bytes, so only whole keys and values were compared with it"
        book.miss(_IDS, f"line {line}", why)
    if search.undecoded:
        why = (
            f"{search.undecoded:,} values begin with a schema's id and could not be decoded, so numbers in "
            f"them were not compared; this needs the schema in the lake ({DIRECTORY}) and, for Avro, "
            "the extra formats"
        )
        book.miss(_IDS, "whole numbers", why)


def _has_unused_streams(settings: Settings) -> bool:
    return bool(settings.only_streams) or any(
        stream.get("enabled") is False for stream in settings.streams.values()
    )
