"""The command line for the spark-submit jobs, and the error handling for all command lines."""

from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING

import typer
from rich.console import Group

from lakehouse.cli.options import (
    AllowOption,
    BackfillOption,
    SkipOption,
    StandbyOption,
    StreamOption,
    TriggerOption,
    VerboseOption,
)
from lakehouse.cli.starting import run_chosen
from lakehouse.common.errors import LakehouseError
from lakehouse.common.printable import indented
from lakehouse.common.terminal import Console, echo, guard_standard_error
from lakehouse.engine.layers import LAYERS

if TYPE_CHECKING:
    from lakehouse.engine.layers import LayerName

INTERRUPTED = 130


def job(layer: LayerName | None = None) -> None:
    """Run the spark-submit job for one layer or for all layers: parse the arguments, run, and exit."""

    def main(
        stream: StreamOption = None,
        trigger: TriggerOption = "1 second",
        allow: AllowOption = None,
        skip: SkipOption = None,
        *,
        backfill: BackfillOption = False,
        standby: StandbyOption = False,
        verbose: VerboseOption = False,
    ) -> None:
        from lakehouse.settings import load_settings

        run_chosen(
            load_settings(),
            LAYERS if layer is None else [layer],
            stream or [],
            trigger,
            allow=allow or (),
            skip=skip or [],
            backfill=backfill,
            standby=standby,
            verbose=verbose,
        )

    what = "all layers" if layer is None else f"the {layer} layer"
    main.__doc__ = f"Run {what} until stopped or caught up."
    app = typer.Typer(add_completion=False)
    app.command()(main)
    exit_with(app)


def exit_with(app: typer.Typer) -> None:
    """Run a command line, and report a LakehouseError, OSError or Spark error on one line.

    The line goes to standard error. Any other error is reported with its full traceback.
    """
    guard_standard_error()
    try:
        app()
    except LakehouseError as error:
        _print_error(str(error))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:  # noqa: BLE001 - includes bugs, whose messages Python would print unescaped
        _print_failure(error)
        sys.exit(1)


def _print_failure(error: Exception) -> None:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from lakehouse.storage.spark.query_errors import error_line, what_of

    if isinstance(error, (PySparkException, Py4JError)):  # a full disk, an unreachable file system
        _print_error(f"Spark failed: {type(error).__name__}: {error_line(error)}")
    elif isinstance(error, OSError):  # the same problems, reported by Python
        _print_error(what_of(error))
    else:
        echo(*indented(traceback.format_exc()), err=True)


def _print_error(text: str) -> None:
    Console(stderr=True, soft_wrap=True).print(Group(*indented(f"error: {text}")), style="red")
