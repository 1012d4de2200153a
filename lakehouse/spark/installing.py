"""Puts beside the virtual environment what pip cannot install: runtime jars, and spark-submit's properties.

Jars are resolved from ivy.xml by the Ivy that pyspark ships, into a cache of the user's. They are checked
twice: by Ivy against the repository's checksums, and here against the SHA-256 of every jar in jars.sha256.

    python -m lakehouse.spark.installing [spark] [kafka] [s3]

brings those of Spark, of the local broker, of a lake on S3, or several; by default the first two. One jar for
lakes on a disk, and one of those for S3, are compiled here of Scala, by the compiler among pyspark's jars.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from xml.etree import ElementTree
from zipfile import ZipFile

import pyspark

from lakehouse.errors import ServiceError
from lakehouse.files import sync
from lakehouse.printable import indented
from lakehouse.spark import java, properties
from lakehouse.spark.jars import (
    COMPILED,
    CONFIGURATIONS,
    Configuration,
    checksums,
    compiled_jar,
    jars_directory,
    require_jars,
    share_directory,
    sources,
)

BY_DEFAULT: tuple[Configuration, ...] = ("spark", "kafka")
_FEW_LINES = 12


def install(
    say: Callable[[str], object] = lambda _text: None,
    configurations: Sequence[Configuration] = BY_DEFAULT,
) -> Path:
    """Fetch missing jars, write the properties, and return the directory of both.

    A rerun changes nothing. Raises ServiceError if the directory cannot be written, if the jars cannot be
    fetched, if one differs from its checksum, or if the Scala sources cannot be compiled.
    """
    try:
        _fetch(say, configurations)
        for configuration in COMPILED:
            if configuration in (*configurations, "disk"):
                _compile(say, configuration)
        share = share_directory()
        properties.write(share / "cluster.properties", properties.for_cluster())
        properties.write(share / "laptop.properties", properties.for_laptop_submit())
    except PermissionError as error:
        raise ServiceError(
            f"{share_directory()} cannot be written: install lakehouse into a virtual environment of your "
            "own (python3 -m venv DIRECTORY)"
        ) from error
    return share


def lock_jars() -> None:
    """Resolve the jars anew and write jars.sha256, in a checkout, after a change of ivy.xml.

    A line is a jar's checksum, its path and its Maven group, which bills of materials name it by.
    """
    found = _resolved(sys.stderr.write, CONFIGURATIONS)
    names = sorted(path.relative_to(found).as_posix() for path in found.rglob("*.jar"))
    groups = _groups()
    text = "".join(f"{_digest(found / name)}  ./{name}  {groups[name]}\n" for name in names)
    Path(__file__).with_name("jars.sha256").write_text(text, encoding="utf-8")
    _replace(found, CONFIGURATIONS)


def _fetch(say: Callable[[str], object], configurations: Sequence[Configuration]) -> None:
    expected, target = checksums(configurations), jars_directory()
    if all((target / name).is_file() and _digest(target / name) == it for name, it in expected.items()):
        return
    found = _resolved(say, configurations)
    wrong = [
        name for name, it in expected.items() if not (found / name).is_file() or _digest(found / name) != it
    ]
    if wrong:
        shutil.rmtree(found)
        raise ServiceError(
            f"{wrong[0]} is not the jar that jars.sha256 lists; delete {_cache()} and run this again"
        )
    _replace(found, configurations)


def _resolved(say: Callable[[str], object], configurations: Sequence[Configuration]) -> Path:
    """Resolve jars into a new directory beside that of the jars, and return it."""
    found = java.find()
    share_directory().mkdir(parents=True, exist_ok=True)
    _cache().mkdir(parents=True, exist_ok=True)
    say("resolving the runtime jars (about 100 MB on the first run, none after)")
    target = Path(tempfile.mkdtemp(prefix="jars-", dir=share_directory()))
    (ivy,) = (Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar")
    with resources.as_file(resources.files("lakehouse.spark").joinpath("ivy.xml")) as module:
        where = ["-ivy", str(module), "-cache", str(_cache()), "-confs", *configurations]
        into = ["-retrieve", f"{target}/[conf]/[artifact]-[revision].[ext]"]
        done = _run(found, "-jar", str(ivy), *where, *into)
    if done.returncode:
        shutil.rmtree(target)
        lines = [line for line in done.stdout.split("\n") if "FAILED" in line or "ERROR" in line]
        told = "\n".join(lines[:_FEW_LINES])
        raise ServiceError(
            "the runtime jars could not be resolved; is the Maven repository reachable? Run this again "
            f"when it is.\n{told}"
        )
    return target


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a program in Java, and return what it said."""
    return subprocess.run(
        command, env=os.environ | java.ENVIRONMENT, capture_output=True, text=True, check=False
    )


def _groups() -> dict[str, str]:
    """Return the Maven group that Ivy has reported of each jar, by its path in the jars' directory."""
    found = {}
    for report in _cache().glob("lakehouse-runtime-jars-*.xml"):
        conf = report.stem.removeprefix("lakehouse-runtime-jars-")
        for module in ElementTree.parse(report).iter("module"):  # noqa: S314 - Ivy's own file
            for revision in module.iter("revision"):
                for artifact in revision.iter("artifact"):
                    name = f"{conf}/{artifact.attrib['name']}-{revision.attrib['name']}.jar"
                    found[name] = module.attrib["organisation"]
    return found


def _cache() -> Path:
    named, caches = os.environ.get("LAKEHOUSE_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if named or caches:
        return Path(named or f"{caches}/lakehouse") / "ivy"
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - which leaves it as it is for a user without a home
    return (home / ".cache" / "lakehouse" if os.access(home, os.W_OK) else share_directory()) / "ivy"


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _replace(found: Path, configurations: Sequence[Configuration]) -> None:
    """Put the directories of resolved jars in the places of those before."""
    for jar in found.rglob("*.jar"):
        sync(jar)
    jars_directory().mkdir(exist_ok=True)
    for name in configurations:
        shutil.rmtree(jars_directory() / name, ignore_errors=True)
        (found / name).rename(jars_directory() / name)
    found.rmdir()


def _compile(say: Callable[[str], object], configuration: Configuration) -> None:
    """Make a configuration's jar of its sources, if that has not been done for this version of them."""
    target, what = compiled_jar(configuration), f"lakehouse/spark/scala/{configuration}"
    if target.is_file():
        return
    say(f"compiling {what} (some seconds)")
    target.parent.mkdir(parents=True, exist_ok=True)
    pysparks = Path(pyspark.__file__).parent / "jars"
    needed = [*pysparks.glob("*.jar"), *require_jars("spark"), *target.parent.glob("*.jar")]
    with tempfile.TemporaryDirectory(prefix="scala-", dir=share_directory()) as directory:
        made, code = Path(directory, target.name), list[str]()
        for name, text in sources(configuration).items():
            Path(directory, name).write_text(text, encoding="utf-8")
            if name.endswith(".scala"):
                code.append(f"{directory}/{name}")
        compiler = (java.find(), "-cp", f"{pysparks}/*", "scala.tools.nsc.Main", "-nowarn")
        done = _run(*compiler, "-d", str(made), "-classpath", os.pathsep.join(map(str, needed)), *code)
        if done.returncode or not made.is_file():
            told = "\n".join((done.stdout + done.stderr).split("\n")[:_FEW_LINES])
            raise ServiceError(f"{what} could not be compiled:\n{told}")
        with ZipFile(made, "a") as jar:
            for name, text in sources(configuration).items():
                if not name.endswith(".scala"):
                    jar.writestr(name, text)
        for former in target.parent.glob("lakehouse-*.jar"):
            former.unlink()
        sync(made)
        made.rename(target)


if __name__ == "__main__":
    try:
        named = [one for one in CONFIGURATIONS if one in sys.argv[1:]]
        install(lambda text: sys.stderr.write(f"setup: {text}\n"), named or BY_DEFAULT)
    except ServiceError as error:
        raise SystemExit("\n".join(indented(f"setup: {error}"))) from error
