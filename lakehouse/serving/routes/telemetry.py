"""`/metrics` and `/health`: telemetry about the server, in the same formats as for the pipeline."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CollectorRegistry

from lakehouse.operations.telemetry.server import Readiness, as_json, exposed
from lakehouse.serving.reading.sharing import Shared
from lakehouse.serving.security.access import LIVE_PATH, READY_PATH


def router(registry: CollectorRegistry, look: Callable[[], Readiness]) -> APIRouter:
    """Return the routes for telemetry. `look`, which may block, checks whether the server is ready."""
    routes, one = APIRouter(tags=["telemetry"]), CapacityLimiter(1)
    readiness = Shared[Readiness](look)

    @routes.get(LIVE_PATH)
    async def live() -> Response:
        """Answer 200 as long as the process responds."""
        return _said(HTTPStatus.OK, "live", ())

    @routes.get(READY_PATH, responses={503: {"description": "Neither Redis nor gold can be read."}})
    async def ready() -> Response:
        """Answer 200 if Redis or gold can be read, and 503 otherwise; `reasons` names unavailable stores."""
        found = await readiness.seen()
        code = HTTPStatus.OK if found.is_ready else HTTPStatus.SERVICE_UNAVAILABLE
        return _said(code, "ready" if found.is_ready else "not ready", found.reasons)

    @routes.get("/metrics", response_class=PlainTextResponse)
    async def metrics(request: Request) -> Response:
        """Return metrics as OpenMetrics, or in the Prometheus text format if the request prefers that."""
        accept = request.headers.get("accept", "")
        text, content_type = await to_thread.run_sync(exposed, registry, accept, limiter=one)
        return Response(text, headers={"Content-Type": content_type})

    return routes


def _said(code: HTTPStatus, status: str, reasons: tuple[str, ...]) -> Response:
    return Response(as_json(status, reasons), code, media_type="application/json")
