"""The version of lakehouse; its distribution has another name than the package."""

from __future__ import annotations

from functools import cache
from importlib import metadata

DISTRIBUTION = "medallion-lakehouse"


@cache
def code_version() -> str:
    """Return the installed version, or "unknown" if the code was not installed.

    In a checkout it is the version at the last `make setup`: 0.1.dev7+gabc1234 is seven commits after a tag.
    """
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "unknown"
