"""The notebooks run against a lake of all streams, and show what is in it.

Each cell's output is compared with the same figures computed another way: from silver, or in Python.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
from collections import Counter, defaultdict
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError
from pyspark.sql import SparkSession

from lakehouse.dev.samples.loads import GENERATORS
from lakehouse.settings import Settings
from tests.support import pipeline
from tests.support.journey import MALFORMED
from tests.support.notebooks import HARMLESS, STRIPPED, Notebook, execute, rows
from tests.support.processes import ROOT
from tests.support.streams import STREAMS

pytestmark = pytest.mark.soak

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
EXPLORE, DEAD = ROOT / "notebooks" / "explore_gold.ipynb", ROOT / "notebooks" / "inspect_dead_letters.ipynb"


@pytest.fixture
def lake(spark: SparkSession, filled_lake: Settings, tmp_path: Path) -> Settings:
    """Return a copy of the lake of all streams in which a few calls are open again."""
    shutil.copytree(filled_lake.lake, tmp_path / "lake")
    settings = filled_lake.changed({"lake": str(tmp_path / "lake")})
    first = min(row["user1"] for row in pipeline.rows_of(settings, "gold.call_records"))
    calls = pipeline.path_of(settings, "gold.call_records")
    spark.sql(f"UPDATE delta.`{calls}` SET status = 'open', closed_at = NULL WHERE user1 = '{first}'")
    return settings


def assert_plots_are_drawn_and_nothing_warns(notebook: Notebook) -> None:
    for name, cell in notebook.items():
        assert len(cell.images) == cell.source.count("plt.show()"), name
        for image in cell.images:
            assert image.startswith(b"\x89PNG")
            assert len(image) > 10_000, f"{name} is an empty plot"
        assert {*cell.warned.splitlines()} - HARMLESS <= {""}, name


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_in_git_has_its_tables_and_plots_and_names_no_machine(path: Path) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))

    assert document["metadata"] == STRIPPED
    assert (document["nbformat"], document["nbformat_minor"]) == (4, 5)
    for cell in document["cells"]:
        assert cell["metadata"] == {}
        assert "attachments" not in cell
        if cell["cell_type"] == "code":
            assert all("data" in output for output in cell["outputs"])
            assert cell["execution_count"] is None
            plots = [output for output in cell["outputs"] if "image/png" in output["data"]]
            assert len(plots) == "".join(cell["source"]).count("plt.show()")
    shown = [cell for cell in document["cells"] if cell.get("outputs")]
    assert len(shown) >= 10
    told = "".join(
        "".join(text)
        for cell in shown
        for output in cell["outputs"]
        for kind, text in output["data"].items()
        if kind.startswith("text/")
    )
    assert re.search(rf"/(tmp|home|root|work)\b|\b{re.escape(socket.gethostname())}\b", told) is None
    assert path.stat().st_size < 700_000
    nbformat.validate(document)


def test_there_are_the_two_notebooks() -> None:
    assert NOTEBOOKS == [EXPLORE, DEAD]


@pytest.mark.slow
def test_gold_is_explored(lake: Settings, tmp_path: Path) -> None:
    notebook = execute(EXPLORE, lake, tmp_path)

    assert_plots_are_drawn_and_nothing_warns(notebook)
    there = {row["table"]: int(row["rows"]) for row in rows(notebook["overview"])}
    assert there == {
        name: len(pipeline.rows_of(lake, f"gold.{name}"))
        for one in STREAMS
        for name in (table.name for table in one.tables)
    }

    minute_1 = min(row["window_start"] for row in pipeline.rows_of(lake, "gold.metrics_1m"))
    shown = rows(notebook["overview"])[0]["first"]
    assert shown.startswith(f"{datetime.fromtimestamp(minute_1 / 1e6, UTC):%Y-%m-%d %H:%M:00}")

    latencies: dict[str, list[float]] = defaultdict(list)
    minutes: dict[str, set[int]] = defaultdict(set)
    for row in pipeline.rows_of(lake, "silver.metrics_events"):
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
    sales = pipeline.rows_of(lake, "silver.sales_events")
    for row in sorted(sales, key=lambda row: (row["partition"], row["offset"])):
        if row["value"] is None:  # a tombstone: the product starts over
            totals.pop(row["product"], None)
        else:
            totals[row["product"]] += row["value"]
    top = sorted(totals, key=lambda name: (-totals[name], name))[:10]
    assert [(row["product"], row["total"]) for row in rows(notebook["products"])] == [
        (name, f"{totals[name]:.2f}") for name in top
    ]

    spent: dict[str, Decimal] = defaultdict(Decimal)
    for row in pipeline.rows_of(lake, "silver.transactions"):
        spent[row["user_id"]] += row["amount"]
    spenders = sorted(spent, key=lambda name: (-spent[name], name))[:10]
    assert [(row["user_id"], row["total"]) for row in rows(notebook["users"])] == [
        (name, f"{spent[name]:.2f}") for name in spenders
    ]

    sides: dict[str, Counter[str]] = defaultdict(Counter)
    for row in pipeline.rows_of(lake, "gold.call_records"):
        heard = [side for side in ("analytics", "metrics") if row[f"{side}_events"]]
        for status in (row["status"], "all"):
            sides[status]["both_sides" if len(heard) == 2 else f"{heard[0]}_only"] += 1
    assert sorted(sides) == ["all", "closed", "open"]
    assert {
        row["status"]: {name: int(row[name]) for name in sides["all"]} for row in rows(notebook["calls"])
    } == {status: {name: counted[name] for name in sides["all"]} for status, counted in sides.items()}


@pytest.mark.slow
def test_dead_letters_are_inspected_and_after_a_setting_has_changed_let_in_once(
    lake: Settings, tmp_path: Path
) -> None:
    settings = lake.changed({"stream_defaults.future_tolerance_s": 10 * 24 * 3600})
    before = states(settings)
    rules = [
        (letter["stream"], rule)
        for letter in pipeline.rows_of(settings, pipeline.DEAD_LETTERS)
        for rule in {reason["rule"] for reason in letter["reasons"]}
    ]
    future = Counter(stream for stream, rule in rules if rule == "future")
    assert set(future) == set(GENERATORS)

    notebook = execute(DEAD, settings, tmp_path)

    assert_plots_are_drawn_and_nothing_warns(notebook)
    shown = {(row["stream"], row["rule"]): int(row["letters"]) for row in rows(notebook["rules"])}
    assert shown == Counter(rules)
    all_open = dict.fromkeys(GENERATORS, (str(2 * MALFORMED), str(2 * MALFORMED)))
    assert {row["stream"]: (row["letters"], row["open"]) for row in rows(notebook["status"])} == all_open
    waiting = {row["stream"]: row["under 1 hour"] for row in rows(notebook["age"])}
    assert waiting == dict.fromkeys(GENERATORS, str(2 * MALFORMED))
    assert [row["rule"] for row in rows(notebook["examples"])] == sorted({rule for _, rule in rules})

    (first,), (second,) = rows(notebook["replay-first"]), rows(notebook["replay-second"])
    assert (first["passed"], first["failed"], second["passed"]) == (str(future.total()), "0", "0")
    after = {row["stream"]: (row["status"], row["letters"]) for row in rows(notebook["after"])}
    assert after == {name: ("replayed", str(number)) for name, number in future.items()}
    assert states(settings) == {
        name: state + Counter(silver=future[name], replayed=future[name]) - Counter(open=future[name])
        for name, state in before.items()
    }


def states(settings: Settings) -> dict[str, Counter[str]]:
    """Return how many records each stream has in each layer, and how many letters in each status."""
    found: dict[str, Counter[str]] = {stream.name: Counter() for stream in STREAMS}
    for stream in STREAMS:
        for source in stream.sources:
            for layer in ("bronze", "silver"):
                records = pipeline.rows_of(settings, f"{layer}.{source.table}")
                assert len({*map(pipeline.coordinates_of, records)}) == len(records)
                found[stream.name][layer] += len(records)
    for letter in pipeline.rows_of(settings, pipeline.DEAD_LETTERS):
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
    nowhere = session_settings.changed({"lake": str(tmp_path / "nowhere")})

    with pytest.raises(CellExecutionError) as caught:
        execute(path, nowhere, tmp_path)

    assert caught.value.ename == "FileNotFoundError"
    assert caught.value.evalue.startswith(f"the lake {tmp_path}/nowhere has no")
    assert "make demo" in caught.value.evalue
