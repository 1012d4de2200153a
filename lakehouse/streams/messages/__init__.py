"""Keys and messages, declared once for Spark and Python; the public names for declaring a stream.

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
