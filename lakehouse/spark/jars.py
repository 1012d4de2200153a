"""The runtime jars that `make setup` puts into the virtual environment (see ivy.xml beside this file)."""

from __future__ import annotations

import sys
from importlib import resources
from pathlib import Path
from typing import Literal

from lakehouse.errors import ServiceError

Configuration = Literal["spark", "kafka"]


def jars_directory() -> Path:
    """Return the jars' directory: it has one directory per configuration of ivy.xml, filled or not."""
    return Path(sys.prefix) / "share" / "lakehouse" / "jars"


def class_archive() -> Path:
    """Return the path of the archive of Spark's classes that `make setup` makes (`sandbox.class_archive`)."""
    return jars_directory().parent / "classes.jsa"


def require_jars(configuration: Configuration) -> list[Path]:
    """Return every jar of a configuration, sorted.

    Raises ServiceError if a jar that jars.sha256 lists is missing. `make setup` compares the contents once;
    only names are checked here, because this runs at every start.
    """
    expected = [jars_directory() / name for name in _locked_names() if name.startswith(f"{configuration}/")]
    missing = [path for path in expected if not path.is_file()]
    if missing:
        raise ServiceError(
            f"{len(missing)} of {len(expected)} {configuration} jars are missing from "
            f"{jars_directory() / configuration}, {missing[0].name} first; run `make setup`"
        )
    return expected


def _locked_names() -> list[str]:
    lock = resources.files("lakehouse.spark").joinpath("jars.sha256").read_text(encoding="utf-8")
    return sorted(line.split(maxsplit=1)[1].removeprefix("./") for line in lock.splitlines() if line)
