"""`lakehouse setup`: what pip cannot install."""

from __future__ import annotations

import typer

from lakehouse.spark.installing import install
from lakehouse.terminal import Console

app = typer.Typer()


@app.command()
def setup() -> None:
    """Fetch the runtime jars, and write the properties that spark-submit takes.

    Needed once after `pip install`; a rerun changes nothing. Everything goes into share/lakehouse of the
    virtual environment, where the jobs are too.
    """
    console = Console(soft_wrap=True)
    share = install(console.print)
    console.print(f"jars, jobs and properties are in {share}")
    console.print("  lakehouse run all")
    console.print(f"  spark-submit --properties-file {share}/laptop.properties {share}/jobs/bronze.py")
    console.print(
        f"  spark-submit --properties-file {share}/cluster.properties --master spark://HOST:7077 "
        f"{share}/jobs/bronze.py",
    )
