"""Mergeable statistics of a numeric column: count, sum, min, max, moments and quantiles.

The states of two groups of values with the same key can be merged. The columns for users (avg, variance,
percentiles) are derived from the state, so an update never rereads raw rows.

Moments: count, mean and M2 (the sum of squared distances from the mean), merged by the pairwise formula of
Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances" (1979).
Quantiles: a KLL sketch by Karnin, Lang and Liberty, "Optimal quantile approximation in streams" (2016), as
Apache DataSketches implements it: exact up to k values, beyond that within a normalized rank error of
2.446 / k^0.9433 in 99 of 100 cases (KllHelper.getNormalizedRankError), 0.23 % at k = 1600. A percentile p is
the least value whose rank is at least p (nearest rank).
"""

from __future__ import annotations

import math

from pyspark.sql import Column
from pyspark.sql import functions as F

from lakehouse.storage.tables import described

PERCENTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}

SHOWN = described(
    ("count", "long", "Number of values."),
    ("sum", "double", "Sum of the values, within floating-point accuracy."),
    ("min", "double", "Smallest value."),
    ("max", "double", "Largest value."),
    ("avg", "double", "Mean of the values, within floating-point accuracy."),
    ("variance", "double", "Sample variance; null for a single value."),
    ("stddev", "double", "Sample standard deviation; null for a single value."),
    *(
        (name, "double", f"Smallest value with a rank of at least {rank:.2f}; for many values, an estimate.")
        for name, rank in PERCENTILES.items()
    ),
)
"""The statistics columns that users read."""

FOR_MERGES = described(
    ("m2", "double", "Sum of squared distances from avg, for merges; cleared once no more rows can arrive."),
    ("sketch", "binary", "KLL sketch of the values, for merges; cleared once no more rows can arrive."),
)
"""The columns that only merges need."""

_ROUNDING = 8 * 2.0**-52
_LEAST = 1e-150  # the squares of smaller values underflow


def aggregates(value: Column, quantile_k: int) -> dict[str, Column]:
    """Return the aggregates that compute the state of a group of values, keyed by state column."""
    return {
        "count": F.count(value),
        "sum": F.sum(value),
        "min": F.min(value),
        "max": F.max(value),
        "avg": F.avg(value),
        "m2": F.var_pop(value) * F.count(value),
        "sketch": F.kll_sketch_agg_double(value, quantile_k),
    }


def merged(left: str, right: str) -> dict[str, Column]:
    """Return the merged state of two groups, keyed by state column.

    `left` and `right` are aliases of two joined frames with state columns. If one side has no row, its
    columns are null, and the result is the other side's state.
    """

    def one(column: str, both: Column) -> Column:
        a, b = F.col(f"{left}.{column}"), F.col(f"{right}.{column}")
        return (
            F.when(F.col(f"{left}.count").isNull(), b)
            .when(F.col(f"{right}.count").isNull(), a)
            .otherwise(both)
        )

    def pair(column: str) -> tuple[Column, Column]:
        return F.col(f"{left}.{column}"), F.col(f"{right}.{column}")

    (n_a, n_b), (mean_a, mean_b), (m2_a, m2_b) = pair("count"), pair("avg"), pair("m2")
    mean, m2 = pairwise((n_a, mean_a, m2_a), (n_b, mean_b, m2_b))
    sum_a, sum_b = pair("sum")
    return {
        "count": one("count", n_a + n_b),
        "sum": one("sum", sum_a + sum_b),
        "min": F.least(*pair("min")),
        "max": F.greatest(*pair("max")),
        "avg": one("avg", mean),
        "m2": one("m2", m2),
        "sketch": one("sketch", F.kll_sketch_merge_double(*pair("sketch"))),
    }


def pairwise(
    one: tuple[Column, Column, Column], other: tuple[Column, Column, Column]
) -> tuple[Column, Column]:
    """Return the mean and M2 of two groups together. Each group is its count, mean and M2."""
    (n_a, mean_a, m2_a), (n_b, mean_b, m2_b) = one, other
    n, delta = n_a + n_b, mean_b - mean_a
    return mean_a + delta * (n_b / n), m2_a + m2_b + delta * delta * (n_a / n) * n_b


def sample_variance(count: Column, m2: Column) -> Column:
    """Return the sample variance of a group, or null for a single value."""
    return F.when(count > 1, m2 / (count - 1))


def derived() -> dict[str, Column]:
    """Return the columns that users read, derived from the state columns of a frame."""
    variance = sample_variance(F.col("count"), F.col("m2"))
    ranks = F.array(*(F.lit(rank) for rank in PERCENTILES.values()))
    quantiles = F.kll_sketch_get_quantile_double("sketch", ranks)
    return {"variance": variance, "stddev": F.sqrt(variance)} | {
        name: quantiles[position] for position, name in enumerate(PERCENTILES)
    }


def rank_error_limit(quantile_k: int) -> float:
    """Return the maximum rank error of a percentile: twice the bound that holds in 99 of 100 cases."""
    return 2 * 2.446 / math.pow(quantile_k, 0.9433)


def slack() -> dict[str, Column]:
    """Return how much two computations of each statistic can differ because of rounding."""
    count, size = F.col("count"), F.greatest(F.abs("min"), F.abs("max"))
    found = rounding(count, size, F.col("stddev"))
    return {**found, "sum": found["avg"] * count, "m2": found["variance"] * count}


def rounding(count: Column, size: Column, stddev: Column) -> dict[str, Column]:
    """Return how much two computations of avg, variance and stddev can differ because of rounding.

    The rounding error of a sum of doubles grows with its largest terms, and that of a deviation with the
    largest values. `size` is the largest magnitude of a value.
    """
    deviation = _ROUNDING * count * size + _LEAST
    variance = deviation * (2 * F.coalesce(stddev, F.lit(0.0)) + deviation)
    return {"avg": deviation, "stddev": deviation, "variance": variance}
