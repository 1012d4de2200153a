"""Kinds of streams: each is a function of field names that returns a stream.

    windowed_statistics   count, sum, minimum, maximum, mean, deviation and percentiles of a value in windows
    windowed_sums         exact sums of a value in windows
    running_totals        an exact total for each key, with tombstones, and notifications at a threshold
    joined_calls          records of one call in several topics, joined into one row

They are made of the values of `lakehouse.stream`, which are there for what no kind fits.
"""

from lakehouse.kinds.calls import Side, joined_calls
from lakehouse.kinds.records import Records
from lakehouse.kinds.statistics import Windows, windowed_statistics
from lakehouse.kinds.sums import windowed_sums
from lakehouse.kinds.totals import running_totals
from lakehouse.stream import Field, FieldType, Rule

__all__ = [
    "Field",
    "FieldType",
    "Records",
    "Rule",
    "Side",
    "Windows",
    "joined_calls",
    "running_totals",
    "windowed_statistics",
    "windowed_sums",
]
