"""Packages that offer objects through entry points, as pip would have installed them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import invalidate_caches
from pathlib import Path

import pytest

from lakehouse.sinks import registry


def offer(directory: Path, package: str, group: str, entry: str) -> None:
    """Write the metadata of a package, version 1.0, with one entry point."""
    info = directory / f"{package.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{entry}\n")


@contextmanager
def with_sinks(directory: Path, module: str, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Offer the sinks in a directory to this process during the block, and unload them afterwards."""
    patch.syspath_prepend(str(directory))
    invalidate_caches()
    registry._offered.cache_clear()
    try:
        yield
    finally:
        for name in [one for one in sys.modules if one.partition(".")[0] == module]:
            del sys.modules[name]
        registry._offered.cache_clear()
