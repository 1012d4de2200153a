"""`/api/v1/records`: where one Kafka record is in the lake. The record's content is never returned."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response

from lakehouse.operations.telemetry import Observation, Observer
from lakehouse.serving.answers import in_camel_case, plain
from lakehouse.serving.problems import Problem, unprocessable
from lakehouse.serving.reading.found_records import FoundRecord, Place
from lakehouse.serving.reading.lookups import Lookups
from lakehouse.serving.reading.records import RecordSearch
from lakehouse.serving.reading.sharing import Shared

Topic = Annotated[
    str, Path(pattern=r"^[A-Za-z0-9._-]{1,249}$", description="A Kafka topic that a stream reads.")
]
Partition = Annotated[int, Path(ge=0, le=2**31 - 1, description="The record's partition.")]
Offset = Annotated[int, Path(ge=0, le=2**63 - 1, description="The record's offset.")]

RecordId = Annotated[
    str | None,
    Query(alias="id", min_length=1, max_length=1_000, description="A record's id, in streams with ids."),
]
LetterId = Annotated[
    str | None,
    Query(
        min_length=6,
        max_length=200,
        description="A dead letter's id, or at least six characters of its beginning.",
    ),
]


def router(lookups: Lookups, records: RecordSearch, observer: Observer) -> APIRouter:
    """Return the routes that find records. The caller must close the observer."""
    routes = APIRouter(prefix="/api/v1/records", tags=["records"])
    observed = Shared[Observation](observer.latest)

    @routes.get("")
    async def records_of(id_: RecordId = None, letter: LetterId = None) -> Response:
        """Return at most twenty records with this id (`unique_by`), or whose dead letters have this id.

        Each record has the form that the next endpoint returns. Answers 404 if there is none.
        """
        if (id_ is None) == (letter is None):
            raise unprocessable("id", "specify either id or letter")
        if id_ is not None and not records.streams_with_ids:
            raise unprocessable(
                "id", "no stream's records have ids (unique_by); use topic, partition and offset"
            )

        def find(seen: Observation) -> list[FoundRecord]:
            places = records.places_of_letter(letter or "") if id_ is None else records.places_of_id(id_)
            return [records.find(one, seen) for one in places]

        seen = await observed.seen()
        found = await lookups.scan(lambda: find(seen))
        if not found:
            what = (
                f"dead letter whose id begins with {letter!r}"
                if id_ is None
                else f"record with the id {id_!r}"
            )
            raise Problem(HTTPStatus.NOT_FOUND, f"there is no {what}")
        return plain({"records": list(map(_told, found))})

    @routes.get("/{topic}/{partition}/{offset}")
    async def record(topic: Topic, partition: Partition, offset: Offset) -> Response:
        """Return where a record is in bronze, silver, dead letters and gold, and which gold version was sent.

        If a layer does not contain the record, its `reason` says why. `key` is null if the silver row does
        not determine a gold row's key. `isThere` says whether the row with this key exists.
        """
        why = records.unread_topic(topic)
        if why is not None:
            raise Problem(HTTPStatus.NOT_FOUND, why)
        seen = await observed.seen()
        found = await lookups.scan(lambda: records.find(Place(topic, partition, offset), seen))
        return plain(_told(found))

    return routes


def _told(found: FoundRecord) -> dict[str, Any]:
    """Return a record as JSON values. In the keys of gold rows, column names are unchanged."""
    columns = found.as_json()
    told: dict[str, Any] = in_camel_case(columns)
    for stream, said in zip(columns["streams"], told["streams"], strict=True):
        for row, shown in zip(stream["gold"], said["gold"], strict=True):
            shown["key"] = row["key"]
    return told
