"""Install runtime jars and spark-submit's properties into the virtual environment, because pip cannot.

The Ivy that pyspark ships (ivy.py) fetches the jars into the user's cache. Each jar is checked against its
SHA-256 in jars.sha256.

    python -m lakehouse.storage.spark.installing [spark] [kafka] [s3]

installs the jars for Spark, for the local broker and for a lake on S3. The default is `spark kafka`. Two
jars, one for drivers in local mode and one for S3, are compiled from Scala with the compiler that is included
in pyspark's jars.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from zipfile import ZipFile

import pyspark

from lakehouse.common.errors import ServiceError
from lakehouse.common.printable import indented
from lakehouse.common.state_files import sync
from lakehouse.storage.spark import ivy, java, properties
from lakehouse.storage.spark.jars import (
    COMPILED,
    CONFIGURATIONS,
    Configuration,
    LockedJar,
    compiled_jar,
    jars_directory,
    locked_jars,
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
    """Fetch missing jars, write the properties, and return the directory that contains both.

    A rerun changes nothing. Raises ServiceError if the directory cannot be written, if the jars cannot be
    fetched, if a jar differs from its checksum, or if the Scala sources cannot be compiled.
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
            f"{share_directory()} cannot be written: install lakehouse into your own virtual "
            "environment (python3 -m venv DIRECTORY)"
        ) from error
    return share


def lock_jars() -> None:
    """Resolve the jars and write jars.sha256. Run this in a checkout after a change to ivy.xml."""
    with ivy.resolved() as (found, jars):
        filled = [
            replace(jar, sha256=_digest(found / jar.path), size=(found / jar.path).stat().st_size)
            for jar in sorted(jars, key=lambda jar: jar.path)
        ]
        text = "".join(f"{jar}\n" for jar in filled)
        Path(__file__).with_name("jars.sha256").write_text(text, encoding="utf-8")
        _replace(found, CONFIGURATIONS)


def _fetch(say: Callable[[str], object], configurations: Sequence[Configuration]) -> None:
    expected, target = locked_jars(configurations), jars_directory()
    if all(_is_whole(target, jar) for jar in expected):
        return
    megabytes = sum(jar.size for jar in expected) / 1e6
    say(f"fetching {len(expected)} runtime jars ({megabytes:.0f} MB), except those in the cache")
    with ivy.fetched(say, configurations) as found:
        wrong = [jar.path for jar in expected if not _is_whole(found, jar)]
        if wrong:
            raise ServiceError(
                f"{wrong[0]} differs from its checksum in jars.sha256; delete {ivy.cache()} and run this "
                "again"
            )
        _replace(found, configurations)


def damaged_jars(configurations: Sequence[Configuration]) -> list[str]:
    """Return the paths of these configurations' jars that are missing or differ from jars.sha256."""
    return [jar.path for jar in locked_jars(configurations) if not _is_whole(jars_directory(), jar)]


def _is_whole(directory: Path, jar: LockedJar) -> bool:
    path = directory / jar.path
    return path.is_file() and _digest(path) == jar.sha256


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a Java program, and return the completed process with its output."""
    return subprocess.run(
        command, env=os.environ | java.ENVIRONMENT, capture_output=True, text=True, check=False
    )


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _replace(found: Path, configurations: Sequence[Configuration]) -> None:
    """Replace these configurations' jar directories with the newly resolved ones in `found`."""
    for jar in found.rglob("*.jar"):
        sync(jar)
    jars_directory().mkdir(exist_ok=True)
    for name in configurations:
        shutil.rmtree(jars_directory() / name, ignore_errors=True)
        (found / name).rename(jars_directory() / name)


def _compile(say: Callable[[str], object], configuration: Configuration) -> None:
    """Compile a configuration's jar, unless one compiled from the same sources already exists."""
    target, what = compiled_jar(configuration), f"lakehouse/storage/spark/scala/{configuration}"
    if target.is_file():
        return
    say(f"compiling {what} (takes a few seconds)")
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
