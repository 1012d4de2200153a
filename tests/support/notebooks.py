"""Notebooks that run in a kernel, and the output of their cells."""

from __future__ import annotations

import asyncio
import base64
import html
import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

from lakehouse.common.quantities import show_duration
from lakehouse.settings import Settings
from tests.support.processes import QUICK_JVM, ROOT

HARMLESS = {
    "WARNING: Using incubator modules: jdk.incubator.vector",
    "Matplotlib is building the font cache; this may take a moment.",
}
"""Output of a JVM, and of the first plot on a machine."""


STRIPPED = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
"""The metadata of a notebook in the repository."""


@dataclass
class Cell:
    """A cell and its output: tables as HTML, plots as PNG, and its standard error."""

    source: str
    tables: list[str] = field(default_factory=list)
    images: list[bytes] = field(default_factory=list)
    warned: str = ""


Notebook = Mapping[str, Cell]
"""The cells by their ids."""


def rows(cell: Cell) -> list[dict[str, str]]:
    """Return the rows of the table in a cell's output, as a reader sees them."""
    (shown,) = cell.tables
    head, *body = (
        [html.unescape(text) for text in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", line, re.DOTALL)]
        for line in re.findall(r"<tr.*?</tr>", shown, re.DOTALL)
    )
    return [dict(zip(head[1:], line[1:], strict=True)) for line in body]


def execute(notebook: Path, settings: Settings, directory: Path) -> Notebook:
    """Run a notebook in a kernel with this Python, as Jupyter does, in another directory.

    Raises CellExecutionError if a cell raises an error.
    """
    return {cell["id"]: _cell(cell) for cell in _executed(notebook, settings, directory)["cells"]}


def store(notebook: Path, settings: Settings, directory: Path) -> None:
    """Run a notebook in the same way, and write it with the tables and plots that its cells show."""
    document = _executed(notebook, settings, directory)
    document["metadata"] = STRIPPED
    for cell in document["cells"]:
        cell["metadata"] = {}
        if cell["cell_type"] == "code":
            cell["execution_count"] = None
            cell["outputs"] = [one for one in cell["outputs"] if "data" in one]
        for output in cell.get("outputs", []):
            output["metadata"] = {}
            if "execution_count" in output:
                output["execution_count"] = None
    nbformat.write(document, notebook)  # type: ignore[no-untyped-call]


def _executed(notebook: Path, settings: Settings, directory: Path) -> Any:
    """Return the notebook with its cells' output."""
    spec = directory / "kernels" / "python3" / "kernel.json"
    spec.parent.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec.write_text(json.dumps({"argv": argv, "display_name": "Python 3", "language": "python"}))
    manager = AsyncKernelManager(
        kernel_name="python3",
        kernel_spec_manager=KernelSpecManager(kernel_dirs=[str(spec.parents[1])], ensure_native_kernel=False),
        connection_file=str(directory / "connection.json"),
    )
    elsewhere = directory / "elsewhere"
    elsewhere.mkdir()
    document: Any = nbformat.read(notebook, as_version=4)  # type: ignore[no-untyped-call]
    client = NotebookClient(
        document, km=manager, timeout=600, resources={"metadata": {"path": str(elsewhere)}}
    )
    # With pytest's variable, a kernel does not show the output of other processes.
    kept = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    asyncio.run(_run(client, manager, kept | _environment(settings, directory)))
    assert list(elsewhere.iterdir()) == []
    return document


async def _run(client: NotebookClient, manager: AsyncKernelManager, environment: dict[str, str]) -> None:
    try:
        await client.async_execute(env=environment)
    finally:
        if client.kc is not None:  # otherwise it keeps connecting to ports that other processes use by then
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
        warned="".join(output["text"] for output in printed if output.get("name") == "stderr"),
    )


def _environment(settings: Settings, directory: Path) -> dict[str, str]:
    return {
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        **QUICK_JVM,
        "IPYTHONDIR": str(directory / "ipython"),
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
