"""Kinds of streams. Each kind is a function that takes field names and returns a stream.

    windowed_statistics   count, sum, minimum, maximum, mean, deviation and percentiles of a value per window
    windowed_sums         exact sums of a value per window
    running_totals        an exact total per key, with tombstones, and notifications at a threshold
    joined_calls          records of the same call from several topics, joined into one row
    sql                   named aggregates of selected rows per key, or per key and window

Kinds build streams from the values in `lakehouse.streams.definition`. If no kind fits, use these values
directly.
"""

from lakehouse.streams.definition import Field, FieldType, Rule
from lakehouse.streams.kinds.aggregates import Aggregates, Selected, sql
from lakehouse.streams.kinds.calls import Side, joined_calls
from lakehouse.streams.kinds.records import Records
from lakehouse.streams.kinds.statistics import Windows, windowed_statistics
from lakehouse.streams.kinds.sums import windowed_sums
from lakehouse.streams.kinds.totals import running_totals

__all__ = [
    "Aggregates",
    "Field",
    "FieldType",
    "Records",
    "Rule",
    "Selected",
    "Side",
    "Windows",
    "joined_calls",
    "running_totals",
    "sql",
    "windowed_statistics",
    "windowed_sums",
]
