"""`POST /produce` sends sample events. The route exists only if the server runs with --enable-produce."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from http import HTTPStatus
from typing import Annotated

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Query, Request, Response

from lakehouse.common.errors import LakehouseError
from lakehouse.serving.answers import plain
from lakehouse.serving.problems import Problem
from lakehouse.serving.security.access import caller_of
from lakehouse.serving.strictness import refuse_unknown
from lakehouse.settings import Settings
from lakehouse.streams.definition import Stream

_MOST = 10_000
_SPAN_S = 60.0
_log = logging.getLogger(__name__)


Events = Annotated[int, Query(ge=1, le=_MOST, description="Number of events.")]


def router(settings: Settings, streams: Sequence[Stream]) -> APIRouter:
    """Return the route that sends sample events."""
    routes, one = APIRouter(tags=["produce"]), CapacityLimiter(1)
    known = {stream.name: stream for stream in streams}
    sampled = Query(streams[0].name, description="The stream.", json_schema_extra={"enum": list(known)})

    @routes.post("/produce")
    async def produce(request: Request, events: Events = 100, stream: str = sampled) -> Response:
        """Send sample events for a stream to Kafka, with event times in the last minute."""
        refuse_unknown("stream", [stream], known, "stream")
        if one.available_tokens < 1:
            raise Problem(
                HTTPStatus.TOO_MANY_REQUESTS,
                "another request is sending events; try again",
                headers={"Retry-After": "1"},
            )
        _log.info("%s: producing %d events for %s", caller_of(request).name, events, stream)
        try:
            acknowledged = await to_thread.run_sync(_send, settings, known[stream], events, limiter=one)
        except LakehouseError as error:
            raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error), headers={"Retry-After": "5"}) from error
        return plain({"stream": stream, "events": events, "acknowledged": acknowledged})

    return routes


def _send(settings: Settings, stream: Stream, events: int) -> int:
    from lakehouse.dev.samples.loads import Load, send
    from lakehouse.storage.kafka.probe import require_broker

    require_broker(settings.kafka.access)
    seed = secrets.randbelow(2**31)
    return send(Load(stream, events, span_s=_SPAN_S, seed=seed), settings).acknowledged
