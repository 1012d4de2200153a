"""Streams declared in `lakehouse.toml`: a table `[streams.NAME]` declares or changes a stream.

[streams.payments]                    # a stream of a kind: the kind's arguments
kind = "windowed_sums"
topic = "card-payments"
by = "card.id"
value = "amount"
length = "5m"

[streams.orders]                      # a stream in Python
python = "shop.streams:ORDERS"

[streams.orders.gold.orders_1h]       # a change
emit = "final"
"""

from lakehouse.streams.declared.changing import changed
from lakehouse.streams.declared.keys import Changes, InPython, OfKind
from lakehouse.streams.declared.making import built, stream_of
from lakehouse.streams.declared.reading import read_table

__all__ = ["Changes", "InPython", "OfKind", "built", "changed", "read_table", "stream_of"]
