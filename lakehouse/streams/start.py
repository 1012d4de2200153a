"""Validation of the setting `start`: the position from which a topic is first read."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from lakehouse.common.errors import SettingsError
from lakehouse.common.readable import parse_moment

_WORDS = ("earliest", "latest")


def check_start(start: Mapping[str, str]) -> None:
    """Raise SettingsError for a start that is neither `earliest`, `latest` nor a time."""
    for topic, at in start.items():
        if at in _WORDS:
            continue
        try:
            parse_moment(at, datetime.now(UTC))
        except SettingsError as error:
            raise SettingsError(f"start: for {topic}, {error}; or {' or '.join(_WORDS)}") from None
