"""Keys and messages, declared once for both Spark and Python.

These are the public names for the keys and messages in a stream's declaration. The package's modules handle
names, JSON text and JSON paths.
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
