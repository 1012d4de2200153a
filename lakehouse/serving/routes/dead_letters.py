"""`/api/v1/dead-letters`: refused records and their reasons. Raw bytes require the scope `payload`."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pyspark.sql.types import TimestampType

from lakehouse.engine.records.dead_letters import OPEN, SCHEMA
from lakehouse.serving import parameters
from lakehouse.serving.answers import Origin, answered, camel, unkept
from lakehouse.serving.parameters import Cursor, Limit, Page
from lakehouse.serving.problems import Problem, unprocessable
from lakehouse.serving.reading.dead_letters import (
    LISTED,
    Letters,
    Names,
    Part,
    WantedLetters,
    bytes_of,
    outline,
    piece,
)
from lakehouse.serving.reading.delta import FirstRows, Found
from lakehouse.serving.reading.lookups import Lookups
from lakehouse.serving.reading.shapes import as_json
from lakehouse.serving.security.access import LOCAL, caller_of, requires
from lakehouse.serving.security.tokens import Scope
from lakehouse.serving.strictness import refuse_unknown
from lakehouse.streams.messages.layout import Row

Stream = Annotated[
    str | None, Query(min_length=1, max_length=200, description="Only dead letters from this stream.")
]
Topic = Annotated[
    str | None,
    Query(min_length=1, max_length=249, description="Only dead letters of records from this Kafka topic."),
]
Rule = Annotated[
    str | None, Query(min_length=1, max_length=200, description="Only dead letters that break this rule.")
]
Text = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=200,
        description="Only dead letters with a message that contains this text, ignoring case. Messages can "
        "end with the refused value, cut to 80 characters.",
    ),
]
Status = Annotated[
    Literal["open", "replayed", "discarded", "resent", "duplicate", "superseded", "deletion"] | None,
    Query(description="Only dead letters with this status."),
]
Since = Annotated[
    str | None, Query(max_length=64, description="Only dead letters first seen at this time or later.")
]
Until = Annotated[
    str | None, Query(max_length=64, description="Only dead letters first seen before this time.")
]
Values = Annotated[
    bool,
    Query(
        description="Also return `value`, the beginning of each record's value on one line, as text or hex. "
        "Requires a token with the scope `payload`."
    ),
]
Id = Annotated[str, Path(alias="id", min_length=1, max_length=200, description="The dead letter's id.")]
Which = Annotated[Part, Query(description="The part of the record to return.")]
Header = Annotated[int, Query(ge=0, le=1_000_000, description="The header's index, counted from 0.")]
Offset = Annotated[int, Query(ge=0, le=2**40, description="The offset of the first byte to return.")]

_log = logging.getLogger(__name__)
_TIMES = tuple(field.name for field in SCHEMA if isinstance(field.dataType, TimestampType))


async def _wanted(
    *,
    stream: Stream = None,
    topic: Topic = None,
    rule: Rule = None,
    text: Text = None,
    status: Status = None,
    since: Since = None,
    until: Until = None,
) -> WantedLetters:
    return WantedLetters(
        stream=stream,
        topic=topic,
        rule=rule,
        text=text,
        status=status,
        since=None if since is None else parameters.micros("since", since),
        until=None if until is None else parameters.micros("until", until),
    )


async def _with_payload(request: Request, *, values: Values = False) -> bool:
    """Return whether values are wanted. Raises Problem 403 if they are, and the caller may not see them."""
    if values:
        requires(Scope.PAYLOAD)(request)
    return values


Filtered = Annotated[WantedLetters, Depends(_wanted)]
WithValues = Annotated[bool, Depends(_with_payload)]


def router(lookups: Lookups, letters: Letters, declared: Names) -> APIRouter:
    """Return the routes for silver.dead_letters; `declared` contains the names that streams declare."""
    routes = APIRouter(prefix="/api/v1/dead-letters", tags=["dead letters"])

    @routes.get("/counts")
    async def counts(request: Request, wanted: Filtered, page: Page) -> Response:
        """Count dead letters by stream, rule and status, largest count first.

        A dead letter that breaks two rules is counted once for each.
        """
        await _refuse_unnamed(wanted, lookups, letters, declared)
        found = await lookups.scan(lambda: letters.counts(wanted))
        shown, following = page.of("dead-letter counts", found.value)
        origin = _origin(found, [one["status"] for one in found.value])
        return answered(request, origin, {"counts": shown, **following})

    @routes.get("/shapes", dependencies=[Depends(requires(Scope.PAYLOAD))])
    async def shapes(request: Request, wanted: Filtered, page: Page) -> Response:
        """Group the newest 500 dead letters that match by the shape of their value, largest group first.

        A shape is the names of an object's fields with their JSON types, such as `{amount: string, id:
        string}`. Values above 64 KiB form one group. `letters` is the number of dead letters in all groups,
        and `isAll` is false if more match. `newest` is the newest dead letter of a group. Requires a token
        with the scope `payload`, because the names come from the record.
        """
        await _refuse_unnamed(wanted, lookups, letters, declared)
        found = await lookups.scan_large(lambda: letters.shapes(wanted))
        groups, following = page.of("dead-letter shapes", found.value.groups)
        _log.info("%s reads the shapes of dead letters", caller_of(request).name)
        rows = json.dumps([as_json(one, _place(one.newest)) for one in groups], ensure_ascii=False)
        told = {"letters": found.value.letters, "isAll": not found.value.has_more, **following}
        return unkept(_origin(found, []), told, f'"shapes":{rows}')

    @routes.get("")
    async def newest(
        request: Request,
        wanted: Filtered,
        values: WithValues,
        *,
        limit: Limit = 50,
        cursor: Cursor = None,
    ) -> Response:
        """Return dead letters, newest first, without their raw bytes."""
        await _refuse_unnamed(wanted, lookups, letters, declared)
        after = None if cursor is None else parameters.from_cursor("dead_letters", cursor, [int, str])
        found = await lookups.scan(lambda: letters.newest(replace(wanted, after=after), limit))
        if not values:
            return answered(request, *_list_of(found))
        begun = await lookups.scan_large(lambda: letters.beginnings_of(found.value.rows))
        return _with_values(request, *_list_of(found), begun.value)

    @routes.get("/{id}")
    async def letter(request: Request, id_: Id) -> Response:
        """Return one dead letter without its raw bytes."""
        found = await lookups.scan(lambda: letters.letter(id_))
        row = found.value
        if row is None:
            raise _unknown(id_)
        return answered(request, _origin(found, [row["status"]]), _listed(row))

    @routes.get("/{id}/record", dependencies=[Depends(requires(Scope.PAYLOAD))])
    async def record(
        request: Request, id_: Id, part: Which = "value", header: Header = 0, offset: Offset = 0
    ) -> Response:
        """Return up to 256 KiB of a record's value, key or header, and the lengths of all of them.

        Requires a token with the scope `payload`. `bytes` is null if the requested part is null. `bytes.next`
        is the offset of the next piece.
        """
        found = await lookups.scan_large(lambda: letters.record(id_))
        row = found.value
        if row is None:
            raise _unknown(id_)
        try:
            data = bytes_of(row, part, header)
        except IndexError:
            raise unprocessable("header", f"the record has {len(row['headers'] or [])} headers") from None
        _log.info("%s reads the %s of the dead letter %s", caller_of(request).name, part, id_)
        head = {"id": id_, "part": part, **outline(row)}
        origin = _origin(found, [row["status"]])
        return unkept(origin, head, f'"bytes":{piece(data, offset)}')

    return routes


def _list_of(found: Found[FirstRows]) -> tuple[Origin, dict[str, Any]]:
    """Return a page of dead letters with its origin, and the cursor of the next page."""
    shown, following = found.value.rows, None
    if found.value.has_more:
        following = parameters.cursor("dead_letters", [shown[-1]["first_seen"], shown[-1]["id"]])
    told = {"letters": [_listed(row) for row in shown], "count": len(shown), "next": following}
    return _origin(found, [row["status"] for row in shown]), told


def _with_values(
    request: Request, origin: Origin, told: Mapping[str, Any], begun: Mapping[str, str | None]
) -> Response:
    """Return a page of dead letters with the beginning of each value. A request with a token is logged."""
    rows = [{**row, "value": begun.get(row["id"])} for row in told["letters"]]
    if caller_of(request) is not LOCAL:
        _log.info("%s reads the values of %d dead letters", caller_of(request).name, len(rows))
    others = {name: told[name] for name in ("count", "next")}
    return unkept(origin, others, f'"letters":{json.dumps(rows, ensure_ascii=False)}')


async def _refuse_unnamed(wanted: WantedLetters, lookups: Lookups, letters: Letters, declared: Names) -> None:
    """Raise Problem for a stream, topic or rule that is neither declared nor in a dead letter."""
    asked = (
        ("stream", wanted.stream, declared.streams),
        ("topic", wanted.topic, declared.topics),
        ("rule", wanted.rule, declared.rules),
    )
    if all(value is None or value in known for _, value, known in asked):
        return
    there = await lookups.scan(letters.names)
    refuse_unknown("stream", _given(wanted.stream), {*declared.streams, *there.streams}, "stream")
    refuse_unknown("topic", _given(wanted.topic), {*declared.topics, *there.topics}, "topic")
    refuse_unknown("rule", _given(wanted.rule), {*declared.rules, *there.rules}, "dead-letter rule")


def _given(value: str | None) -> list[str]:
    return [] if value is None else [value]


def _unknown(id_: str) -> Problem:
    return Problem(HTTPStatus.NOT_FOUND, f"there is no dead letter {id_}")


def _origin(found: Found[Any], statuses: Sequence[str]) -> Origin:
    """Return the origin of a response, which is final if none of its dead letters is open."""
    is_final = all(status != OPEN for status in statuses) if statuses else None
    return Origin("silver", found.generation, found.version, is_final)


def _listed(row: Row) -> dict[str, Any]:
    """Return a dead letter as JSON values, without its raw bytes and with times as ISO 8601 UTC."""
    told = {**row, **{name: _iso(row[name]) for name in _TIMES}}
    if row["admitted"] is not None:
        told["admitted"] = {name: _iso(at) for name, at in row["admitted"].items()}
    return {camel(name): told[name] for name in LISTED}


def _place(row: Row) -> dict[str, Any]:
    names = ("id", "topic", "partition", "offset")
    return {name: row[name] for name in names} | {"firstSeen": _iso(row["first_seen"])}


def _iso(micros: int | None) -> str | None:
    return parameters.iso(None if micros is None else micros // 1000)
