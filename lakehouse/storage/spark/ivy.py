"""Run the Ivy that pyspark ships: resolve ivy.xml to create jars.sha256, and fetch the jars listed there.

A fetch requests only jars, not POMs or checksums, because jars.sha256 contains each jar's coordinates and
SHA-256. With an empty cache, a fetch takes 6 s instead of 48 s.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from xml.etree import ElementTree

import pyspark

from lakehouse.common.errors import ServiceError
from lakehouse.storage.spark import java
from lakehouse.storage.spark.jars import (
    CONFIGURATIONS,
    Configuration,
    LockedJar,
    locked_jars,
    share_directory,
)

_SETTINGS = """\
<ivysettings>
  <settings defaultResolver="locked"/>
  <property name="ivy.checksums" value=""/>
  <resolvers><ibiblio name="locked" m2compatible="true" usepoms="false" checksums=""/></resolvers>
</ivysettings>
"""
_RETRIEVED = "[conf]/[artifact]-[revision].[ext]"
_FETCHED = "[SUCCESSFUL ]"
_WRONG = ("FAILED", "ERROR", "not found")
_PARTS_SAID = 4
_MB = 1_000_000
_FEW_LINES = 12


@contextmanager
def fetched(say: Callable[[str], object], configurations: Sequence[Configuration]) -> Iterator[Path]:
    """Yield a temporary directory that contains these configurations' jars. `say` is called with progress.

    Raises ServiceError if the repository cannot be reached or lacks a jar.
    """
    wanted = locked_jars(configurations)
    told = _Telling(say, wanted)
    with _directory() as work:
        (work / "settings.xml").write_text(_SETTINGS, encoding="utf-8")
        (work / "ivy.xml").write_text(_module(wanted), encoding="utf-8")
        # Use a separate cache, because a module that was resolved from its POM has a different cache entry.
        cached = cache() / "locked"
        settings = ("-settings", str(work / "settings.xml"))
        _run([*settings, "-ivy", str(work / "ivy.xml")], cached, configurations, work / "jars", told.hear)
        yield work / "jars"


@contextmanager
def resolved() -> Iterator[tuple[Path, list[LockedJar]]]:
    """Resolve ivy.xml, and yield a temporary directory with all its jars, and Ivy's list of these jars."""
    module = resources.files("lakehouse.storage.spark").joinpath("ivy.xml")
    with _directory() as work, resources.as_file(module) as path:
        _run(["-ivy", str(path)], cache(), CONFIGURATIONS, work / "jars", lambda _line: None)
        yield work / "jars", _reported()


def cache() -> Path:
    """Return Ivy's cache directory, which is in LAKEHOUSE_CACHE or else in the user's cache directory."""
    named, caches = os.environ.get("LAKEHOUSE_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if named or caches:
        return Path(named or f"{caches}/lakehouse") / "ivy"
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - returns "~" for a user without a home
    return (home / ".cache" / "lakehouse" if os.access(home, os.W_OK) else share_directory()) / "ivy"


class _Telling:
    """Reports the remaining megabytes after each quarter of the download. Cached jars are not counted."""

    def __init__(self, say: Callable[[str], object], wanted: Sequence[LockedJar]) -> None:
        self._say, self._sizes = say, {jar.coordinates: jar.size for jar in wanted}
        self._total = self._left = sum(self._sizes.values())
        self._jars, self._parts = 0, 0

    def hear(self, line: str) -> None:
        """Process one line of Ivy's output."""
        if _FETCHED not in line:
            return
        group, _, rest = line.split(_FETCHED)[1].strip().partition("#")
        name, _, revision = rest.partition("!")[0].partition(";")
        self._jars += 1
        self._left -= self._sizes.get((group, name, revision), 0)
        parts = _PARTS_SAID * (self._total - self._left) // self._total
        if parts > self._parts:
            self._parts = parts
            self._say(f"  {self._jars} of {len(self._sizes)} jars, {self._left / _MB:.0f} MB left")


@contextmanager
def _directory() -> Iterator[Path]:
    share_directory().mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="jars-", dir=share_directory()))
    try:
        yield work
    finally:
        shutil.rmtree(work)


def _module(wanted: Sequence[LockedJar]) -> str:
    """Return the XML of an Ivy module that depends on exactly these jars."""
    module = ElementTree.Element("ivy-module", version="2.0")
    ElementTree.SubElement(module, "info", organisation="lakehouse", module="locked-jars")
    configurations = ElementTree.SubElement(module, "configurations")
    for name in sorted({jar.configuration for jar in wanted}):
        ElementTree.SubElement(configurations, "conf", name=name)
    dependencies = ElementTree.SubElement(module, "dependencies")
    for jar in wanted:
        group, name, revision = jar.coordinates
        named = {"org": group, "name": name, "rev": revision, "conf": f"{jar.configuration}->default"}
        ElementTree.SubElement(dependencies, "dependency", named, transitive="false")
    return ElementTree.tostring(module, encoding="unicode")


def _run(
    what: Sequence[str],
    cached: Path,
    configurations: Sequence[Configuration],
    target: Path,
    hear: Callable[[str], None],
) -> None:
    cached.mkdir(parents=True, exist_ok=True)
    (ivy,) = (Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar")
    command = [java.find(), "-jar", str(ivy), *what, "-cache", str(cached), "-confs", *configurations]
    lines = list[str]()
    with subprocess.Popen(
        [*command, "-retrieve", f"{target}/{_RETRIEVED}"],
        env=os.environ | java.ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        for line in process.stdout or ():
            lines.append(line.rstrip("\n"))
            hear(line)
    if process.returncode:
        told = "\n".join([line for line in lines if any(one in line for one in _WRONG)][:_FEW_LINES])
        raise ServiceError(
            "the runtime jars could not be fetched; is the Maven repository reachable? Once it is, run this "
            f"again.\n{told}"
        )


def _reported() -> list[LockedJar]:
    """Return the jars in Ivy's reports. Their checksums and sizes are not filled in."""
    found = []
    for configuration in CONFIGURATIONS:
        report = cache() / f"lakehouse-runtime-jars-{configuration}.xml"
        for module in ElementTree.parse(report).iter("module"):  # noqa: S314 - Ivy's own file
            for revision in module.iter("revision"):
                for artifact in revision.iter("artifact"):
                    named = f"{configuration}/{artifact.attrib['name']}-{revision.attrib['name']}.jar"
                    coordinates = (
                        module.attrib["organisation"],
                        module.attrib["name"],
                        revision.attrib["name"],
                    )
                    found.append(LockedJar(named, coordinates, "", 0))
    return found
