"""One lake of every stream, filled over a real broker and exported to a real Redis, for a worker's tests."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from lakehouse.layer import LAYERS
from lakehouse.loads import GENERATORS, Load, send
from lakehouse.local.services import Endpoints
from lakehouse.runner import run
from lakehouse.settings import Settings
from lakehouse.streams import STREAMS
from lakehouse.topics import create_topics
from lakehouse.triggers import AVAILABLE_NOW
from tests.conftest import settings_for

LAKE_EVENTS = 300  # of each stream, twice


@pytest.fixture(scope="session")
def filled_lake(
    spark: SparkSession,
    session_settings: Settings,
    services: Endpoints,
    tmp_path_factory: pytest.TempPathFactory,
) -> Settings:
    """A lake of every stream that has caught up twice, calls closed; who changes a table puts it back."""
    settings = settings_for(session_settings, services, tmp_path_factory.mktemp("filled")).model_copy(
        update={"call_gap_s": 1, "call_grace_s": 1, "quantile_k": 10}
    )
    create_topics(services.kafka, {settings.topic(name): 2 for one in STREAMS for name in one.topics})
    for seed in (1, 2):
        for stream in GENERATORS:
            assert send(Load(stream, LAKE_EVENTS, seed=seed, malformed=0.05), settings).failed == 0
        run(spark, STREAMS, LAYERS, settings, trigger=AVAILABLE_NOW)
    return settings
