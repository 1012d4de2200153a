"""Telemetry about the server itself: request metrics and readiness."""

from __future__ import annotations

import time
from collections.abc import Callable
from http import HTTPMethod, HTTPStatus

import redis
from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lakehouse.operations.telemetry import ObservationCollector, Observer
from lakehouse.operations.telemetry.server import Readiness
from lakehouse.serving.reading.gold import Gold
from lakehouse.serving.strictness import path_of
from lakehouse.sinks.redis.client import impatient, redis_client

_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
_METHODS = frozenset(HTTPMethod)
_OTHER = "other"


class ServerMetrics:
    """Request metrics, in a registry that also contains the metrics of `lakehouse status`.

    The labels are methods, declared routes and status codes, so the number of series is bounded.
    """

    def __init__(self, observer: Observer) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(ObservationCollector(observer.latest))
        self._requests = Counter(
            "lakehouse_http_requests",
            "Requests answered.",
            ("method", "route", "status"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "lakehouse_http_response_seconds",
            "Time from a request to the first byte of its response.",
            ("method", "route"),
            buckets=_SECONDS,
            registry=self.registry,
        )

    def count(self, scope: Scope, status: int, took_s: float) -> None:
        """Count an answered request by method and route."""
        method = scope["method"] if scope["method"] in _METHODS else _OTHER
        route = path_of(scope) or _OTHER
        self._requests.labels(method, route, status).inc()
        self._seconds.labels(method, route).observe(took_s)


class Counted:
    """Middleware that counts each request when its response starts."""

    def __init__(self, app: ASGIApp, metrics: ServerMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and count it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, has_begun = time.perf_counter(), False

        async def counted(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                self._metrics.count(scope, message["status"], time.perf_counter() - began)
            await send(message)

        try:
            await self._app(scope, receive, counted)
        except Exception:
            if not has_begun:  # an outer layer turns an exception into a response
                took_s = time.perf_counter() - began
                self._metrics.count(scope, HTTPStatus.INTERNAL_SERVER_ERROR, took_s)
            raise


def look_of(redis_url: str, gold: Gold, redis_timeout_s: float) -> Callable[[], Readiness]:
    """Return a blocking function that checks Redis and gold. The server is ready if it can read either.

    The reasons name the unavailable stores but not their addresses, because probes need no token.
    """

    def look() -> Readiness:
        reasons = []
        try:
            with redis_client(redis_url, **impatient(redis_timeout_s)) as client:
                client.ping()
        except (redis.RedisError, OSError):
            reasons.append("Redis does not answer (redis.url)")
        if not gold.versions():
            reasons.append("no gold table can be read (lake)")
        return Readiness(len(reasons) < 2, tuple(reasons))  # noqa: PLR2004 - Redis and gold

    return look
