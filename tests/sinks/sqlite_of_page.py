"""The sink in docs/sinks.md, installed as a package would be."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module, invalidate_caches
from pathlib import Path
from typing import Any

import pytest

from lakehouse.sinks import registry

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
    info = directory / "sqlite_sink-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sqlite-sink\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{registry.GROUP}]\nsqlite = {MODULE}:KIND\n")
    patch.syspath_prepend(str(directory))
    invalidate_caches()
    registry._offered.cache_clear()
    try:
        yield import_module(MODULE)
    finally:
        sys.modules.pop(MODULE, None)
        registry._offered.cache_clear()
