"""The public names for declaring a stream in Python (docs/streams.md).

    from lakehouse.streams import Records, windowed_sums

    SPENDING = windowed_sums("spending", Records(topic="card-payments", event_time="paidAt"), ...)

Keys and messages are in `lakehouse.streams.messages`, expectation suites in `lakehouse.streams.suites`.

Names are imported when they are first used, because this imports Spark. `lakehouse.streams.names` works
without Spark.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lakehouse.storage.tables import DELETED, described, shifted
    from lakehouse.streams.definition import (
        Contract,
        EventClock,
        EventTimeProgress,
        Export,
        Field,
        FieldType,
        FoldState,
        GoldTable,
        RedisView,
        Rule,
        SideTable,
        Source,
        Stream,
        WallClock,
    )
    from lakehouse.streams.kinds import (
        Aggregates,
        Records,
        Selected,
        Side,
        Windows,
        joined_calls,
        running_totals,
        sql,
        windowed_statistics,
        windowed_sums,
    )
    from lakehouse.streams.transforms.windows import Tumbling
    from lakehouse.streams.window_lengths import Calendar, Seconds

__all__ = [
    "DELETED",
    "Aggregates",
    "Calendar",
    "Contract",
    "EventClock",
    "EventTimeProgress",
    "Export",
    "Field",
    "FieldType",
    "FoldState",
    "GoldTable",
    "Records",
    "RedisView",
    "Rule",
    "Seconds",
    "Selected",
    "Side",
    "SideTable",
    "Source",
    "Stream",
    "Tumbling",
    "WallClock",
    "Windows",
    "described",
    "joined_calls",
    "running_totals",
    "shifted",
    "sql",
    "windowed_statistics",
    "windowed_sums",
]

_FROM = (
    "lakehouse.storage.tables",
    "lakehouse.streams.definition",
    "lakehouse.streams.kinds",
    "lakehouse.streams.transforms.windows",
    "lakehouse.streams.window_lengths",
)

if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> object:
        """Return a public name. Raises AttributeError for any other name."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return next(getattr(found, name) for found in map(import_module, _FROM) if hasattr(found, name))
