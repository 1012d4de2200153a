"""The application that `lakehouse serve` runs, with all routes and the objects that they share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from anyio import to_thread
from fastapi import APIRouter, Depends, FastAPI

from lakehouse.engine.records.dead_letters import RULES
from lakehouse.operations.alerts.beats import BeatCollector, Beats
from lakehouse.operations.quality.pages import site
from lakehouse.operations.quality.subjects import subjects
from lakehouse.operations.telemetry import Observer
from lakehouse.serving import problems
from lakehouse.serving.child_commands import Actions
from lakehouse.serving.reading.changes import Changes
from lakehouse.serving.reading.dead_letters import Letters, Names
from lakehouse.serving.reading.events import Ops
from lakehouse.serving.reading.gold import Gold
from lakehouse.serving.reading.lookups import Lookups
from lakehouse.serving.reading.records import RecordSearch
from lakehouse.serving.reading.redis import TIMEOUT_S, Live
from lakehouse.serving.routes import changes as changes_api
from lakehouse.serving.routes import checks as ops_api
from lakehouse.serving.routes import commands as actions_api
from lakehouse.serving.routes import data_docs, reference
from lakehouse.serving.routes import dead_letters as letters_api
from lakehouse.serving.routes import metrics as metrics_api
from lakehouse.serving.routes import records as records_api
from lakehouse.serving.routes import session as session_api
from lakehouse.serving.routes import settings as settings_api
from lakehouse.serving.routes import status as watch_api
from lakehouse.serving.routes import tables as tables_api
from lakehouse.serving.routes import telemetry as telemetry_api
from lakehouse.serving.routes.page import Page
from lakehouse.serving.security.access import Access, Entrance
from lakehouse.serving.security.hosts import Front
from lakehouse.serving.security.limits import Bodies
from lakehouse.serving.strictness import refuse_unknown_parameters
from lakehouse.serving.telemetry import Counted, ServerMetrics, look_of
from lakehouse.settings import Settings
from lakehouse.settings.shown import ShownSetting
from lakehouse.streams.definition import Stream
from lakehouse.streams.transforms.windows import service_metrics


def make_app(
    settings: Settings,
    streams: Sequence[Stream],
    access: Access,
    *,
    more: Sequence[APIRouter] = (),
    shown: Sequence[ShownSetting] = (),
    actions: Actions | None = None,
    redis_timeout_s: float = TIMEOUT_S,
) -> FastAPI:
    """Return an application that serves the configured lake and Redis to callers that `access` admits.

    `more` contains additional routes, and `shown` the settings that `/api/v1/settings` returns. Redis counts
    as unavailable if an answer takes longer than `redis_timeout_s`. By default, `actions` runs this
    installation's commands.
    """
    tables = [table for stream in streams for table in stream.tables]
    names = [stream.name for stream in streams]
    topics = [settings.topic(source.topic) for stream in streams for source in stream.sources]
    redis_url = settings.redis.url.get_secret_value()
    live = Live(redis_url, redis_timeout_s)
    gold, letters, ops = Gold(settings.lake, tables), Letters(settings.lake), Ops(settings.lake)
    actions = actions or Actions()
    changes = Changes(lambda: gold.versions() | letters.versions() | ops.versions())
    # A row's TTL starts when its event lands. The row's own time can be later by up to the future tolerance.
    whole_s = settings.redis.ttl_s - settings.stream_defaults.future_tolerance_s
    lookups = Lookups(tables, gold, live, whole_s=whole_s)
    observer = Observer(streams, settings)
    metrics, look = ServerMetrics(observer), look_of(redis_url, gold, redis_timeout_s)
    beats = Beats(settings.kafka.access, settings.alerts.topic)
    metrics.registry.register(BeatCollector(beats, observer.latest))

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        await actions.close()
        await live.close()
        await to_thread.run_sync(observer.close)

    app = FastAPI(
        title="lakehouse",
        description="Gold rows from Redis and Delta, dead letters, and the pipeline's state.",
        version="1",
        lifespan=lifespan,
        dependencies=[Depends(refuse_unknown_parameters)],
        openapi_url=None,  # the reference serves it, as a route that refuses unknown parameters
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # a redirect would echo the request's Host
    )
    app.state.end, app.state.registry, app.state.look = changes.end, metrics.registry, look
    problems.install(app)
    if (table := service_metrics(streams)) is not None:
        app.include_router(metrics_api.router(lookups, table))
    app.include_router(tables_api.router(lookups, streams, settings))
    app.include_router(letters_api.router(lookups, letters, Names(names, topics, RULES)))
    search = RecordSearch(streams, settings, gold, letters)
    app.include_router(records_api.router(lookups, search, observer))
    pages = site(settings.home)
    app.include_router(ops_api.router(lookups, ops, [one.name for one in subjects(streams)], pages))
    app.include_router(data_docs.router(pages))
    app.include_router(watch_api.router(lookups, ops, settings, streams, observer))
    app.include_router(changes_api.router(changes))
    app.include_router(telemetry_api.router(metrics.registry, look))
    app.include_router(actions_api.router(actions, names))
    app.include_router(session_api.router(access))
    app.include_router(settings_api.router(settings, shown, streams))
    for routes in more:
        app.include_router(routes)
    app.include_router(reference.router(app, streams, topics, is_https=access.is_https))
    app.add_middleware(Bodies)
    app.add_middleware(Entrance, access=access)  # runs before a body is read
    app.add_middleware(Page)  # runs before Entrance
    app.add_middleware(Front, hosts=access.hosts)
    app.add_middleware(Counted, metrics=metrics)  # runs first
    return app
