"""Keys and messages, declared once for both Spark and Python.

These are the public names for declaring keys and messages in a stream. Modules in this package also handle
escaped names, JSON text and JSON paths.
"""

from lakehouse.streams.messages.layout import (
    Constant,
    Equals,
    Exact,
    Key,
    Message,
    Millis,
    MillisThen,
    Name,
    Payload,
    Plain,
    joined_key,
    key,
)

__all__ = [
    "Constant",
    "Equals",
    "Exact",
    "Key",
    "Message",
    "Millis",
    "MillisThen",
    "Name",
    "Payload",
    "Plain",
    "joined_key",
    "key",
]
