"""Settings for a test: a lake in a directory of its own, and topics that no other test has."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

from pydantic import SecretStr

from lakehouse.dev.services.services import Endpoints
from lakehouse.settings import Settings
from tests.support.streams import STREAMS

MakeSettings = Callable[..., Settings]


def settings_for(settings: Settings, services: Endpoints, directory: Path) -> Settings:
    """Return settings with a lake in the directory and topics of their own."""
    suffix = uuid.uuid4().hex[:8]
    return settings.changed(
        {
            "lake": str(directory / "lake"),
            "kafka.bootstrap_servers": services.kafka,
            "redis.url": SecretStr(services.redis),
            "topics": {topic: f"{topic}-{suffix}" for stream in STREAMS for topic in stream.topics},
        }
    )
