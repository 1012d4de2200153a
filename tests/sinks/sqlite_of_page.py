"""The sink in docs/sinks.md, installed as a package would be."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from lakehouse.sinks import registry
from tests.support.packages import offer, with_sinks

PAGE = Path(__file__).parents[2] / "docs" / "sinks.md"
MODULE = "sqlite_sink"


def source() -> str:
    """Return the page's code block."""
    (text,) = re.findall(r"^```python sink\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    return str(text)


@contextmanager
def installed(directory: Path, text: str, patch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield the module of a package with this sink, which is installed during the block."""
    (directory / f"{MODULE}.py").write_text(text, encoding="utf-8")
    offer(directory, "sqlite-sink", registry.GROUP, f"sqlite = {MODULE}:KIND")
    with with_sinks(directory, MODULE, patch):
        yield import_module(MODULE)
