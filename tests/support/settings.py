"""Settings for a test: a lake in its own directory, and topics that no other test uses."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import SecretStr

from lakehouse.dev.services.services import Endpoints
from lakehouse.settings import Settings
from tests.support.streams import STREAMS

MakeSettings = Callable[..., Settings]


def settings_for(settings: Settings, services: Endpoints, directory: Path) -> Settings:
    """Return settings with a lake in the directory and with unique topics."""
    suffix = uuid.uuid4().hex[:8]
    return settings.changed(
        {
            "lake": str(directory / "lake"),
            "kafka.bootstrap_servers": services.kafka,
            "redis.url": SecretStr(services.redis),
            "topics": {topic: f"{topic}-{suffix}" for stream in STREAMS for topic in stream.topics},
        }
    )


def nothing_set(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to the directory, in an environment without lakehouse settings, and return the directory."""
    for name in [name for name in os.environ if name.startswith("LAKEHOUSE_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.chdir(directory)
    return directory
