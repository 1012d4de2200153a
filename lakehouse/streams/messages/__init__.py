"""Keys and messages, declared once for Spark and for Python; this is what a stream of your own imports.

The package's modules handle names, JSON text and JSON paths.
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
