"""Which version of lakehouse this is; the distribution that pip knows has another name than the package."""

from __future__ import annotations

from functools import cache
from importlib import metadata

DISTRIBUTION = "medallion-lakehouse"


@cache
def code_version() -> str:
    """Return the installed version, "unknown" for code that was not installed.

    In a checkout it is that of the last `make setup`: 0.1.dev7+gabc1234 is seven commits after a tag.
    """
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "unknown"
