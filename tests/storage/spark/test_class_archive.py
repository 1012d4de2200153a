"""A class archive made for other jars only makes a start slower."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pyspark
import pytest

from lakehouse.storage.spark import java
from lakehouse.storage.spark.properties import for_laptop

SCALA = sorted(map(str, (Path(pyspark.__file__).parent / "jars").glob("scala-*.jar")))


def printed(options: Sequence[str], jars: Sequence[str]) -> list[str]:
    """Return the lines that Scala's compiler and its JVM print when asked for the version."""
    command = [java.find(), *options, "-cp", os.pathsep.join(jars), "scala.tools.nsc.Main", "-version"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    return done.stdout.splitlines()


@pytest.mark.soak
def test_an_archive_for_other_jars_is_passed_over_in_silence(tmp_path: Path) -> None:
    archive = tmp_path / "classes.jsa"
    printed([f"-XX:ArchiveClassesAtExit={archive}"], SCALA)
    own = shlex.split(for_laptop(archive=True)["spark.driver.extraJavaOptions"])
    logging = [option for option in own if option.startswith("-Xlog")]
    others = SCALA[::-1]

    warned = printed([f"-XX:SharedArchiveFile={archive}"], others)
    silent = printed([f"-XX:SharedArchiveFile={archive}", *logging], others)

    assert any("[cds" in line for line in warned)
    assert len(silent) == 1
    assert silent[0].startswith("Scala compiler version 2.13")
