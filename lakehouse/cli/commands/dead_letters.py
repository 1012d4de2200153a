"""`lakehouse dead-letters`: lists, replays, discards and resolves refused records."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakehouse.cli.options import Format, FormatOption, StreamOption, grouped
from lakehouse.common.errors import SettingsError
from lakehouse.common.events import Kind, note
from lakehouse.common.readable import parse_moment
from lakehouse.common.terminal import Console, echo_json

if TYPE_CHECKING:
    from lakehouse.engine.records.dead_letters import Selection
    from lakehouse.settings import Settings
    from lakehouse.storage.spark.offset_ranges import OffsetRange
    from lakehouse.storage.tables import Lake
    from lakehouse.streams.definition import Stream

Rule = Annotated[str | None, typer.Option(help="Only records that broke this rule.")]
Since = Annotated[
    str | None,
    typer.Option(
        help="Only records first refused at this time or later: ISO 8601 with an offset, or 1h (an hour ago)."
    ),
]
Until = Annotated[
    str | None, typer.Option(help="Only records first refused before this time; same format as --since.")
]
Topic = Annotated[str | None, typer.Option(help="Only records from this Kafka topic.")]
Partition = Annotated[int | None, typer.Option(min=0, help="Only records from this partition.")]
Offset = Annotated[int | None, typer.Option(min=0, help="Only the record at this offset.")]
Id = Annotated[str | None, typer.Option("--id", help="Only dead letters whose id starts with this prefix.")]
All = Annotated[bool, typer.Option("--all", help="Select every open dead letter instead of using a filter.")]

app = typer.Typer(
    no_args_is_help=True,
    help="List, show, replay, discard and resolve refused records.",
)


class LetterStatus(StrEnum):
    """The status of the dead letters to list."""

    OPEN = "open"
    REPLAYED = "replayed"
    DISCARDED = "discarded"
    RESENT = "resent"
    DUPLICATE = "duplicate"
    SUPERSEDED = "superseded"
    DELETION = "deletion"
    ALL = "all"


@dataclass(frozen=True)
class _Filters:
    """Options that select dead letters."""

    stream: StreamOption = None
    rule: Rule = None
    since: Since = None
    until: Until = None
    topic: Topic = None
    partition: Partition = None
    offset: Offset = None
    id_: Id = None

    def selection(self, streams: Sequence[Stream]) -> Selection:
        """Return the selection of dead letters that the options describe, from all streams without --stream.

        Raises SettingsError for an invalid time.
        """
        from lakehouse.engine.records.dead_letters import Selection

        now = datetime.now(UTC)
        return Selection(
            streams=tuple(one.name for one in streams) if self.stream else (),
            rule=self.rule,
            since=None if self.since is None else parse_moment(self.since, now),
            until=None if self.until is None else parse_moment(self.until, now),
            topic=self.topic,
            partition=self.partition,
            offset=self.offset,
            id=self.id_,
        )

    def refuse_unnamed(self, lake: Lake, settings: Settings) -> None:
        """Raise QueryError if no stream and no dead letter has the given topic or rule."""
        from lakehouse.engine.records.dead_letters import DEAD_LETTERS, Selection, refuse_unnamed
        from lakehouse.streams.registry import load

        if self.topic is None and self.rule is None:
            return
        sources = [source for stream in load(settings) for source in stream.sources]
        topics = {settings.topic(source.topic) for source in sources}
        rules = {rule.name for source in sources for rule in source.rules()}
        selection = Selection(topic=self.topic, rule=self.rule)
        refuse_unnamed(lake.read_or_empty(DEAD_LETTERS), selection, topics, rules)

    def chosen(self, streams: Sequence[Stream], *, everything: bool) -> Selection:
        """Return the selected dead letters. Raises SettingsError unless either --all or a filter is given."""
        selection = self.selection(streams)
        if not everything and selection.is_everything:
            raise SettingsError(
                "no dead letters are selected: specify a filter, such as --rule or --stream, or --all"
            )
        if everything and not selection.is_everything:
            raise SettingsError("--all selects every open dead letter: omit either --all or the filters")
        return selection


@app.command("list")
@grouped
def list_(
    *,
    filters: _Filters,
    status: Annotated[
        LetterStatus, typer.Option(help="Show only dead letters with this status.")
    ] = LetterStatus.OPEN,
    limit: Annotated[int, typer.Option(min=0, help="Show at most this many dead letters.")] = 20,
    by_shape: Annotated[
        bool,
        typer.Option(
            "--by-shape",
            help="Instead, group the newest 500 by the shape of their value: the names and JSON types of its "
            "fields.",
        ),
    ] = False,
    format_: FormatOption = Format.TABLE,
) -> None:
    """Count dead letters by stream, rule and status, largest count first, and show the newest ones.

    Long raw values are truncated, and unprintable characters are escaped. Values that are not UTF-8 are shown
    in hex.
    """
    from pyspark.sql import functions as F

    from lakehouse.cli.reports import dead_letters as report
    from lakehouse.engine.records.dead_letters import DEAD_LETTERS, count_letters, newest_letters
    from lakehouse.serving.reading import shapes
    from lakehouse.storage.tables import open_lake
    from lakehouse.streams.registry import choose, read_settings

    settings = read_settings()
    selection = filters.selection(choose(filters.stream or [], settings))
    with open_lake(settings, "lakehouse dead-letters list") as lake:
        filters.refuse_unnamed(lake, settings)
        letters = lake.read_or_empty(DEAD_LETTERS).where(selection.condition())
        chosen = letters if status is LetterStatus.ALL else letters.where(F.col("status") == status.value)
        if by_shape:
            values = newest_letters(chosen, shapes.MOST_LETTERS + 1, shapes.MOST_BYTES)
            report.print_shapes(values, as_json=format_ is Format.JSON)
            return
        counts = count_letters(letters)
        newest = newest_letters(chosen, limit, report.VALUE_BYTES) if limit else []
        if format_ is Format.JSON:
            echo_json(report.listed(counts, newest))
        else:
            report.print_list(counts, newest)


@app.command()
def show(
    letter: Annotated[str, typer.Argument(help="The dead letter's id, or a unique prefix of it.")],
    format_: FormatOption = Format.TABLE,
) -> None:
    """Show everything about one dead letter: its raw record, and every reason with its message."""
    from lakehouse.cli.reports import dead_letters as report
    from lakehouse.engine.records.dead_letters import DEAD_LETTERS, find_letter
    from lakehouse.storage.tables import open_lake
    from lakehouse.streams.registry import read_settings

    settings = read_settings()
    with open_lake(settings, "lakehouse dead-letters show") as lake:
        found = find_letter(lake.read_or_empty(DEAD_LETTERS), letter)
        if format_ is Format.JSON:
            echo_json(report.whole(found))
        else:
            report.print_letter(found)


@app.command()
@grouped
def replay(
    *,
    filters: _Filters,
    all_: All = False,
    allow_late: Annotated[
        bool, typer.Option("--allow-late", help="Also accept records that are late.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count the dead letters that would pass now, and write nothing.")
    ] = False,
    format_: FormatOption = Format.TABLE,
) -> None:
    """Validate open dead letters again with the current rules and settings. Write valid records to silver.

    Those that still fail remain open, with their new reasons. Records that were skipped with --skip are
    included only if you select them with --rule skipped, --offset or --id. You can run the command at any
    time, even while the layers are running. You can also repeat it, because silver receives each record only
    once. The command is refused while silver is being rebuilt, or while another command is changing the same
    dead letters.
    """
    from lakehouse.cli.reports import dead_letters as report
    from lakehouse.engine.ops_tables.event_table import recorded
    from lakehouse.operations.copies.marker import refuse_copy
    from lakehouse.operations.repair.replay import replay as replay_letters
    from lakehouse.storage.tables import open_lake
    from lakehouse.streams.registry import choose, read_settings

    settings = read_settings()
    streams = choose(filters.stream or [], settings)
    selection = filters.chosen(streams, everything=all_)
    name = "lakehouse dead-letters replay"
    if dry_run:
        with open_lake(settings, name) as lake:
            filters.refuse_unnamed(lake, settings)
            now = datetime.now(UTC)
            tried = replay_letters(lake, streams, selection, now, allow_late=allow_late, dry_run=True)
        if format_ is Format.JSON:
            echo_json(report.tried_as_json(tried))
        else:
            report.print_tried(tried, Console())
        return
    with recorded(settings.lake, name), open_lake(settings, name) as lake:
        refuse_copy(lake)
        filters.refuse_unnamed(lake, settings)
        now = datetime.now(UTC)
        done = replay_letters(lake, streams, selection, now, allow_late=allow_late)
        told = f"{done.passed:,} passed and are now in silver, {done.failed:,} still fail"
        _note(Kind.REPLAY, told, streams, selection, asdict(done))
        if format_ is Format.JSON:
            echo_json(asdict(done))
        else:
            report.print_replayed(done, Console())


@app.command()
@grouped
def discard(
    *,
    filters: _Filters,
    all_: All = False,
) -> None:
    """Close open dead letters as discarded. They remain in the table, but are no longer replayed."""
    from lakehouse.cli.reports import dead_letters as report
    from lakehouse.engine.ops_tables.event_table import recorded
    from lakehouse.operations.copies.marker import refuse_copy
    from lakehouse.operations.repair.replay import discard as discard_letters
    from lakehouse.storage.tables import open_lake
    from lakehouse.streams.registry import choose, read_settings

    settings = read_settings()
    streams = choose(filters.stream or [], settings)
    selection = filters.chosen(streams, everything=all_)
    name = "lakehouse dead-letters discard"
    with recorded(settings.lake, name), open_lake(settings, name) as lake:
        refuse_copy(lake)
        filters.refuse_unnamed(lake, settings)
        done = discard_letters(lake, streams, selection, datetime.now(UTC))
        _note(Kind.DISCARD, f"{done.count:,} discarded", streams, selection, asdict(done))
        report.print_discarded(done, Console())


@app.command()
@grouped
def resolve(
    *,
    filters: _Filters,
    all_: All = False,
    by: Annotated[
        str | None,
        typer.Option(metavar="TOPIC/PARTITION/OFFSET", help="The record that replaces the refused record."),
    ] = None,
    same: Annotated[
        list[str] | None,
        typer.Option(
            help="A column whose value must match in the refused record and the silver row; may be repeated."
        ),
    ] = None,
) -> None:
    """Close open dead letters whose records were sent again and are now in silver, with the status `resent`.

    With --by, the selected dead letter is closed, and the given record is noted as its replacement. With
    --same, a dead letter is closed if exactly one silver row has the same values in all of these columns. It
    remains open if several silver rows match it, or if that silver row also matches another dead letter.
    """
    if (by is None) == (not same):
        raise SettingsError("specify the replacement with either --by TOPIC/PARTITION/OFFSET or --same")
    record = None if by is None else _record(by)

    from lakehouse.cli.reports import dead_letters as report
    from lakehouse.engine.ops_tables.event_table import recorded
    from lakehouse.operations.copies.marker import refuse_copy
    from lakehouse.operations.repair.resolve import resolve_by_columns, resolve_by_record
    from lakehouse.storage.tables import open_lake
    from lakehouse.streams.registry import choose, read_settings

    settings = read_settings()
    streams = choose(filters.stream or [], settings)
    selection = filters.chosen(streams, everything=all_)
    name, now = "lakehouse dead-letters resolve", datetime.now(UTC)
    with recorded(settings.lake, name), open_lake(settings, name) as lake:
        refuse_copy(lake)
        filters.refuse_unnamed(lake, settings)
        if record is None:
            done = resolve_by_columns(lake, streams, selection, same or [], now)
        else:
            done = resolve_by_record(lake, streams, selection, record, now)
        _note(Kind.RESOLVE, f"{done.resent:,} resent", streams, selection, asdict(done))
        report.print_resolved(done, Console())


def _record(place: str) -> OffsetRange:
    found = re.fullmatch(r"([^/]+)/(\d{1,9})/(\d{1,18})", place, re.ASCII)
    if found is None:
        raise SettingsError(f"--by {place}: expected the TOPIC/PARTITION/OFFSET of a record in silver")

    from lakehouse.storage.spark.offset_ranges import OffsetRange

    return OffsetRange(found[1], int(found[2]), int(found[3]), int(found[3]))


def _note(
    kind: Kind, message: str, streams: Sequence[Stream], selection: Selection, done: dict[str, Any]
) -> None:
    from lakehouse.engine.records.dead_letters import DEAD_LETTERS

    which = {name: value for name, value in asdict(selection).items() if value}
    stream = streams[0].name if len(streams) == 1 else None
    details = {"selection": which, "done": done}
    note(kind, message, stream=stream, layer="silver", table=DEAD_LETTERS.qualified_name, details=details)
