"""The cost and the error of a percentile, with KLL sketches of several sizes and with a histogram.

    python -m benchmarks.quantiles --trials 20

A trial is a window with a million lognormal values (sigma 1, which is typical for latencies) that arrive in
50 micro-batches of 20,000. As in gold, each micro-batch's state is merged into the window's state. Then p99
is compared with the value that has exactly this rank. The histogram is a map that counts values by
floor(log(value) / log(1.02)). The middle of a bucket is therefore within 1 % of each of its values.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Annotated

import typer
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.table import Table

from benchmarks.bench import console
from benchmarks.measuring import application, used_by
from lakehouse.settings import load_settings
from lakehouse.storage.spark.session import start_session

_BATCHES, _ROWS = 50, 20_000
_RATIO = math.log(1.02)
_RANK = 0.99
_SIZES = (200, 400, 800, 1600, 3200)

app = typer.Typer(add_completion=False)


@app.command()
def quantiles(
    *, trials: Annotated[int, typer.Option(min=1, help="Windows of a million values each.")] = 20
) -> None:
    """Print the error of p99, the size of the state and the CPU time for each kind of state."""
    table = Table(title=f"p99 of a million lognormal values, {trials} times")
    for name in ("state", "median error", "worst error", "bytes", "CPU-s per million"):
        table.add_column(name, justify="left" if name == "state" else "right")
    with start_session(load_settings(), "quantiles") as spark:
        values = _values(spark, trials).persist()
        exact = _as_numbers(values.groupBy("trial").agg(_exact().alias("p99")))
        ways = {f"KLL, k = {k}": _sketched(values, k) for k in _SIZES}
        ways["buckets of 2 %"] = _counted(values)
        for _ in range(2):  # in the first run, Spark compiles code
            baseline = _cpu_s(values.groupBy("trial", "batch").agg(F.max("value")))
        for name, state in ways.items():
            _cpu_s(state)
            cpu_s = _cpu_s(state) - baseline
            found = state.select("trial", "p99", "bytes").collect()
            errors = [abs(p99 / exact[trial] - 1) for trial, p99, _ in found]
            size = statistics.mean(size for _, _, size in found)
            shown = (f"{statistics.median(errors):.1%}", f"{max(errors):.1%}", f"{size:,.0f}")
            table.add_row(name, *shown, f"{cpu_s / trials:.2f}")
        values.unpersist()
    console.print(table)


def _values(spark: SparkSession, trials: int) -> DataFrame:
    number = F.col("id")
    return spark.range(trials * _BATCHES * _ROWS).select(
        F.exp(3 + F.randn(7)).alias("value"),
        F.pmod(number, F.lit(trials)).alias("trial"),
        F.pmod(F.floor(number / trials), F.lit(_BATCHES)).alias("batch"),
    )


def _exact() -> Column:
    return F.expr(f"percentile_disc({_RANK}) WITHIN GROUP (ORDER BY value)")


def _sketched(values: DataFrame, k: int) -> DataFrame:
    """Return each trial's p99 and state size, computed with sketches that are merged one after the other."""
    batches = values.groupBy("trial", "batch").agg(F.kll_sketch_agg_double("value", F.lit(k)).alias("sketch"))
    every = batches.groupBy("trial").agg(F.collect_list("sketch").alias("all"))
    merged = F.aggregate(
        F.slice("all", 2, _BATCHES),
        F.element_at("all", 1),
        F.kll_sketch_merge_double,
    )
    one = every.select("trial", merged.alias("sketch"))
    return one.select(
        "trial",
        F.kll_sketch_get_quantile_double("sketch", F.lit(_RANK)).alias("p99"),
        F.length("sketch").alias("bytes"),
    )


def _counted(values: DataFrame) -> DataFrame:
    """Return each trial's p99 and state size, computed with maps of bucket counts that are merged."""
    bucket = F.floor(F.log("value") / _RATIO).cast("int")
    counts = values.groupBy("trial", "batch", bucket.alias("bucket")).agg(F.count("*").alias("count"))
    maps = counts.groupBy("trial", "batch").agg(
        F.map_from_entries(F.collect_list(F.struct("bucket", "count"))).alias("counts")
    )
    every = maps.groupBy("trial").agg(F.collect_list("counts").alias("all"))
    none = F.lit(0).cast("long")
    merged = F.aggregate(
        F.slice("all", 2, _BATCHES),
        F.element_at("all", 1),
        lambda one, other: F.map_zip_with(
            one, other, lambda _, a, b: F.coalesce(a, none) + F.coalesce(b, none)
        ),
    )
    entries = F.array_sort(F.map_entries(merged))
    total = F.aggregate("entries", none, lambda sum_, entry: sum_ + entry["value"])
    start = F.struct(none.alias("passed"), F.lit(None).cast("int").alias("found"))
    found = F.aggregate(
        "entries",
        start,
        lambda at, entry: F.struct(
            (at["passed"] + entry["value"]).alias("passed"),
            F.when(
                at["found"].isNull() & (at["passed"] + entry["value"] >= _RANK * F.col("total")), entry["key"]
            )
            .otherwise(at["found"])
            .alias("found"),
        ),
    )["found"]
    one = every.select("trial", entries.alias("entries")).withColumn("total", total)
    return one.select(
        "trial",
        F.exp((found + 0.5) * _RATIO).alias("p99"),
        (12 * F.size("entries")).alias("bytes"),  # an int and a long for each entry
    )


def _cpu_s(frame: DataFrame) -> float:
    with used_by(*application()) as usage:
        frame.write.format("noop").mode("overwrite").save()
    return usage.cpu_s


def _as_numbers(frame: DataFrame) -> Mapping[int, float]:
    return {int(trial): float(p99) for trial, p99 in frame.collect()}


if __name__ == "__main__":
    app()
