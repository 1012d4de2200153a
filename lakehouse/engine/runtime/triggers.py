"""The trigger of a run: `available-now`, to catch up and stop, or an interval."""

from __future__ import annotations

import re

from lakehouse.common.errors import SettingsError

AVAILABLE_NOW = "available-now"
_INTERVAL = re.compile(r"(\d+(?:\.\d+)?) ?([a-z]+)", re.ASCII)
_UNITS_MS = (
    dict.fromkeys(("ms", "millisecond", "milliseconds"), 1)
    | dict.fromkeys(("s", "second", "seconds"), 1000)
    | dict.fromkeys(("m", "minute", "minutes"), 60_000)
    | dict.fromkeys(("h", "hour", "hours"), 3_600_000)
)


def check_trigger(trigger: str) -> None:
    """Raise SettingsError unless the trigger is available-now or an interval such as "1 second"."""
    if trigger != AVAILABLE_NOW and interval_ms(trigger) is None:
        raise SettingsError(
            f'unknown trigger "{trigger}"; use {AVAILABLE_NOW} or an interval such as "1 second"'
        )


def interval_ms(trigger: str) -> int | None:
    """Return an interval in milliseconds, or None if the text is not an interval.

    Unlike Spark, accepts fractions.
    """
    found = _INTERVAL.fullmatch(trigger)
    unit_ms = _UNITS_MS.get(found[2]) if found else None
    return None if found is None or unit_ms is None else round(float(found[1]) * unit_ms)
