"""`lakehouse try`: runs a stream on files of records, without Kafka or a lake.

lakehouse try transactions payments.jsonl
lakehouse try shop.streams:ORDERS orders.jsonl --now 2026-11-26T12:00:00Z --format json
lakehouse try calls analyticsTopic=a.jsonl metricsTopic=m.jsonl
zcat records.gz | lakehouse try sales --envelope -
"""

from __future__ import annotations

import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakehouse.cli.options import EnvelopeOption, Format, FormatOption
from lakehouse.common.errors import LakehouseError, SettingsError
from lakehouse.common.printable import indented
from lakehouse.common.record_lines import Line, opened, read_lines
from lakehouse.common.terminal import Console, echo, echo_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakehouse.settings import Settings
    from lakehouse.streams.definition import Source, Stream

app = typer.Typer()

_FAILED = 2


class TrialError(LakehouseError):
    """A stream's own functions failed, or Spark did not start.

    The exit code is 2, because 1 means that records are refused.
    """

    exit_code = _FAILED


@app.command("try")
def try_(
    stream: Annotated[
        str,
        typer.Argument(
            metavar="STREAM",
            help="A stream's name, or module:OBJECT. The module can be in the working directory.",
        ),
    ],
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="[TOPIC=]FILE...",
            help="Files of JSON lines, one record each; - is standard input. If the stream reads several "
            "topics, specify each file's topic here or in envelopes.",
        ),
    ],
    *,
    envelope: EnvelopeOption = False,
    now: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="The time on the trial's clock (ISO 8601). Default: the current time."
        ),
    ] = None,
    later: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="At the end, advance the trial's clock to this time without further records."
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            min=1, help="Maximum number of records per topic in a micro-batch. Default: all records."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many rows of each table.")] = 20,
    format_: FormatOption = Format.TABLE,
) -> None:
    """Run a stream on files of records, and show the rows and messages. Nothing is written or sent.

    Records land at the clock's time, in file order. They land in a single partition unless an envelope names
    a different partition. Without --envelope, values are JSON, even if the stream's topics have a different
    format. With --envelope, values have the topics' format. Only records from earlier micro-batches (--batch)
    can make a record late. The exit code is 1 if records are refused, and 2 if the trial failed.
    """
    from lakehouse.cli.reports.try_stream import Trial, as_json, shown
    from lakehouse.settings import load_settings
    from lakehouse.sinks import registry
    from lakehouse.storage.spark.execution import FEW_ROWS, executing_a_handful
    from lakehouse.streams.registry import choose_one
    from lakehouse.testing.folding import Folding

    settings = load_settings()
    chosen = choose_one(stream, settings)
    registry.require_fit(chosen, settings)
    if not envelope:  # plain lines are JSON; only envelopes contain bytes in the source's format
        chosen = replace(chosen, sources=tuple(replace(one, format="json") for one in chosen.sources))
    clock = _moment("--now", now) or datetime.now(UTC)
    end = _moment("--later", later)
    lines = [line for name in files for line in _read(chosen, name, settings, envelopes=envelope)]
    began = time.monotonic()
    is_small = len(lines) <= FEW_ROWS
    with _failing(chosen), _session() as spark, executing_a_handful(spark) if is_small else nullcontext():
        trial = Trial(Folding(spark, chosen, settings.topic, is_small=is_small))
        for part in _cut(lines, batch):
            trial.take(part, clock)
        if end is not None:
            trial.tick(end)
        result = trial.result(clock if end is None else end)
    seconds = time.monotonic() - began
    if format_ is Format.JSON:
        echo_json(as_json(result, seconds))
    else:
        Console().print(shown(result, seconds, limit=limit))
    if any(letter.is_refused for letter in result.letters):
        raise typer.Exit(1)


def _moment(option: str, text: str | None) -> datetime | None:
    """Convert an ISO 8601 time to UTC, assuming UTC if it has no offset.

    Raises SettingsError for anything else.
    """
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise SettingsError(f"{option} {text}: expected ISO 8601, such as 2026-11-26T12:00:00Z") from error
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def _read(stream: Stream, name: str, settings: Settings, *, envelopes: bool) -> Iterator[tuple[Source, Line]]:
    """Yield the records in a file, each with its source. Raises SettingsError if a topic is unknown."""
    sources = {settings.topic(source.topic): source for source in stream.sources}
    sources |= {source.topic: source for source in stream.sources}
    topic, said, path = name.partition("=")
    if not said or topic not in sources:
        topic, path = "", name
    with opened(path) as file:
        for line in read_lines(file, path, envelopes=envelopes):
            named = line.record.topic or topic
            if named in sources:
                yield sources[named], line
            elif not named and len(stream.sources) == 1:
                yield stream.sources[0], line
            else:
                what = f"does not read topic {named}" if named else "reads several topics"
                raise SettingsError(
                    f"{line.place}: stream {stream.name} {what}; name one of {_topics(stream)} as "
                    f"TOPIC={path}, or in an envelope"
                )


def _topics(stream: Stream) -> str:
    return ", ".join(source.topic for source in stream.sources)


def _cut(lines: Sequence[tuple[Source, Line]], size: int | None) -> list[list[tuple[Source, Line]]]:
    """Split records into micro-batches of at most `size` records per source.

    If `size` is None, all records form one micro-batch.
    """
    counts: dict[str, int] = {}
    batches: list[list[tuple[Source, Line]]] = []
    for source, line in lines:
        count = counts.get(source.table, 0)
        number = 0 if size is None else count // size
        counts[source.table] = count + 1
        batches += [[] for _ in range(number + 1 - len(batches))]
        batches[number].append((source, line))
    return batches


@contextmanager
def _session() -> Iterator[SparkSession]:
    """Start Spark in a temporary directory, which is removed afterwards."""
    from lakehouse.testing.session import small_session

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home, small_session(Path(home)) as spark:
        yield spark


@contextmanager
def _failing(stream: Stream) -> Iterator[None]:
    """Raise TrialError if the block fails. If the stream's own code failed, also print a traceback."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from lakehouse.storage.spark.query_errors import error_line

    try:
        yield
    except SettingsError:
        raise
    except LakehouseError as error:  # Spark did not start
        raise TrialError(str(error)) from error
    except (PySparkException, Py4JError) as error:
        raise TrialError(
            f"stream {stream.name} failed: {type(error).__name__}: {error_line(error)}"
        ) from error
    except Exception as error:
        echo(*indented(traceback.format_exc()), err=True)
        raise TrialError(f"stream {stream.name} failed: {type(error).__name__}: {error}") from error
