"""`/api/v1/events`: server-sent events of changes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header
from fastapi.responses import StreamingResponse

from lakehouse.serving.changes import Changes

LastId = Annotated[str | None, Header(alias="Last-Event-ID", max_length=100)]
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


def router(changes: Changes) -> APIRouter:
    """Return the route."""
    routes = APIRouter(prefix="/api/v1", tags=["events"])

    @routes.get("/events", response_class=StreamingResponse)
    async def events(last_event_id: LastId = None) -> StreamingResponse:
        """Send an event for every new version of a table, after those since Last-Event-ID.

        `standing` has the versions of all tables, `changed` the new one of a table; a comment is the
        heartbeat.
        """
        changes.admit()
        return StreamingResponse(
            changes.listen(last_event_id), media_type="text/event-stream", headers=_HEADERS
        )

    return routes
