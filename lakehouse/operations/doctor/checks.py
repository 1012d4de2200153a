"""`lakehouse doctor`: check that the machine, the settings and the services are ready for a run.

Each check is a function that yields findings. To test that the lake is writable and the clocks agree, an
empty file is written and deleted. No JVM is started.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from lakehouse.common.errors import LakehouseError, first_line
from lakehouse.common.extras import BRINGS
from lakehouse.common.paths import is_local, location
from lakehouse.operations.catalog.spark_sql import specs
from lakehouse.operations.doctor.rights import rights_of_pipeline
from lakehouse.settings import Settings
from lakehouse.sinks import registry
from lakehouse.sinks.port import SinkKind
from lakehouse.storage.files import files_of
from lakehouse.storage.kafka.probe import require_broker
from lakehouse.storage.kafka.rights import look_up
from lakehouse.storage.spark import java
from lakehouse.storage.spark.installing import damaged_jars
from lakehouse.storage.spark.jars import Configuration, compiled_jar
from lakehouse.storage.tables import direct
from lakehouse.storage.tables.making import FORMAT
from lakehouse.storage.tables.versions import TESTED
from lakehouse.streams.definition import Stream

State = Literal["ok", "warn", "fail"]

_JAVA_LEAST, _JAVA_TESTED = 17, (17, 21, 25)
_PYTHON_LEAST, _PYTHON_TESTED = (3, 11), ((3, 11), (3, 12), (3, 13))
_PACKAGES = {"PySpark": "pyspark", "Delta": "delta-spark", "deltalake": "deltalake"}
_SCARCE_BYTES, _LOW_BYTES = 256 << 20, 2 << 30
_FILES = 4_096
_CLOCK_S = 5.0
_BROKER_S = 5.0


@dataclass(frozen=True)
class Finding:
    """The result of one check. `todo` is the remedy, or an empty string if none is needed."""

    check: str
    state: State
    found: str
    todo: str = ""

    def as_json(self) -> dict[str, str | None]:
        """Return the finding as a JSON-serializable dictionary. `todo` is None if no remedy is needed."""
        return {"check": self.check, "state": self.state, "found": self.found, "todo": self.todo or None}


def examine(read: Callable[[], tuple[Settings, Sequence[Stream]]]) -> Iterator[Finding]:
    """Yield all findings, starting with the machine's. Stop if the settings cannot be read."""
    yield from _python()
    yield from _java()
    yield from _packages()
    yield from _open_files()
    try:
        settings, streams = read()
    except LakehouseError as error:
        yield Finding("settings", "fail", first_line(error), "correct the setting (docs/settings.md)")
        return
    yield Finding("settings", "ok", f"{len(streams)} streams: {', '.join(one.name for one in streams)}")
    yield from _jars(settings)
    yield from _kafka(settings, streams)
    for kind in registry.needed_by(streams, settings):
        yield from _store(kind, settings, streams)
    yield from _lake(settings, streams)
    yield from _disks(settings)


def _python() -> Iterator[Finding]:
    here = sys.version_info[:2]
    text = f"{sys.version.split()[0]} ({sys.executable})"
    if here < _PYTHON_LEAST:
        yield Finding("Python", "fail", text, "install Python 3.11 or newer")
    elif here not in _PYTHON_TESTED:
        yield Finding("Python", "warn", f"{text}, which is untested", "use 3.11, the most tested version")
    else:
        yield Finding("Python", "ok", text)


def _java() -> Iterator[Finding]:
    advice = f"install Java {_JAVA_LEAST} (Debian: openjdk-17-jre-headless), or set JAVA_HOME to it"
    try:
        found = java.find()
    except LakehouseError as error:
        yield Finding("Java", "fail", first_line(error), advice)
        return
    number = java.version()
    if number is None:
        yield Finding("Java", "fail", f"{found} -version printed no version", advice)
        return
    text, major = f"{number} ({found})", int(re.split(r"\D", number)[0])
    if major < _JAVA_LEAST:
        yield Finding("Java", "fail", text, advice)
    elif major not in _JAVA_TESTED:
        yield Finding(
            "Java", "warn", f"{text}, which is untested", f"use Java {_JAVA_LEAST}, the most tested version"
        )
    else:
        yield Finding("Java", "ok", text)


def _packages() -> Iterator[Finding]:
    for name, package in _PACKAGES.items():
        try:
            found = version(package)
        except PackageNotFoundError:
            yield Finding(name, "fail", "not installed", f"pip install {package}=={TESTED[name]}")
            continue
        if found == TESTED[name]:
            yield Finding(name, "ok", found)
        else:
            todo = f"pip install {package}=={TESTED[name]}, the version that lakehouse is tested with"
            yield Finding(name, "warn", found, todo)
    there = [extra for extra, modules in BRINGS.items() if all(map(find_spec, modules))]
    absent = sorted(BRINGS.keys() - set(there))
    text = f"installed: {', '.join(there) or 'none'}; not installed: {', '.join(absent) or 'none'}"
    yield Finding("extras", "ok", text)


def _open_files() -> Iterator[Finding]:
    try:
        java.require_files()
    except LakehouseError as error:
        yield Finding("open files", "fail", first_line(error), "raise the limit: ulimit -Hn 65536")
        return
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < _FILES:
        yield Finding(
            "open files", "warn", f"at most {most:,}", f"raise it to {_FILES:,} or more: ulimit -Hn 65536"
        )
    else:
        yield Finding("open files", "ok", "unlimited" if most == resource.RLIM_INFINITY else f"{most:,}")


def _jars(settings: Settings) -> Iterator[Finding]:
    wanted: list[Configuration] = ["spark", "kafka"]
    if not is_local(settings.lake):
        wanted.append("s3")
    for name in wanted:
        todo = "lakehouse setup --s3" if name == "s3" else "lakehouse setup"
        wrong = damaged_jars([name])
        is_needed = name != "kafka"  # needed only by local services
        if wrong:
            found = f"{len(wrong)} are missing or differ from the lock file, such as {wrong[0]}"
            yield Finding(f"jars of {name}", "fail" if is_needed else "warn", found, f"run `{todo}`")
        else:
            yield Finding(f"jars of {name}", "ok", "all match the lock file")
    compiled = compiled_jar("disk" if is_local(settings.lake) else "s3")
    if not compiled.is_file():
        yield Finding("compiled jar", "fail", f"{compiled.name} is missing", "run `lakehouse setup`")


def _kafka(settings: Settings, streams: Sequence[Stream]) -> Iterator[Finding]:
    try:
        require_broker(settings.kafka.access, _BROKER_S)
        held = look_up(settings.kafka.access, rights_of_pipeline(streams, settings))
    except LakehouseError as error:
        todo = (
            "start it (`lakehouse services up` on a laptop), or correct the settings kafka.… (docs/kafka.md)"
        )
        yield Finding("Kafka", "fail", first_line(error), todo)
        return
    yield Finding("Kafka", "ok", f"{settings.kafka.access} accepts {settings.kafka.access.principal}")
    if held.absent_topics:
        found = f"do not exist yet: {', '.join(held.absent_topics)}"
        yield Finding("Kafka topics", "warn", found, "the first run creates them, if it has the Create right")
    for right in held.missing:
        principal = settings.kafka.access.principal
        what = f"{principal} may not {right.operation} {right.kind} {right.name}: {right.why}"
        todo = f"kafka-acls.sh {right.as_command(settings.kafka.access.principal.removeprefix('User:'))}"
        yield Finding("Kafka rights", "fail" if right.is_required else "warn", what, todo)
    if not held.missing:
        yield Finding("Kafka rights", "ok", "all rights that `lakehouse doctor --rights pipeline` lists")


def _store(kind: SinkKind, settings: Settings, streams: Sequence[Stream]) -> Iterator[Finding]:
    todo = "see docs/outputs.md for its requirements"
    try:
        kind.require(settings)
    except LakehouseError as error:
        yield Finding(kind.label, "fail", first_line(error), todo)
        return
    tables = [table for one in streams for table in one.tables if kind in registry.used_by(table, settings)]
    refused = 0
    for table in tables:
        try:
            kind.try_row(table, settings)
        except LakehouseError as error:
            refused += 1
            yield Finding(f"{kind.label}: gold.{table.name}", "fail", first_line(error), todo)
    doubtful = kind.doubts(settings)
    for doubt in doubtful:
        yield Finding(kind.label, "warn", doubt, todo)
    if not refused and not doubtful:
        yield Finding(kind.label, "ok", f"answers, and accepts the rows of {len(tables)} tables")


def _lake(settings: Settings, streams: Sequence[Stream]) -> Iterator[Finding]:
    lake = settings.lake
    try:
        files = files_of(lake)
        is_there = files.exist()
        names = specs(streams) if is_there else ()
        formats = {spec.qualified_name: direct.noted_format(lake, spec) for spec in names}
    except (LakehouseError, OSError, ValueError) as error:
        todo = "correct `lake` (LAKEHOUSE_LAKE), this user's permissions or AWS_…"
        yield Finding("lake", "fail", f"{lake}: {first_line(error)}", todo)
        return
    found = {name: number for name, number in formats.items() if number is not None}
    newer = sorted(name for name, number in found.items() if number > FORMAT)
    if newer:
        text = f"{newer[0]} has format {found[newer[0]]}, but this version supports only {FORMAT}"
        yield Finding("lake", "fail", text, "reinstall the later version of lakehouse (docs/upgrades.md)")
    elif not is_there:
        yield Finding("lake", "ok", f"{lake} does not exist yet; the first run creates it")
    else:
        yield Finding("lake", "ok", f"{lake}: {len(found)} tables in format {FORMAT}")
    if is_local(lake):
        yield from _writable(Path(location(lake)))


def _writable(lake: Path) -> Iterator[Finding]:
    place = next(one for one in (lake, *lake.parents) if one.exists())
    try:
        with tempfile.NamedTemporaryFile(dir=place, prefix=".doctor-") as file:
            ahead_s = os.fstat(file.fileno()).st_mtime - time.time()
    except OSError as error:
        todo = f"give user {os.getuid()} write access, or set `lake` (LAKEHOUSE_LAKE) to another location"
        yield Finding("lake is writable", "fail", f"{place}: {error.strerror}", todo)
        return
    yield Finding("lake is writable", "ok", str(place))
    newest_s = max((log.stat().st_mtime for log in lake.glob("*/*/_delta_log")), default=0.0)
    if max(abs(ahead_s), newest_s - time.time()) > _CLOCK_S:
        text = "this machine's clock differs from the file system's, or was set back since the last commit"
        yield Finding("clock", "warn", text, "synchronize the clock (chrony, systemd-timesyncd)")
    else:
        yield Finding("clock", "ok", "agrees with the file system's; no commit is in the future")


def _disks(settings: Settings) -> Iterator[Finding]:
    places = {"HOME": settings.home, "temporary files": Path(tempfile.gettempdir())}
    if is_local(settings.lake):
        places["lake"] = Path(location(settings.lake))
    for name, path in places.items():
        there = next(one for one in (path.absolute(), *path.absolute().parents) if one.exists())
        free = shutil.disk_usage(there).free
        state: State = "fail" if free < _SCARCE_BYTES else "warn" if free < _LOW_BYTES else "ok"
        todo = "" if state == "ok" else "free some space, or move it to another disk"
        yield Finding(f"disk of {name}", state, f"{free / 1e9:.1f} GB free at {there}", todo)
    try:
        java.temporary_directory()
    except LakehouseError as error:
        yield Finding("temporary files", "fail", first_line(error), "set TMPDIR")
