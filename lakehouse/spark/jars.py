"""The runtime jars that `lakehouse setup` puts into the virtual environment; ivy.xml names them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Literal

from lakehouse.errors import ServiceError

Configuration = Literal["spark", "kafka"]
CONFIGURATIONS: tuple[Configuration, ...] = ("spark", "kafka")


def share_directory() -> Path:
    """Return the directory for what pip cannot install, in the environment that this Python belongs to."""
    return Path(sys.prefix) / "share" / "lakehouse"


def jars_directory() -> Path:
    """Return the jars' directory: it has one directory per configuration of ivy.xml, filled or not."""
    return share_directory() / "jars"


def class_archive() -> Path:
    """Return the path of the archive of Spark's classes that `make setup` makes (`sandbox.class_archive`)."""
    return share_directory() / "classes.jsa"


def require_jars(configuration: Configuration) -> list[Path]:
    """Return every jar of a configuration, sorted.

    Raises ServiceError if a jar that jars.sha256 lists is missing. `lakehouse setup` compares the contents
    once; only names are checked here, because this runs at every start.
    """
    expected = [jars_directory() / name for name in checksums([configuration])]
    missing = [path for path in expected if not path.is_file()]
    if missing:
        raise ServiceError(
            f"{len(missing)} of {len(expected)} {configuration} jars are missing from "
            f"{jars_directory() / configuration}, {missing[0].name} first; run `lakehouse setup`"
        )
    return expected


def checksums(configurations: Sequence[Configuration] = CONFIGURATIONS) -> dict[str, str]:
    """Return the SHA-256 that jars.sha256 has of each jar, by its path in the jars' directory, sorted."""
    lock = resources.files("lakehouse.spark").joinpath("jars.sha256").read_text(encoding="utf-8")
    found = (line.split() for line in lock.split("\n") if line)
    named = sorted((name.removeprefix("./"), digest) for digest, name, _group in found)
    return {name: digest for name, digest in named if name.partition("/")[0] in configurations}
