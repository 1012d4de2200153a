"""`lakehouse setup`: installs the parts that pip cannot install."""

from __future__ import annotations

from typing import Annotated

import typer

from lakehouse.common.terminal import Console

app = typer.Typer()


@app.command()
def setup(
    *,
    s3: Annotated[
        bool,
        typer.Option("--s3", help="Also install support for s3a://: downloads 13 MB and compiles a jar."),
    ] = False,
) -> None:
    """Download the runtime jars, and write properties files for spark-submit.

    Run this once after `pip install`; running it again changes nothing. All files go into share/lakehouse in
    the virtual environment, next to the jobs for spark-submit.
    """
    from lakehouse.storage.spark.installing import BY_DEFAULT, install

    console = Console(soft_wrap=True)
    share = install(console.print, (*BY_DEFAULT, "s3") if s3 else BY_DEFAULT)
    console.print(f"jars, jobs and properties are in {share}")
    console.print("  lakehouse run all")
    console.print(f"  spark-submit --properties-file {share}/laptop.properties {share}/jobs/bronze.py")
    console.print(
        f"  spark-submit --properties-file {share}/cluster.properties --master spark://HOST:7077 "
        f"{share}/jobs/bronze.py",
    )
