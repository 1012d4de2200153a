"""`lakehouse new stream`, which generates a stream's table or package from files of sample records."""

from enum import StrEnum


class Kind(StrEnum):
    """A kind of stream to generate, named after its function in `lakehouse.streams.kinds`."""

    WINDOWED_STATISTICS = "windowed-statistics"
    WINDOWED_SUMS = "windowed-sums"
    RUNNING_TOTALS = "running-totals"
    JOINED_CALLS = "joined-calls"
    SQL = "sql"
