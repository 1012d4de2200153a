"""`/api/v1`: every gold table of every stream, with routes generated from the declarations.

Parameters have the names of the SQL columns. A key column with the name of another parameter of `rows`, for
example `order`, cannot filter rows. Times are epoch milliseconds or ISO 8601. Rows are returned as exported
messages. `row` and `rows` also return the key of each row. `rows` also returns the columns that are not in
its message, with times in epoch milliseconds.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from inspect import Parameter
from math import isfinite
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from pyspark.sql.types import BooleanType, DoubleType, IntegerType, LongType, TimestampType

from lakehouse.common.errors import SettingsError
from lakehouse.common.signatures import keyword, sign
from lakehouse.engine.progress.finality import made_with
from lakehouse.serving import parameters
from lakehouse.serving.answers import answered_rows, plain
from lakehouse.serving.parameters import Cursor, Limit
from lakehouse.serving.reading.gold import RowSelection, is_time, others_of, sorted_by
from lakehouse.serving.reading.lookups import Lookups, Said
from lakehouse.settings import Settings
from lakehouse.sinks import registry as sinks
from lakehouse.streams.definition import MergedTable, Stream
from lakehouse.streams.messages.layout import Row
from lakehouse.streams.window_lengths import Calendar

_LONG = 2**63 - 1
_INTEGER = 2**31 - 1
_MOST_TEXT = 1_000
_TIME_IS = "epoch milliseconds, or ISO 8601 with an offset"

Start = Annotated[
    str | None, Query(max_length=64, description=f"Only rows at this time or later ({_TIME_IS}).")
]
End = Annotated[str | None, Query(max_length=64, description=f"Only rows before this time ({_TIME_IS}).")]
Sorted = Annotated[Literal["oldest", "newest"], Query(description="The rows that come first.")]


def router(lookups: Lookups, streams: Sequence[Stream], settings: Settings) -> APIRouter:
    """Return the routes for the gold tables of all streams. The settings configure the stores."""
    routes = APIRouter(prefix="/api/v1", tags=["tables"])
    described = [_described(stream, settings) for stream in streams]

    @routes.get("/streams")
    async def list_streams() -> Response:
        """Return all streams with their topics, stores and gold tables, and the parameters of each table.

        `stores` contains the stores to which the stream's gold tables are exported, as configured.
        """
        return plain({"streams": described})

    for stream in streams:
        for table in stream.tables:
            _add(routes, lookups, stream.name, table)
    return routes


def _add(routes: APIRouter, lookups: Lookups, stream: str, table: MergedTable) -> None:
    path, view = f"/tables/{table.name}", table.export.redis
    members = (*view.group.columns, *view.member.columns)

    async def row(_request_: Request, **asked: Any) -> Response:
        return await _answer_row(_request_, lookups, table, asked)

    async def latest(_request_: Request, **asked: Any) -> Response:
        return await _answer_row(_request_, lookups, table, asked, latest=True)

    async def rows(_request_: Request, **asked: Any) -> Response:
        return await _answer_page(_request_, lookups, table, asked, filters)

    key = {name: _required(table, name) for name in table.keys}
    latest_by = {name: _required(table, name) for name in dict.fromkeys(members)}
    span = {} if table.time_columns is None else {"start": (Start, None), "end": (End, None)}
    others = {**span, "limit": (Limit, 100), "order": (Sorted, "oldest"), "cursor": (Cursor, None)}
    filters = {
        name: _optional(table, name) for name in table.keys if not is_time(table, name) and name not in others
    }
    for one, which, parts in (
        (row, "row", key),
        (latest, "latest", latest_by),
        (rows, "rows", {**filters, **others}),
    ):
        named = [keyword(name, *part) for name, part in parts.items()]
        sign(one, [keyword("_request_", Request), *named], Response)
        summary = {"row": "One row by its key", "latest": "The latest row", "rows": "Rows ordered by time"}[
            which
        ]
        routes.add_api_route(
            f"{path}/{which}",
            one,
            methods=["GET"],
            operation_id=f"{table.name}_{which}",
            summary=f"{summary}, from gold.{table.name} of stream {stream}",
        )


async def _answer_row(
    request: Request, lookups: Lookups, table: MergedTable, asked: Mapping[str, Any], *, latest: bool = False
) -> Response:
    values = _values(table, asked)
    answer = await (lookups.latest(table, values) if latest else lookups.row(table, values))
    (said,) = answer.rows
    before: dict[str, Any] = {"table": table.name}
    if not latest:
        before["key"] = _key(table, values)
    return answered_rows(request, answer.origin, before, f'"data":{said.message}', {})


async def _answer_page(
    request: Request,
    lookups: Lookups,
    table: MergedTable,
    asked: Mapping[str, Any],
    filters: Collection[str],
) -> Response:
    newest_first = asked["order"] == "newest"
    pages = f"{table.name} newest first" if newest_first else table.name
    span = RowSelection(
        start_us=_micros("start", asked.get("start")),
        end_us=_micros("end", asked.get("end")),
        where=_values(table, {name: asked[name] for name in filters}),
        after=_after(table, pages, asked["cursor"]),
        newest_first=newest_first,
    )
    answer = await lookups.page(table, span, asked["limit"])
    last = answer.rows[-1].row if answer.has_more else None
    following = None if last is None else parameters.cursor(pages, [last[name] for name in sorted_by(table)])
    rows = ",".join(_row(table, said) for said in answer.rows)
    after = {"count": len(answer.rows), "next": following}
    return answered_rows(request, answer.origin, {"table": table.name}, f'"rows":[{rows}]', after)


def _row(table: MergedTable, said: Said) -> str:
    row = said.row or {}
    others = {name: _other(table, name, row[name]) for name in others_of(table)}
    key, columns = (
        json.dumps(one, ensure_ascii=False, separators=(",", ":")) for one in (_key(table, row), others)
    )
    return f'{{"key":{key},"isFinal":{json.dumps(said.is_final)},"data":{said.message},"columns":{columns}}}'


def _other(table: MergedTable, name: str, value: Any) -> Any:
    """Return a column's value as JSON: times in epoch ms; decimals, NaN and infinities as text."""
    if value is None or isinstance(value, bool | str):
        return value
    if is_time(table, name):
        return value // 1000
    return value if isinstance(value, int) or (isinstance(value, float) and isfinite(value)) else str(value)


def _key(table: MergedTable, row: Row) -> dict[str, Any]:
    """Return a row's key as request parameters, keyed by column name, with times in epoch ms."""
    return {name: row[name] // 1000 if is_time(table, name) else row[name] for name in table.keys}


def _values(table: MergedTable, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given parameters as column values, with times in microseconds."""
    return {
        name: parameters.micros(name, value) if is_time(table, name) else value
        for name, value in asked.items()
        if value is not None
    }


def _micros(name: str, text: str | None) -> int | None:
    return None if text is None else parameters.micros(name, text)


def _after(table: MergedTable, pages: str, text: str | None) -> tuple[Any, ...] | None:
    if text is None:
        return None
    return parameters.from_cursor(pages, text, [_python_type(table, name) for name in sorted_by(table)])


def _python_type(table: MergedTable, column: str) -> type:
    kind = table.schema[column].dataType
    if isinstance(kind, TimestampType | LongType | IntegerType):
        return int
    return bool if isinstance(kind, BooleanType) else float if isinstance(kind, DoubleType) else str


def _required(table: MergedTable, column: str) -> tuple[Any, Any]:
    return _parameter(table, column, str), Parameter.empty


def _optional(table: MergedTable, column: str) -> tuple[Any, Any]:
    return _parameter(table, column, str | None), None


def _parameter(table: MergedTable, column: str, text: Any) -> Any:
    """Return the type annotation of the request parameter for a column."""
    kind = table.schema[column].dataType
    optional = text is not str
    if isinstance(kind, LongType | IntegerType):
        most = _LONG if isinstance(kind, LongType) else _INTEGER
        number: Any = int | None if optional else int
        return Annotated[number, Query(ge=-most - 1, le=most)]
    if isinstance(kind, BooleanType):
        return bool | None if optional else bool
    about = f"A time: {_TIME_IS}." if isinstance(kind, TimestampType) else None
    return Annotated[text, Query(min_length=1, max_length=_MOST_TEXT, description=about)]


def _described(stream: Stream, settings: Settings) -> dict[str, Any]:
    tables = [_described_table(table) for table in stream.tables]
    topics = list(dict.fromkeys(settings.topic(source.topic) for source in stream.sources))
    return {"name": stream.name, "topics": topics, "stores": _stores(stream, settings), "tables": tables}


def _stores(stream: Stream, settings: Settings) -> list[dict[str, str]]:
    """Return the name and label of each store that a stream is exported to, Kafka first."""
    has_topic = any(table.export.topic for table in stream.tables)
    try:
        kinds = sinks.needed_by([stream], settings)
    except SettingsError:  # a run refuses these settings
        kinds = [kind for kind in sinks.BUILT_IN if kind.is_set(settings)]
    lead = [{"name": sinks.LEAD.name, "label": sinks.LEAD.label}] if has_topic else []
    return [*lead, *({"name": one.name, "label": one.label} for one in kinds)]


def _described_table(table: MergedTable) -> dict[str, Any]:
    view = table.export.redis
    return {
        "name": table.name,
        "key": list(table.keys),
        "latestBy": list(_distinct((*view.group.columns, *view.member.columns))),
        "time": None if table.time_columns is None else table.time_columns[0],
        "windowSeconds": None if table.window is None else table.window.most_s,
        "calendar": _described_calendar(table),
        "fields": list(table.export.value.values),
        "columns": {name: table.schema[name].dataType.typeName() for name in others_of(table)},
        "settings": {**table.pinned_settings, **made_with(table)},
        "links": {which: f"/api/v1/tables/{table.name}/{which}" for which in ("row", "latest", "rows")},
    }


def _described_calendar(table: MergedTable) -> dict[str, str] | None:
    """Return the unit and the zone of calendar windows, or None if the table has no such windows."""
    window = table.window
    return {"unit": window.unit, "zone": window.zone} if isinstance(window, Calendar) else None


def _distinct(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
