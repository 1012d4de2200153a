"""`/api/v1/dead-letters`: what was refused and why; raw bytes only with the scope `payload`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from lakehouse.messages.json_text import is_json_text
from lakehouse.messages.layout import Row
from lakehouse.records.dead_letters import OPEN
from lakehouse.serving import parameters
from lakehouse.serving.access import may
from lakehouse.serving.answers import Origin, answered, answered_rows, camel
from lakehouse.serving.delta import Found
from lakehouse.serving.letters import LISTED, Letters, WantedLetters
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


async def _wanted(
    *,
    stream: Stream = None,
    rule: Rule = None,
    status: Status = None,
    since: Since = None,
    until: Until = None,
) -> WantedLetters:
    return WantedLetters(
        stream=stream,
        rule=rule,
        status=status,
        since=None if since is None else parameters.micros("since", since),
        until=None if until is None else parameters.micros("until", until),
    )


Filtered = Annotated[WantedLetters, Depends(_wanted)]


def router(lookups: Lookups, letters: Letters) -> APIRouter:
    """Return the routes over silver.dead_letters."""
    routes = APIRouter(prefix="/api/v1/dead-letters", tags=["dead letters"])

    @routes.get("/counts")
    async def counts(request: Request, wanted: Filtered) -> Response:
        """Return the number of letters by stream, rule and status; with two rules under both."""
        found = await lookups.scan(lambda: letters.counts(wanted))
        origin = _origin(found, [one["status"] for one in found.value])
        return answered(request, origin, {"counts": found.value})

    @routes.get("")
    async def newest(
        request: Request, wanted: Filtered, limit: Limit = 50, cursor: Cursor = None
    ) -> Response:
        """Return letters without their raw bytes, the newest first."""
        after = None if cursor is None else parameters.from_cursor("dead_letters", cursor, [int, str])
        found = await lookups.scan(lambda: letters.newest(replace(wanted, after=after), limit + 1))
        shown, following = found.value[:limit], None
        if len(found.value) > limit:
            following = parameters.cursor("dead_letters", [shown[-1]["first_seen"], shown[-1]["id"]])
        rows = [_listed(row) for row in shown]
        origin = _origin(found, [row["status"] for row in shown])
        return answered(request, origin, {"letters": rows, "count": len(rows), "next": following})

    @routes.get("/{id}")
    async def letter(request: Request, id_: Annotated[Id, Path(alias="id")]) -> Response:
        """Return one letter; with the scope `payload` its record too, as hex, text and JSON."""
        found = await lookups.scan(lambda: letters.letter(id_))
        row, sees = found.value, may(request, Scope.PAYLOAD)
        if row is None:
            raise Problem(HTTPStatus.NOT_FOUND, f"there is no dead letter {id_}")
        record = _record(row) if sees else "null"
        origin = _origin(found, [row["status"]], part="record" if sees else "")
        return answered_rows(request, origin, _listed(row), f'"record":{record}', {})

    return routes


def _origin(found: Found[Any], statuses: Sequence[str], part: str = "") -> Origin:
    """Return the origin of letters; they are final once all are replayed or discarded."""
    is_final = all(status != OPEN for status in statuses) if statuses else None
    return Origin("silver", found.generation, found.version, is_final, part)


def _listed(row: Row) -> dict[str, Any]:
    """Return a letter without its raw bytes; times are ISO 8601 UTC."""
    times = {name: parameters.iso(None if row[name] is None else row[name] // 1000) for name in _TIMES}
    return {camel(name): times.get(name, row[name]) for name in LISTED}


def _record(row: Row) -> str:
    headers = (
        f'{{"key":{json.dumps(one["key"])},"value":{_bytes(one["value"])}}}' for one in row["headers"] or []
    )
    key, value = _bytes(row["key"]), _bytes(row["value"])
    return f'{{"key":{key},"value":{value},"headers":[{",".join(headers)}]}}'


def _bytes(data: bytes | None) -> str:
    """Return JSON with bytes as hex, as text if they are UTF-8, and as JSON if they are JSON."""
    if data is None:
        return "null"
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = None
    said = json.dumps({"length": len(data), "hex": data.hex(), "text": text}, ensure_ascii=False)
    return f'{said[:-1]},"json":{text if text is not None and is_json_text(text) else "null"}}}'
