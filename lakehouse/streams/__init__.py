"""The public names for declaring a stream in Python (docs/streams.md).

    from lakehouse.streams import Records, windowed_sums

    SPENDING = windowed_sums("spending", Records(topic="card-payments", event_time="paidAt"), ...)

Keys and messages are in `lakehouse.streams.messages`, expectation suites in `lakehouse.streams.suites`.
"""

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
    Records,
    Side,
    Windows,
    joined_calls,
    running_totals,
    windowed_statistics,
    windowed_sums,
)
from lakehouse.streams.transforms.windows import Tumbling

__all__ = [
    "DELETED",
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
    "windowed_statistics",
    "windowed_sums",
]
