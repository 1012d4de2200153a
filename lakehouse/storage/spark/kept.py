"""Cache the query plans of row functions, so that Spark does not plan them again for each micro-batch.

Normally, Spark analyzes, optimizes and plans every frame. For a few thousand rows, that costs more than
processing them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame

from lakehouse.storage.spark import internals


class Kept:
    """A row function with a plan that is cached and used again for rows with the same schema and settings.

    The function adds, changes and selects columns. It must not depend on anything else that changes, so a
    value that differs between micro-batches must be passed as a column. Spark plans the function for each
    frame, as usual, if the plan cannot be kept (for example, because it uses a Python function or the time of
    day), if the session executes for many rows, or if the jar that `lakehouse setup` compiles is missing.
    """

    def __init__(self, function: Callable[[DataFrame], DataFrame]) -> None:
        self._function = function
        self._plans: Any = None

    def of(self, rows: DataFrame) -> DataFrame:
        """Apply the function to the rows. Spark plans the rows now, with the session's current settings."""
        spark, given = rows.sparkSession, internals.java_frame(rows)
        plans = internals.compiled(spark, "KeptPlans")
        if plans is None:
            return self._function(rows)
        if self._plans is None:
            self._plans = plans()
        placeholder = self._plans.placeholder(given)
        if placeholder is not None:
            computed = self._function(internals.frame(spark, placeholder))
            self._plans.keep(given, internals.java_frame(computed))
        found = self._plans.computed(given)
        return self._function(rows) if found is None else internals.frame(spark, found)
