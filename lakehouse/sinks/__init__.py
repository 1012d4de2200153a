"""Stores that gold rows are exported to; this is what a sink of your own imports (docs/sinks.md).

A change is a row's newest state in a micro-batch of gold's change feed. A sink gets all changes of a
micro-batch, and may get the same micro-batch again. The stores are listed in `lakehouse.sinks.registry`.
"""

from lakehouse.common.errors import SinkTroubleError
from lakehouse.sinks.change import Change
from lakehouse.sinks.outgoing import message_of, outgoing
from lakehouse.sinks.port import Audited, Exported, Findings, Sending, SinkKind
from lakehouse.storage.tables import Position

__all__ = [
    "Audited",
    "Change",
    "Exported",
    "Findings",
    "Position",
    "Sending",
    "SinkKind",
    "SinkTroubleError",
    "message_of",
    "outgoing",
]
