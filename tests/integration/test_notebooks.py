"""The notebooks run from a clean kernel, against a lake of every stream, and show what is in it.

What a cell shows is compared with the same figures made another way: from silver, or in Python.
"""

from __future__ import annotations

import asyncio
import base64
import html
import json
import os
import re
import shutil
import sys
from collections import Counter, defaultdict
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from pyspark.sql import SparkSession

from lakehouse.layer import LayerName
from lakehouse.loads import GENERATORS, Load, send
from lakehouse.local.services import Endpoints
from lakehouse.runner import run, utc_now
from lakehouse.settings import Settings
from lakehouse.streams import STREAMS
from lakehouse.topics import create_topics
from lakehouse.triggers import AVAILABLE_NOW
from tests import pipeline
from tests.conftest import settings_for
from tests.processes import QUICK_JVM

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
EXPLORE, DEAD = ROOT / "notebooks" / "explore_gold.ipynb", ROOT / "notebooks" / "inspect_dead_letters.ipynb"
STRIPPED = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
MALFORMED = 45  # of each stream: more than there are kinds of malformed events
EVENTS = dict.fromkeys(GENERATORS, 300) | {"metrics": 3000}  # a hundred series share these
WRITERS: tuple[LayerName, ...] = ("bronze", "silver", "gold")

HARMLESS = {
    "WARNING: Using incubator modules: jdk.incubator.vector",
    "Matplotlib is building the font cache; this may take a moment.",
}
"""What a JVM and a first plot on a machine say."""

Cell = dict[str, Any]
Notebook = dict[str, Cell]
"""The cells by their ids."""


@pytest.fixture(scope="module")
def lake(
    spark: SparkSession,
    session_settings: Settings,
    services: Endpoints,
    tmp_path_factory: pytest.TempPathFactory,
) -> Settings:
    """A lake of every stream, with calls that have closed and calls that are open."""
    settings = settings_for(session_settings, services, tmp_path_factory.mktemp("notebooks"))
    create_topics(services.kafka, {settings.topic(name): 2 for one in STREAMS for name in one.topics})
    for stream, events in EVENTS.items():
        assert send(Load(stream, events, malformed=MALFORMED / events), settings).failed == 0
    sent = utc_now()  # calls are open for minutes, which filling the lake may take
    run(spark, STREAMS, WRITERS, settings, trigger=AVAILABLE_NOW, clock=lambda: sent)
    return settings


def execute(notebook: Path, settings: Settings, directory: Path) -> Notebook:
    """Run a notebook in a kernel of its own, of this Python, somewhere else; raise what a cell raises."""
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
    asyncio.run(_run(client, manager, _environment(settings, directory)))
    assert list(elsewhere.iterdir()) == []
    return {cell["id"]: cell for cell in document["cells"]}


async def _run(client: NotebookClient, manager: AsyncKernelManager, environment: dict[str, str]) -> None:
    try:
        await client.async_execute(env=environment)
    finally:
        await manager.shutdown_kernel(now=True)


def _environment(settings: Settings, directory: Path) -> dict[str, str]:
    # A kernel that finds pytest's variable does not show what other processes print.
    kept = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    return kept | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        **QUICK_JVM,
        "IPYTHONDIR": str(directory / "ipython"),
        "LAKEHOUSE_HOME": str(directory / "home"),
        "LAKEHOUSE_LAKE": settings.lake,
        "LAKEHOUSE_KAFKA_BOOTSTRAP_SERVERS": settings.kafka_bootstrap_servers,
        "LAKEHOUSE_REDIS_URL": settings.redis_url.get_secret_value(),
        "LAKEHOUSE_TOPICS": json.dumps(settings.topics),
        "LAKEHOUSE_FUTURE_TOLERANCE_S": str(settings.future_tolerance_s),
        "LAKEHOUSE_SPARK_MASTER": "local[2]",
        "LAKEHOUSE_DRIVER_MEMORY": "1g",
    }


def rows(cell: Cell) -> list[dict[str, str]]:
    """The rows of the table that a cell shows, as its reader sees them."""
    (shown,) = (output["data"]["text/html"] for output in cell["outputs"] if "data" in output)
    head, *body = (
        [html.unescape(text) for text in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", line, re.DOTALL)]
        for line in re.findall(r"<tr.*?</tr>", shown, re.DOTALL)
    )
    return [dict(zip(head[1:], line[1:], strict=True)) for line in body]


def text(cell: Cell) -> str:
    """What a cell prints and shows as text."""
    parts = (output.get("text") or output["data"].get("text/plain", "") for output in cell["outputs"])
    return "".join(parts)


def assert_plots_are_drawn_and_nothing_warns(notebook: Notebook) -> None:
    for name, cell in notebook.items():
        outputs = cell.get("outputs", [])
        images = [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})]
        assert len(images) == cell["source"].count("plt.show()"), name
        for image in images:
            assert base64.b64decode(image).startswith(b"\x89PNG")
            assert len(image) > 10_000, f"{name} is an empty plot"
        printed = "".join(output["text"] for output in outputs if output.get("name") == "stderr")
        assert {*printed.splitlines()} - HARMLESS <= {""}, name


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_in_git_has_no_output_and_names_no_machine(path: Path) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))

    assert document["metadata"] == STRIPPED
    assert (document["nbformat"], document["nbformat_minor"]) == (4, 5)
    for cell in document["cells"]:
        assert cell["metadata"] == {}
        assert "attachments" not in cell
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None
    nbformat.validate(document)


def test_there_are_the_two_notebooks() -> None:
    assert NOTEBOOKS == [EXPLORE, DEAD]


@pytest.mark.slow
def test_gold_is_explored(spark: SparkSession, lake: Settings, tmp_path: Path) -> None:
    notebook = execute(EXPLORE, lake, tmp_path)

    assert_plots_are_drawn_and_nothing_warns(notebook)
    there = {row["table"]: int(row["rows"]) for row in rows(notebook["overview"])}
    assert there == {
        name: len(pipeline.rows_of(spark, lake, f"gold.{name}"))
        for one in STREAMS
        for name in (table.name for table in one.tables)
    }

    minute_1 = min(row["window_start"] for row in pipeline.rows_of(spark, lake, "gold.metrics_1m"))
    shown = rows(notebook["overview"])[0]["first"]
    assert shown.startswith(f"{datetime.fromtimestamp(minute_1 / 1e6, UTC):%Y-%m-%d %H:%M:00}")

    latencies: dict[str, list[float]] = defaultdict(list)
    minutes: dict[str, set[int]] = defaultdict(set)
    for row in pipeline.rows_of(spark, lake, "silver.metrics_events"):
        if row["metric_name"] == "request_latency_ms":
            latencies[row["service_id"]].append(row["value"])
            minutes[row["service_id"]].add(row["event_time"] // 60_000_000)
    first = rows(notebook["metrics"])[0]
    assert (first["metric_name"], first["unit"]) == ("request_latency_ms", "ms")
    assert int(first["windows"]) == sum(map(len, minutes.values()))
    assert int(first["events"]) == sum(map(len, latencies.values()))
    busiest = sorted(latencies, key=lambda name: (-len(latencies[name]), name))[:10]
    services = rows(notebook["services"])
    assert [(row["service_id"], int(row["events"])) for row in services] == [
        (name, len(latencies[name])) for name in busiest
    ]
    greatest = [max(latencies[name]) for name in busiest]
    assert [float(row["max"]) for row in services] == pytest.approx(greatest, abs=0.01)

    totals: dict[str, Decimal] = defaultdict(Decimal)
    for row in pipeline.rows_of(spark, lake, "silver.sales_events"):
        totals[row["product"]] += row["value"]
    top = sorted(totals, key=lambda name: (-totals[name], name))[:10]
    assert [(row["product"], row["total"]) for row in rows(notebook["products"])] == [
        (name, f"{totals[name]:.2f}") for name in top
    ]

    spent: dict[str, Decimal] = defaultdict(Decimal)
    for row in pipeline.rows_of(spark, lake, "silver.transactions"):
        spent[row["user_id"]] += row["amount"]
    spenders = sorted(spent, key=lambda name: (-spent[name], name))[:10]
    assert [(row["user_id"], row["total"]) for row in rows(notebook["users"])] == [
        (name, f"{spent[name]:.2f}") for name in spenders
    ]

    sides: dict[str, Counter[str]] = defaultdict(Counter)
    for row in pipeline.rows_of(spark, lake, "gold.call_records"):
        heard = [side for side in ("analytics", "metrics") if row[f"{side}_events"]]
        for status in (row["status"], "all"):
            sides[status]["both_sides" if len(heard) == 2 else f"{heard[0]}_only"] += 1
    assert sorted(sides) == ["all", "closed", "open"]
    assert {
        row["status"]: {name: int(row[name]) for name in sides["all"]} for row in rows(notebook["calls"])
    } == {status: {name: counted[name] for name in sides["all"]} for status, counted in sides.items()}


@pytest.mark.slow
def test_dead_letters_are_inspected_and_after_a_setting_has_changed_let_in_once(
    spark: SparkSession, lake: Settings, tmp_path: Path
) -> None:
    shutil.copytree(lake.lake, tmp_path / "lake")
    settings = lake.model_copy(update={"lake": str(tmp_path / "lake"), "future_tolerance_s": 10 * 24 * 3600})
    before = states(spark, settings)
    rules = [
        (letter["stream"], rule)
        for letter in pipeline.rows_of(spark, settings, pipeline.DEAD_LETTERS)
        for rule in {reason["rule"] for reason in letter["reasons"]}
    ]
    future = Counter(stream for stream, rule in rules if rule == "future")
    assert set(future) == set(GENERATORS)

    notebook = execute(DEAD, settings, tmp_path)

    assert_plots_are_drawn_and_nothing_warns(notebook)
    shown = {(row["stream"], row["rule"]): int(row["letters"]) for row in rows(notebook["rules"])}
    assert shown == Counter(rules)
    all_open = dict.fromkeys(GENERATORS, (str(MALFORMED), str(MALFORMED)))
    assert {row["stream"]: (row["letters"], row["open"]) for row in rows(notebook["status"])} == all_open
    waiting = {row["stream"]: row["under 1 hour"] for row in rows(notebook["age"])}
    assert waiting == dict.fromkeys(GENERATORS, str(MALFORMED))
    examples = text(notebook["examples"])
    assert all(rule in examples for _, rule in rules)

    assert f"{future.total()} passed and are in silver now" in text(notebook["replay-first"])
    assert "0 still fail" in text(notebook["replay-first"])
    assert "0 passed and are in silver now" in text(notebook["replay-second"])
    after = {row["stream"]: (row["status"], row["letters"]) for row in rows(notebook["after"])}
    assert after == {name: ("replayed", str(number)) for name, number in future.items()}
    assert states(spark, settings) == {
        name: state + Counter(silver=future[name], replayed=future[name]) - Counter(open=future[name])
        for name, state in before.items()
    }


def states(spark: SparkSession, settings: Settings) -> dict[str, Counter[str]]:
    """How many records of each stream are where."""
    found: dict[str, Counter[str]] = {stream.name: Counter() for stream in STREAMS}
    for stream in STREAMS:
        for source in stream.sources:
            for layer in ("bronze", "silver"):
                records = pipeline.rows_of(spark, settings, f"{layer}.{source.table}")
                assert len({*map(pipeline.coordinates_of, records)}) == len(records)
                found[stream.name][layer] += len(records)
    for letter in pipeline.rows_of(spark, settings, pipeline.DEAD_LETTERS):
        found[letter["stream"]][letter["status"]] += 1
    for state in found.values():
        assert (
            state["bronze"]
            == state["silver"] + state.total() - state["bronze"] - state["silver"] - state["replayed"]
        )
    return found


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_without_a_lake_one_message_says_what_to_do(
    session_settings: Settings, path: Path, tmp_path: Path
) -> None:
    nowhere = session_settings.model_copy(update={"lake": str(tmp_path / "nowhere")})

    with pytest.raises(CellExecutionError, match="make demo") as caught:
        execute(path, nowhere, tmp_path)

    assert caught.value.ename == "TableError"
    assert f"the lake {tmp_path}/nowhere has no" in caught.value.evalue
