"""`/api/v1/dead-letters`: what was refused and why; raw bytes only for who may see payloads."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response

from lakehouse.layout import Row
from lakehouse.payloads import is_json_text
from lakehouse.serving import parameters
from lakehouse.serving.access import may
from lakehouse.serving.answers import plain, with_json
from lakehouse.serving.letters import LISTED, Letters, Wanted
from lakehouse.serving.lookups import Lookups
from lakehouse.serving.problems import Problem
from lakehouse.serving.tokens import Scope

Stream = Annotated[
    str | None, Query(min_length=1, max_length=200, description="Only letters of this stream.")
]
Rule = Annotated[
    str | None, Query(min_length=1, max_length=200, description="Only letters that break this rule.")
]
Status = Annotated[Literal["open", "replayed", "discarded"] | None, Query(description="Only of this status.")]
Since = Annotated[str | None, Query(max_length=64, description="First seen then or later: a time.")]
Until = Annotated[str | None, Query(max_length=64, description="First seen before then: a time.")]
Limit = Annotated[int, Query(ge=1, le=1_000, description="How many letters at most.")]
Cursor = Annotated[str | None, Query(max_length=20_000, description="`next` of the page before.")]
Id = Annotated[str, Path(min_length=1, max_length=200, description="The letter's id.")]

_TIMES = ("kafka_timestamp", "first_seen", "last_attempt")


def router(lookups: Lookups, letters: Letters) -> APIRouter:
    """Return the routes over silver.dead_letters."""
    routes = APIRouter(prefix="/api/v1/dead-letters", tags=["dead letters"])

    @routes.get("/counts")
    async def counts(
        *,
        stream: Stream = None,
        rule: Rule = None,
        status: Status = None,
        since: Since = None,
        until: Until = None,
    ) -> Response:
        """Return how many letters there are by stream, rule and status; with two rules under both."""
        wanted = _wanted(stream=stream, rule=rule, status=status, since=since, until=until)
        return plain({"counts": await lookups.scan(lambda: letters.counts(wanted)), "source": "silver"})

    @routes.get("")
    async def newest(
        *,
        stream: Stream = None,
        rule: Rule = None,
        status: Status = None,
        since: Since = None,
        until: Until = None,
        limit: Limit = 50,
        cursor: Cursor = None,
    ) -> Response:
        """Return letters without their raw bytes, the newest first."""
        wanted = _wanted(stream=stream, rule=rule, status=status, since=since, until=until, cursor=cursor)
        found = await lookups.scan(lambda: letters.newest(wanted, limit + 1))
        shown, following = found[:limit], None
        if len(found) > limit:
            following = parameters.cursor("dead_letters", [shown[-1]["first_seen"], shown[-1]["id"]])
        rows = [_listed(row) for row in shown]
        return plain({"letters": rows, "count": len(rows), "next": following, "source": "silver"})

    @routes.get("/{id}")
    async def letter(request: Request, id_: Annotated[Id, Path(alias="id")]) -> Response:
        """Return one letter; with the scope `payload` its record too, as hex, text and JSON."""
        row = await lookups.scan(lambda: letters.letter(id_))
        if row is None:
            raise Problem(HTTPStatus.NOT_FOUND, f"there is no dead letter {id_}")
        record = _record(row) if may(request, Scope.PAYLOAD) else "null"
        return with_json({**_listed(row), "source": "silver"}, f'"record":{record}')

    return routes


def _wanted(
    *,
    stream: str | None,
    rule: str | None,
    status: str | None,
    since: str | None,
    until: str | None,
    cursor: str | None = None,
) -> Wanted:
    return Wanted(
        stream=stream,
        rule=rule,
        status=status,
        since=None if since is None else parameters.micros("since", since),
        until=None if until is None else parameters.micros("until", until),
        after=None if cursor is None else parameters.from_cursor("dead_letters", cursor, [int, str]),
    )


def _listed(row: Row) -> dict[str, Any]:
    """Return a letter without its raw bytes; times are ISO 8601 UTC."""
    times = {name: parameters.iso(None if row[name] is None else row[name] // 1000) for name in _TIMES}
    return {_camel(name): times.get(name, row[name]) for name in LISTED}


def _record(row: Row) -> str:
    headers = (
        f'{{"key":{json.dumps(one["key"])},"value":{_bytes(one["value"])}}}' for one in row["headers"] or []
    )
    key, value = _bytes(row["key"]), _bytes(row["value"])
    return f'{{"key":{key},"value":{value},"headers":[{",".join(headers)}]}}'


def _bytes(data: bytes | None) -> str:
    """Return JSON that says bytes as hex, as text where they are UTF-8, as JSON where they are that."""
    if data is None:
        return "null"
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = None
    said = json.dumps({"length": len(data), "hex": data.hex(), "text": text}, ensure_ascii=False)
    return f'{said[:-1]},"json":{text if text is not None and is_json_text(text) else "null"}}}'


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.title, others))
