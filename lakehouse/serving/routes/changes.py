"""`/api/v1/events`: server-sent events that report new table versions."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Header, Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from lakehouse.serving.reading.changes import Changes
from lakehouse.serving.security.access import EVENTS_PATH, caller_of, is_still_admitted

LastId = Annotated[str | None, Header(alias="Last-Event-ID", max_length=100)]
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


def router(changes: Changes) -> APIRouter:
    """Return the route for server-sent events."""
    routes = APIRouter(tags=["events"])

    @routes.get(EVENTS_PATH, response_class=StreamingResponse)
    async def events(request: Request, last_event_id: LastId = None) -> StreamingResponse:
        """Send an event for every new table version since Last-Event-ID.

        A `standing` event contains the versions of all tables. A `changed` event contains the new version of
        one table. Comments are heartbeats.
        """
        return _Events(changes, request, last_event_id)

    return routes


class _Events(StreamingResponse):
    """The event stream for one request. It counts as a listener until the response ends."""

    def __init__(self, changes: Changes, request: Request, last_id: str | None) -> None:
        said = changes.listen(last_id, partial(is_still_admitted, request))
        super().__init__(said, media_type="text/event-stream", headers=_HEADERS)
        self._place = changes.place(caller_of(request).name)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events. Raises Problem 429 before the first event if there are too many listeners."""
        with self._place:
            await super().__call__(scope, receive, send)
