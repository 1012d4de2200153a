"""Exact sums of decimal(38,9): a total beyond the range is a failure that names its key, never a wrap.

Only aggregates add here: Spark's + gives two decimals of 38 digits a result with one decimal place less.
"""

from __future__ import annotations

from pyspark.sql import Column, WindowSpec
from pyspark.sql import functions as F

TYPE = "decimal(38,9)"


def total(column: str, of_what: Column, over: WindowSpec | None = None) -> Column:
    """Return the sum of a column that is never null, as an aggregate or over a window.

    Fails the query, naming `of_what`, where the sum does not fit.
    """
    # try_sum is null where the sum does not fit.
    sum_ = F.try_sum(F.col(column).cast(TYPE))
    message = F.concat(of_what, F.lit(f" is beyond {TYPE}: 29 digits before the decimal point, 9 after it"))
    return F.coalesce(sum_ if over is None else sum_.over(over), F.raise_error(message).cast(TYPE))
