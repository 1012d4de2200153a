"""`lakehouse find`: shows where one Kafka record is in the lake, without Spark."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from lakehouse.cli.options import Format, FormatOption
from lakehouse.common.errors import QueryError, SettingsError
from lakehouse.common.terminal import Console, echo_json

if TYPE_CHECKING:
    from lakehouse.serving.reading.found_records import Place
    from lakehouse.serving.reading.records import RecordSearch

_MOST_OFFSET = 2**63 - 1
_MOST_PARTITION = 2**31 - 1

app = typer.Typer()


@app.command()
def find(
    record: Annotated[
        str | None, typer.Argument(metavar="TOPIC/PARTITION/OFFSET", help="The record's Kafka coordinates.")
    ] = None,
    *,
    id_: Annotated[
        str | None,
        typer.Option("--id", help="Find records by this id instead, in streams whose records have ids."),
    ] = None,
    letter: Annotated[
        str | None,
        typer.Option(help="Find the record of the dead letter with this id, or prefix of an id, instead."),
    ] = None,
    format_: FormatOption = Format.TABLE,
) -> None:
    """Show a record's rows in bronze, silver, dead letters and gold, and which gold version has been sent.

    If a layer does not contain the record, the report says why. The record's content is not shown, apart from
    the keys of its gold rows and the reasons of its dead letters. An id can match several records; at most
    twenty are shown.
    """
    if sum(one is not None for one in (record, id_, letter)) != 1:
        raise SettingsError("specify exactly one of TOPIC/PARTITION/OFFSET, --id and --letter")
    place = None if record is None else _place_in(record)

    from lakehouse.cli.reports.records import print_records
    from lakehouse.operations.telemetry import observe
    from lakehouse.serving.reading.dead_letters import Letters
    from lakehouse.serving.reading.delta import TableAwayError
    from lakehouse.serving.reading.found_records import Place
    from lakehouse.serving.reading.gold import Gold
    from lakehouse.serving.reading.records import RecordSearch
    from lakehouse.streams.registry import load, read_settings

    settings = read_settings()
    streams = load(settings)
    gold = Gold(settings.lake, [table for stream in streams for table in stream.tables])
    search = RecordSearch(streams, settings, gold, Letters(settings.lake))
    if place is not None and (why := search.unread_topic(place[0])) is not None:
        raise SettingsError(why)
    try:
        places = [Place(*place)] if place is not None else _places(search, id_, letter)
        seen = observe(streams, settings, datetime.now(UTC))
        found = [search.find(one, seen) for one in places]
    except TableAwayError as error:
        raise QueryError(str(error)) from error
    if format_ is Format.JSON:
        echo_json([one.as_json() for one in found])
    else:
        print_records(found, Console())


def _place_in(text: str) -> tuple[str, int, int]:
    """Parse TOPIC/PARTITION/OFFSET. Raises SettingsError for any other text."""
    found = re.fullmatch(r"([^/]+)/(\d{1,10})/(\d{1,19})", text, re.ASCII)
    if found is None or int(found[2]) > _MOST_PARTITION or int(found[3]) > _MOST_OFFSET:
        raise SettingsError(f"{text}: expected TOPIC/PARTITION/OFFSET, such as transactions-topic/0/17")
    return found[1], int(found[2]), int(found[3])


def _places(search: RecordSearch, id_: str | None, letter: str | None) -> list[Place]:
    """Return the coordinates of the records with this id or dead letter. Raises QueryError if none exist."""
    if id_ is not None:
        if not (named := search.streams_with_ids):
            raise SettingsError(
                "--id: no stream's records have ids; set unique_by, or use TOPIC/PARTITION/OFFSET"
            )
        found = search.places_of_id(id_)
        what = f"no silver row and no dead letter of {', '.join(named)} has the id {id_!r}"
    else:
        found = search.places_of_letter(letter or "")
        what = f"there is no dead letter whose id begins with {letter!r}"
    if not found:
        raise QueryError(what)
    return found
