"""What users import: five modules with stable names, and nothing else in examples and notebooks."""

from __future__ import annotations

import ast
import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakehouse.dev.scaffold import texts

ROOT = Path(__file__).parents[1]
STREAMS = """
Aggregates Calendar Contract DELETED EventClock EventTimeProgress Export Field FieldType FoldState GoldTable
Records RedisView Rule Seconds Selected Side SideTable Source Stream Tumbling WallClock Windows described
joined_calls running_totals shifted sql windowed_statistics windowed_sums
"""
MESSAGES = "Constant Equals Exact Key Message Millis MillisThen Name Payload Plain joined_key key"
SUITES = "fresh make_suite no_rows required rows unique"
SINKS = """
Audited Change Exported Findings Position Sending Settings SettingsError SinkKind SinkTroubleError Span
StoreWord Stored changes_of message_of outgoing
"""
TESTING = """
AssertKept Case Outcome PROMISES Record SameGold StoreUnderTest declared small_session
"""
PUBLIC = {
    "lakehouse.streams": STREAMS,
    "lakehouse.streams.messages": MESSAGES,
    "lakehouse.streams.suites": SUITES,
    "lakehouse.sinks": SINKS,
    "lakehouse.testing": TESTING,
}
PAGES = sorted(
    path
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
    if "```python" in path.read_text(encoding="utf-8")
)
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("module", PUBLIC)
def test_each_name_is_there(module: str) -> None:
    found = importlib.import_module(module)
    assert sorted(found.__all__) == sorted(PUBLIC[module].split())
    assert [name for name in found.__all__ if not hasattr(found, name)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_import_nothing_else(page: Path) -> None:
    blocks = re.findall(r"```python[^\n]*\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert [one for block in blocks for one in imported(block) if not is_public(*one)] == []


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_notebooks_import_nothing_else(notebook: Path) -> None:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert [one for cell in code for one in imported(cell) if not is_public(*one)] == []


def test_a_new_package_imports_nothing_else() -> None:
    templates = Path(texts.__file__).with_name("templates").iterdir()
    text = "".join(one.read_text(encoding="utf-8") for one in templates)
    modules = set(re.findall(r"^from (lakehouse[\w.]*) import", text, re.MULTILINE))
    assert modules == {"lakehouse.streams", "lakehouse.streams.suites"}


def test_the_example_packages_import_nothing_else() -> None:
    modules = [path.read_text(encoding="utf-8") for path in ROOT.glob("examples/*/*/*.py")]
    assert modules
    assert [one for text in modules for one in imported(text) if not is_public(*one)] == []


def imported(block: str) -> Iterator[tuple[str, str]]:
    """Yield the modules and names that a block imports from lakehouse."""
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.Import):
            yield from ((one.name, "") for one in node.names if one.name.split(".")[0] == "lakehouse")
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "lakehouse":
            yield from ((node.module or "", one.name) for one in node.names)


def is_public(module: str, name: str) -> bool:
    return name in PUBLIC.get(module, "").split()
