"""Notebooks that run cell by cell, in this process or in a separate kernel, and what their cells show.

Tests call rows(cell) and text(cell); both runners fill the same cells.
"""

from __future__ import annotations

import ast
import asyncio
import base64
import contextlib
import html
import io
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib as mpl
import nbformat
import pandas as pd
import pytest
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from matplotlib import pyplot as plt
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from pyspark.sql import SparkSession

from lakehouse.common import errors
from lakehouse.common.errors import TableError
from lakehouse.common.quantities import show_duration
from lakehouse.settings import Settings
from tests.support.processes import QUICK_JVM, ROOT

HARMLESS = {
    "WARNING: Using incubator modules: jdk.incubator.vector",
    "Matplotlib is building the font cache; this may take a moment.",
}
"""What a JVM, and the first plot on a machine, print."""


@dataclass
class Cell:
    """A cell and what it has shown: tables as HTML, plots as PNG, everything else as text."""

    source: str
    tables: list[str] = field(default_factory=list)
    images: list[bytes] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    warned: str = ""


Notebook = Mapping[str, Cell]
"""The cells by their ids."""


def rows(cell: Cell) -> list[dict[str, str]]:
    """Return the rows of the table that a cell shows, as a reader sees them."""
    (shown,) = cell.tables
    head, *body = (
        [html.unescape(text) for text in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", line, re.DOTALL)]
        for line in re.findall(r"<tr.*?</tr>", shown, re.DOTALL)
    )
    return [dict(zip(head[1:], line[1:], strict=True)) for line in body]


def text(cell: Cell) -> str:
    """Return what a cell prints and shows as text."""
    return "".join(cell.texts)


@dataclass
class InProcess:
    """Runs cells in this process, on the session's Spark, which they may not stop."""

    spark: SparkSession
    directory: Path
    monkeypatch: pytest.MonkeyPatch
    stops: int = 0

    def execute(self, notebook: Path, settings: Settings) -> Notebook:
        """Run a notebook in another directory; raise what a cell raises."""
        self.monkeypatch.chdir(_elsewhere(self.directory))
        for name, value in _environment(settings, self.directory).items():
            self.monkeypatch.setenv(name, value)
        self.monkeypatch.setattr(SparkSession, "stop", self._stop)
        names: dict[str, Any] = {"__name__": "__main__"}
        document = _read(notebook)
        cells = {cell["id"]: Cell(cell["source"]) for cell in document["cells"]}
        try:
            with mpl.rc_context(), pd.option_context("display.html.use_mathjax", True):
                for cell in document["cells"]:
                    if cell["cell_type"] == "code":
                        self._run(cells[cell["id"]], names)
        except TableError:
            assert self.stops == 1, "the session is closed where there is nothing to look at"
            raise
        finally:
            plt.close("all")
        assert self.stops == 1
        assert list(Path.cwd().iterdir()) == []
        return cells

    def _stop(self, *_session: object) -> None:
        self.stops += 1

    def _run(self, cell: Cell, names: dict[str, Any]) -> None:
        """Run the statements of a cell, and show the value of the last one if it is an expression."""
        tree = ast.parse(cell.source)
        shown: Any = None
        printed, warned = io.StringIO(), io.StringIO()
        with (
            _shown_plots(cell, self.monkeypatch),
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(warned),
        ):
            for statement in tree.body:
                if isinstance(statement, ast.Expr):
                    shown = eval(compile(ast.Expression(statement.value), "cell", "eval"), names)  # noqa: S307
                else:
                    shown = None
                    exec(compile(ast.Module([statement], []), "cell", "exec"), names)  # noqa: S102
        cell.texts.append(printed.getvalue())
        cell.warned = warned.getvalue()
        if hasattr(shown, "_repr_html_"):
            cell.tables.append(shown._repr_html_())
        if shown is not None:
            cell.texts.append(repr(shown))


@contextlib.contextmanager
def _shown_plots(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def show() -> None:
        for number in plt.get_fignums():
            drawn = io.BytesIO()
            plt.figure(number).savefig(drawn, format="png")
            cell.images.append(drawn.getvalue())
        plt.close("all")

    with monkeypatch.context() as patch:
        patch.setattr(plt, "show", show)
        yield


@dataclass
class InKernel:
    """Runs a notebook in a separate kernel with this Python, as Jupyter does."""

    spark: SparkSession
    directory: Path
    monkeypatch: pytest.MonkeyPatch

    def execute(self, notebook: Path, settings: Settings) -> Notebook:
        """Run a notebook in another directory; raise our error if a cell raises one."""
        spec = self.directory / "kernels" / "python3" / "kernel.json"
        spec.parent.mkdir(parents=True)
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        spec.write_text(json.dumps({"argv": argv, "display_name": "Python 3", "language": "python"}))
        manager = AsyncKernelManager(
            kernel_name="python3",
            kernel_spec_manager=KernelSpecManager(
                kernel_dirs=[str(spec.parents[1])], ensure_native_kernel=False
            ),
            connection_file=str(self.directory / "connection.json"),
        )
        elsewhere = _elsewhere(self.directory)
        document = _read(notebook)
        client = NotebookClient(
            document, km=manager, timeout=600, resources={"metadata": {"path": str(elsewhere)}}
        )
        # A kernel with pytest's variable does not show what other processes print.
        kept = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
        try:
            asyncio.run(_run(client, manager, kept | _environment(settings, self.directory)))
        except CellExecutionError as error:
            ours = getattr(errors, error.ename, None)
            raise error if ours is None else ours(error.evalue) from error
        assert list(elsewhere.iterdir()) == []
        return {cell["id"]: _cell(cell) for cell in document["cells"]}


async def _run(client: NotebookClient, manager: AsyncKernelManager, environment: dict[str, str]) -> None:
    try:
        await client.async_execute(env=environment)
    finally:
        if client.kc is not None:  # otherwise it keeps connecting to ports that others have by then
            client.kc.stop_channels()
        await manager.shutdown_kernel(now=True)


def _cell(raw: Mapping[str, Any]) -> Cell:
    outputs = raw.get("outputs", [])
    shown = [output["data"] for output in outputs if "data" in output]
    printed = [output for output in outputs if "text" in output]
    return Cell(
        raw["source"],
        tables=[data["text/html"] for data in shown if "text/html" in data],
        images=[base64.b64decode(data["image/png"]) for data in shown if "image/png" in data],
        texts=[output.get("text") or output["data"].get("text/plain", "") for output in outputs],
        warned="".join(output["text"] for output in printed if output.get("name") == "stderr"),
    )


def _elsewhere(directory: Path) -> Path:
    elsewhere = directory / "elsewhere"
    elsewhere.mkdir()
    return elsewhere


def _read(notebook: Path) -> Any:
    return nbformat.read(notebook, as_version=4)  # type: ignore[no-untyped-call]


def _environment(settings: Settings, directory: Path) -> dict[str, str]:
    return {
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        **QUICK_JVM,
        "IPYTHONDIR": str(directory / "ipython"),
        "COLUMNS": "300",
        "LAKEHOUSE_HOME": str(directory / "home"),
        "LAKEHOUSE_LAKE": settings.lake,
        "LAKEHOUSE_KAFKA_BOOTSTRAP_SERVERS": settings.kafka.bootstrap_servers,
        "LAKEHOUSE_REDIS_URL": settings.redis.url.get_secret_value(),
        "LAKEHOUSE_TOPICS": json.dumps(settings.topics),
        "LAKEHOUSE_STREAMS": json.dumps(settings.streams),
        "LAKEHOUSE_STREAM_DEFAULTS_FUTURE_TOLERANCE": show_duration(
            settings.stream_defaults.future_tolerance_s
        ),
        "LAKEHOUSE_SPARK_MASTER": "local[2]",
        "LAKEHOUSE_SPARK_DRIVER_MEMORY": "1g",
    }
