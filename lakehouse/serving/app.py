"""The application that `lakehouse serve` runs: every route, and what they share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from fastapi import FastAPI

from lakehouse.serving import metrics_api, problems, tables_api
from lakehouse.serving.gold import Gold
from lakehouse.serving.live import Live
from lakehouse.serving.lookups import Lookups
from lakehouse.settings import Settings
from lakehouse.stream import Stream


def make_app(settings: Settings, streams: Sequence[Stream]) -> FastAPI:
    """Return the application over the lake and the Redis of the settings."""
    tables = [table for stream in streams for table in stream.tables]
    live = Live(settings)
    lookups = Lookups(settings, tables, Gold(settings.lake, tables), live)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        await live.close()

    app = FastAPI(
        title="lakehouse",
        description="Metrics, calls, sales and transactions: the newest gold rows, from Redis and Delta.",
        version="1",
        lifespan=lifespan,
        redoc_url=None,
    )
    problems.install(app)
    app.include_router(metrics_api.router(lookups))
    app.include_router(tables_api.router(lookups, streams))
    return app
