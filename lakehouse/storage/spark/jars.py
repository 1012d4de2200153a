"""The runtime jars that `lakehouse setup` installs into the virtual environment; ivy.xml lists them."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal

from lakehouse.common.errors import ServiceError

Configuration = Literal["spark", "kafka", "s3", "disk"]
CONFIGURATIONS: tuple[Configuration, ...] = ("spark", "kafka", "s3")
"""The names of all configurations in ivy.xml."""
COMPILED: tuple[Configuration, ...] = ("disk", "s3")
"""The configurations with a jar that is compiled from the sources in lakehouse/storage/spark/scala."""


@dataclass(frozen=True)
class LockedJar:
    """A line of jars.sha256: path below the jars' directory, Maven coordinates, SHA-256 and size in bytes.

    The coordinates are group, name and revision.
    """

    path: str
    coordinates: tuple[str, str, str]
    sha256: str
    size: int

    @property
    def configuration(self) -> str:
        """The configuration in ivy.xml to which the jar belongs."""
        return self.path.partition("/")[0]

    def __str__(self) -> str:
        return f"{self.sha256}  ./{self.path}  {':'.join(self.coordinates)}  {self.size}"


def share_directory() -> Path:
    """Return the directory in the virtual environment for files that pip cannot install."""
    return Path(sys.prefix) / "share" / "lakehouse"


def jars_directory() -> Path:
    """Return the jars' directory. Each configuration has a subdirectory, which can be empty or missing."""
    return share_directory() / "jars"


def class_archive() -> Path:
    """Return the path of the archive of Spark's classes that `lakehouse.dev.class_archive` creates."""
    return share_directory() / "classes.jsa"


def require_jars(configuration: Configuration) -> list[Path]:
    """Return a configuration's jars in sorted order, followed by its compiled jar, if any.

    Raises ServiceError if a jar is missing. Only the jars' names are checked, because this function runs at
    every start; `lakehouse setup` checks the contents once.
    """
    expected = _expected(configuration)
    missing = [path for path in expected if not path.is_file()]
    if missing:
        command = "lakehouse setup --s3" if configuration == "s3" else "lakehouse setup"
        raise ServiceError(
            f"{len(missing)} of {len(expected)} {configuration} jars are missing from "
            f"{jars_directory() / configuration}, such as {missing[0].name}; run `{command}`"
        )
    return expected


def installed_jars(configuration: Configuration) -> list[Path]:
    """Return the same jars as `require_jars`, or an empty list if any jar is missing."""
    expected = _expected(configuration)
    return expected if all(path.is_file() for path in expected) else []


def compiled_jar(configuration: Configuration) -> Path:
    """Return the path of the jar that `lakehouse setup` compiles for a configuration in COMPILED."""
    digest = hashlib.sha256("".join(sources(configuration).values()).encode()).hexdigest()
    return jars_directory() / configuration / f"lakehouse-{configuration}-{digest[:8]}.jar"


def sources(configuration: Configuration) -> dict[str, str]:
    """Return the Scala sources and other files that form a COMPILED configuration's jar, keyed by name."""
    files = resources.files("lakehouse.storage.spark").joinpath("scala", configuration).iterdir()
    return dict(sorted((file.name, file.read_text("utf-8")) for file in files))


def _expected(configuration: Configuration) -> list[Path]:
    listed = [jars_directory() / name for name in checksums([configuration])]
    return [*listed, compiled_jar(configuration)] if configuration in COMPILED else listed


def locked_jars(configurations: Sequence[Configuration] = CONFIGURATIONS) -> list[LockedJar]:
    """Return the jars that jars.sha256 lists for these configurations, sorted by path."""
    lock = resources.files("lakehouse.storage.spark").joinpath("jars.sha256").read_text(encoding="utf-8")
    found = []
    for sha256, path, coordinates, size in (line.split() for line in lock.split("\n") if line):
        group, name, revision = coordinates.split(":")
        found.append(LockedJar(path.removeprefix("./"), (group, name, revision), sha256, int(size)))
    return sorted((jar for jar in found if jar.configuration in configurations), key=lambda jar: jar.path)


def checksums(configurations: Sequence[Configuration] = CONFIGURATIONS) -> dict[str, str]:
    """Return the SHA-256 of each jar in jars.sha256, keyed and sorted by the jar's path."""
    return {jar.path: jar.sha256 for jar in locked_jars(configurations)}
