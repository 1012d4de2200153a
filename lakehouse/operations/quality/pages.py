"""The directories in which `lakehouse expect` keeps its context, and its pages (Data Docs)."""

from __future__ import annotations

from pathlib import Path


def context_directory(home: Path) -> Path:
    """Return the directory of the Great Expectations context in `home`."""
    return home / "expectations"


def site(home: Path) -> Path:
    """Return the directory of the pages, with index.html. It is missing until the first check."""
    return context_directory(home) / "gx" / "uncommitted" / "data_docs" / "local_site"
