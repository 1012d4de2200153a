"""Stores that gold rows are exported to. A custom sink imports its interface from here (docs/sinks.md).

A change is the newest state of a gold row within a micro-batch of the change feed. A sink receives all
changes in a micro-batch, and can receive the same micro-batch more than once. `lakehouse.sinks.registry`
lists the stores.
"""

from lakehouse.common.errors import SettingsError, SinkTroubleError, StoreWord
from lakehouse.settings import Settings
from lakehouse.sinks.change import Change, Span
from lakehouse.sinks.outgoing import changes_of, message_of, outgoing
from lakehouse.sinks.port import Audited, Exported, Findings, Sending, SinkKind, Stored
from lakehouse.storage.tables import Position

__all__ = [
    "Audited",
    "Change",
    "Exported",
    "Findings",
    "Position",
    "Sending",
    "Settings",
    "SettingsError",
    "SinkKind",
    "SinkTroubleError",
    "Span",
    "StoreWord",
    "Stored",
    "changes_of",
    "message_of",
    "outgoing",
]
