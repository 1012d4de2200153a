"""The built-in streams, which `streams.toml` declares in the same way as users declare their own."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

TABLES: Mapping[str, Mapping[str, Any]] = tomllib.loads(
    files(__name__).joinpath("streams.toml").read_text(encoding="utf-8")
)["streams"]
"""The declared keys of each stream, by stream name. Commands list the streams in this order."""
