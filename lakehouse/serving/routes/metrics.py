"""`/api/metrics`: windowed metrics of services, in the format that existing clients expect."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from lakehouse.serving import parameters
from lakehouse.serving.answers import answered
from lakehouse.serving.parameters import Page, iso
from lakehouse.serving.reading.lookups import Lookups
from lakehouse.streams.definition import MergedTable

_MOST_MINUTES = 1_000
_TIMES = ("windowStart", "windowEnd", "lastEventTime")
_NAMES = ("serviceId", "metricName", "isFinal")

Service = Annotated[str, Query(min_length=1, max_length=1000, description="The service's id.")]
Metric = Annotated[str, Query(min_length=1, max_length=1000, description="The metric's name.")]
Minutes = Annotated[
    int,
    Query(
        ge=1,
        le=_MOST_MINUTES,
        description="Number of minutes up to and including the series' newest window.",
    ),
]


def router(lookups: Lookups, table: MergedTable) -> APIRouter:
    """Return the routes for the table with the services' metrics (`service_metrics`)."""
    routes = APIRouter(prefix="/api/metrics", tags=["metrics"])

    @routes.get("/latest")
    async def latest(request: Request, service: Service, metric: Metric) -> Response:
        """Return the newest window for a service and metric. Times are ISO 8601 UTC."""
        answer = await lookups.latest(table, {"service_id": service, "metric_name": metric})
        data = _statistics(json.loads(answer.rows[0].message))
        return answered(request, answer.origin, {"service": service, "metric": metric, "data": data})

    @routes.get("/timeseries")
    async def timeseries(
        request: Request, service: Service, metric: Metric, minutes: Minutes = 10
    ) -> Response:
        """Return the latest one-minute windows, newest first.

        Minutes without events are missing. `timestamp` is the window's start in epoch milliseconds.
        """
        keys = {"service_id": service, "metric_name": metric}
        answer = await lookups.series(table, keys, minutes)
        data = [_point(json.loads(one.message)) for one in answer.rows]
        body = {"service": service, "metric": metric, "windows": len(data), "data": data}
        return answered(request, answer.origin, body)

    @routes.get("/compare")
    async def compare(request: Request, metric: Metric, page: Page) -> Response:
        """Return each service's newest window for a metric, sorted by service name.

        Times are ISO 8601 UTC.
        """
        pages = f"services of {metric}"
        (after,) = page.after(pages, [str]) or (None,)
        answer = await lookups.members(table, {"metric_name": metric}, after, page.limit)
        messages = [json.loads(one.message) for one in answer.rows]
        services = {
            message["serviceId"]: _statistics(message) | {"isFinal": message["isFinal"]}
            for message in messages
        }
        following = parameters.cursor(pages, [messages[-1]["serviceId"]]) if answer.has_more else None
        body = {"metric": metric, "services": services, "next": following}
        return answered(request, answer.origin, body)

    return routes


def _statistics(message: Mapping[str, Any]) -> dict[str, Any]:
    values = {name: value for name, value in message.items() if name not in (*_NAMES, *_TIMES)}
    return values | {name: iso(message[name]) for name in _TIMES}


def _point(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a window's values; `timestamp` is its start in epoch milliseconds."""
    values = {name: value for name, value in message.items() if name not in (*_NAMES, *_TIMES)}
    return {"timestamp": message["windowStart"], **values, "isFinal": message["isFinal"]}
