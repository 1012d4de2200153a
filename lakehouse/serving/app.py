"""The application that `lakehouse serve` runs: all routes, and the objects that they share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from anyio import to_thread
from fastapi import APIRouter, Depends, FastAPI

from lakehouse.quality.subjects import subjects
from lakehouse.serving import (
    actions_api,
    changes_api,
    letters_api,
    metrics_api,
    ops_api,
    problems,
    reference,
    session_api,
    tables_api,
    telemetry_api,
    watch_api,
)
from lakehouse.serving.access import Access, Entrance
from lakehouse.serving.actions import Actions
from lakehouse.serving.changes import Changes
from lakehouse.serving.front import Front
from lakehouse.serving.gold import Gold
from lakehouse.serving.letters import Letters
from lakehouse.serving.limits import Bodies
from lakehouse.serving.live import TIMEOUT_S, Live
from lakehouse.serving.lookups import Lookups
from lakehouse.serving.ops import Ops
from lakehouse.serving.page_api import Page
from lakehouse.serving.strictness import refuse_unknown_parameters
from lakehouse.serving.telemetry import Counted, ServerMetrics, look_of
from lakehouse.settings import Settings
from lakehouse.stream import Stream
from lakehouse.telemetry import Observer


def make_app(
    settings: Settings,
    streams: Sequence[Stream],
    access: Access,
    *,
    more: Sequence[APIRouter] = (),
    actions: Actions | None = None,
    redis_timeout_s: float = TIMEOUT_S,
) -> FastAPI:
    """Return the application for the settings' lake and Redis, for callers that `access` admits.

    `more` are further routes. A Redis that takes longer than `redis_timeout_s` counts as unavailable. By
    default, `actions` run this installation's commands.
    """
    tables = [table for stream in streams for table in stream.tables]
    names = [stream.name for stream in streams]
    redis_url = settings.redis_url.get_secret_value()
    live = Live(redis_url, redis_timeout_s)
    gold, letters, ops = Gold(settings.lake, tables), Letters(settings.lake), Ops(settings.lake)
    actions = actions or Actions()
    changes = Changes(lambda: gold.versions() | letters.versions() | ops.versions())
    # A row's TTL starts when its event lands, which may be earlier than its time by the future tolerance.
    whole_s = settings.redis_ttl_s - settings.future_tolerance_s
    lookups = Lookups(tables, gold, live, whole_s=whole_s)
    observer = Observer(streams, settings)
    metrics, look = ServerMetrics(observer), look_of(redis_url, gold, redis_timeout_s)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        await actions.close()
        await live.close()
        await to_thread.run_sync(observer.close)

    app = FastAPI(
        title="lakehouse",
        description="The newest rows of gold, from Redis and Delta.",
        version="1",
        lifespan=lifespan,
        dependencies=[Depends(refuse_unknown_parameters)],
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # a redirect would echo the request's Host
    )
    app.state.end, app.state.registry, app.state.look = changes.end, metrics.registry, look
    problems.install(app)
    if (table := lookups.tables.get(metrics_api.TABLE)) is not None:
        app.include_router(metrics_api.router(lookups, table))
    app.include_router(tables_api.router(lookups, streams))
    app.include_router(letters_api.router(lookups, letters, names))
    app.include_router(ops_api.router(lookups, ops, [one.name for one in subjects(streams)]))
    app.include_router(watch_api.router(lookups, settings, streams, observer))
    app.include_router(changes_api.router(changes))
    app.include_router(telemetry_api.router(metrics.registry, look))
    app.include_router(actions_api.router(actions, names))
    app.include_router(session_api.router(access))
    for routes in more:
        app.include_router(routes)
    app.include_router(reference.router(app))
    app.add_middleware(Bodies)
    app.add_middleware(Entrance, access=access)  # before a body is read
    app.add_middleware(Page)  # before the entrance
    app.add_middleware(Front, hosts=access.hosts)
    app.add_middleware(Counted, metrics=metrics)  # before all others
    return app
