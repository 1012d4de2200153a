"""`lakehouse setup`: what pip cannot install."""

from __future__ import annotations

import typer
from rich.console import Console

from lakehouse.spark.installing import install

app = typer.Typer()


@app.command()
def setup() -> None:
    """Fetch the runtime jars, and write the properties that spark-submit takes.

    Needed once after `pip install`; a rerun changes nothing. Everything goes into share/lakehouse of the
    virtual environment, where the jobs are too.
    """
    console = Console(soft_wrap=True, highlight=False)
    share = install(lambda text: console.print(text, markup=False))
    console.print(f"jars, jobs and properties are in {share}", markup=False)
    console.print("  lakehouse run all", markup=False)
    console.print(
        f"  spark-submit --properties-file {share}/laptop.properties {share}/jobs/bronze.py", markup=False
    )
    console.print(
        f"  spark-submit --properties-file {share}/cluster.properties --master spark://HOST:7077 "
        f"{share}/jobs/bronze.py",
        markup=False,
    )
