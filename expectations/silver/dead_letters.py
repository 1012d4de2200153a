"""The suite for silver.dead_letters: refused records, each with its reasons and status.

The suite warns if more than a tenth of a topic's records are open letters. It does not require recent rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from great_expectations import ExpectationSuite

from lakehouse.engine.layers.silver import STAGE
from lakehouse.engine.records.dead_letters import OPEN, STATUSES
from lakehouse.settings import load_settings
from lakehouse.streams.definition import Stream
from lakehouse.streams.registry import load
from lakehouse.streams.suites import make_suite, no_rows, required, rows, unique

KEY = ("id",)
REQUIRED = (
    *("id", "stream", "stage", "topic", "partition", "offset", "reasons"),
    *("status", "attempts", "first_seen", "last_attempt", "job", "code_version"),
)

_IDENTITY = r"concat_ws('\n', topic, string(partition), string(offset), stage)"


def suite() -> ExpectationSuite:
    """Return the suite for silver.dead_letters."""
    streams = load(load_settings())
    return make_suite(
        "silver.dead_letters",
        unique(KEY),
        required(KEY, REQUIRED),
        rows(
            KEY, "ids are the SHA-256 of topic, partition, offset and stage", f"id = sha2({_IDENTITY}, 256)"
        ),
        rows(KEY, "streams are known", f"stream IN ({_texts(stream.name for stream in streams)})"),
        rows(KEY, "stages are known", f"stage IN ({_texts([STAGE])})"),
        rows(KEY, "statuses are known", f"status IN ({_texts(STATUSES)})"),
        rows(KEY, "every letter has an attempt", "attempts >= 1"),
        rows(KEY, "every letter has a reason", "size(reasons) >= 1"),
        rows(KEY, "every reason has a rule", "NOT exists(reasons, reason -> reason.rule IS NULL)"),
        rows(KEY, "the last attempt is not before the first", "first_seen <= last_attempt"),
        no_rows("few of a topic's records are open letters", _open_rate(streams, most=0.1), severity="warn"),
    )


def _open_rate(streams: Sequence[Stream], *, most: float) -> str:
    """Return a query for topics whose share of open letters is above `most`, or that have no bronze rows."""
    landed = " UNION ALL ".join(
        f"SELECT topic, count(*) AS records FROM bronze_{source.table} GROUP BY topic"
        for stream in streams
        for source in stream.sources
    )
    return (
        f"WITH landed AS ({landed}), "
        f"waiting AS (SELECT topic, count(*) AS open FROM {{batch}} WHERE status = '{OPEN}' GROUP BY topic) "
        f"SELECT topic, open, records FROM waiting LEFT JOIN landed USING (topic) "
        f"WHERE coalesce(open > records * {most}, true)"
    )


def _texts(values: Iterable[str]) -> str:
    return ", ".join(f"'{value}'" for value in values)
