"""Exact sums of decimal(38,9). A sum is null only if the total does not fit, regardless of intermediate sums.

Spark's own sum is null as soon as an intermediate sum does not fit, even if a later amount would bring it
back into range. For amounts of either sign, the parts below and above 10^15 are therefore summed separately,
with room for a billion amounts each. The two sums are combined as text, because adding two decimals of 38
digits loses one decimal place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal

from pyspark.sql import Column, WindowSpec
from pyspark.sql import functions as F

TYPE = "decimal(38,9)"
_HIGH_FROM = Decimal(10**15)
_DIGITS, _PLACES = 15, 9
_HIGH, _LOW = "decimal(20,0)", f"decimal({_DIGITS + _PLACES},{_PLACES})"


def total(column: str | Column, over: WindowSpec | None = None) -> Column:
    """Return the sum of a column that contains no nulls, as an aggregate or over a window.

    The sum is null if it does not fit in decimal(38,9).
    """

    def sum_of(amount: Column) -> Column:
        added = F.try_sum(amount)
        return added if over is None else added.over(over)

    amount = (F.col(column) if isinstance(column, str) else column).cast(TYPE)
    parts = sum_of(_high(amount)), sum_of(amount % F.lit(_HIGH_FROM))
    return F.coalesce(sum_of(amount), _put_together(*parts))


def added(one: Column, other: Column) -> Column:
    """Return the sum of two amounts, or null if either is null or the sum does not fit in decimal(38,9)."""
    low = one % F.lit(_HIGH_FROM) + other % F.lit(_HIGH_FROM)
    return _put_together(_high(one) + _high(other), low)


def total_of_positive(column: str) -> Column:
    """Return the sum, as an aggregate, of amounts that are never negative, or null if any amount is null."""
    return F.when(F.count_if(F.col(column).isNull()) == 0, F.try_sum(F.col(column).cast(TYPE)))


def _high(amount: Column) -> Column:
    return F.call_function("div", amount, F.lit(_HIGH_FROM)).cast(_HIGH)


def _put_together(high: Column, low: Column) -> Column:
    """Return high x 10^15 + low, exact to the last digit, or null if it does not fit.

    Spark computes a window function once per reference, so each of the two sums is referenced once.
    """
    carried = _with({"high": high, "low": low}, _carried)
    return _with({"sum": carried}, lambda bound: _digits(bound["sum"]["high"], bound["sum"]["low"]))


def _carried(sums: Column) -> Column:
    """Return the sums after carrying multiples of 10^15 from the low sum to the high sum."""
    return F.struct(
        (sums["high"] + _high(sums["low"])).alias("high"), (sums["low"] % F.lit(_HIGH_FROM)).alias("low")
    )


def _digits(high: Column, low: Column) -> Column:
    borrows = F.when((high > 0) & (low < 0), F.lit(1)).when((high < 0) & (low > 0), F.lit(-1)).otherwise(0)
    high, low = high - borrows, (low + borrows * F.lit(_HIGH_FROM)).cast(_LOW)
    sign = F.when((high < 0) | (low < 0), F.lit("-")).otherwise(F.lit(""))
    padded = F.lpad(F.abs(low).cast("string"), _DIGITS + 1 + _PLACES, "0")
    return F.concat(sign, F.abs(high).cast("string"), padded).try_cast(TYPE)


def _with(values: Mapping[str, Column], function: Callable[[Column], Column]) -> Column:
    """Return a function's result for a struct of these values, so that each value is computed only once."""
    bound = F.struct(*(value.alias(name) for name, value in values.items()))
    return F.get(F.transform(F.array(bound), function), F.lit(0))
