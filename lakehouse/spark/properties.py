"""Spark's properties: what every cluster needs, what a laptop adds, and where the jars are.

    spark-submit --properties-file .venv/share/lakehouse/laptop.properties jobs/bronze.py --stream metrics

`spark.properties` and `laptop.properties` of the package have no paths. `lakehouse setup` writes them out
with those of this machine, for spark-submit; `lakehouse run` and the others read them here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from lakehouse.files import write_whole
from lakehouse.spark.jars import class_archive, installed_jars, jars_directory, require_jars

CLUSTER = Path(__file__).parents[1] / "spark.properties"
LAPTOP = Path(__file__).parents[1] / "laptop.properties"
_LOGGING = Path(__file__).parents[1] / "log4j2.properties"
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", "\r": r"\r"})
_JAVA = "spark.driver.extraJavaOptions"


def for_cluster() -> dict[str, str]:
    """Return the properties of a job on any cluster, with the jars of S3 if they are installed.

    Raises ServiceError if those of Spark are missing.
    """
    return read(CLUSTER) | _with_jars([*require_jars("spark"), *installed_jars("s3")])


def for_laptop(*, archive: bool) -> dict[str, str]:
    """Return the properties of a driver that has its executors inside, on the machine of its user.

    `archive`: the driver maps Spark's classes from the archive of `sandbox.class_archive`, if it is there.
    Raises ServiceError if the jars are missing.
    """
    require_jars("spark")
    require_jars("disk")
    options = read(CLUSTER) | read(LAPTOP)
    # From the driver's start, as the archive has them; as wildcards, because it depends on their order. What
    # spark.jars lists, a driver would send to itself, encrypted.
    options["spark.driver.extraClassPath"] = f"{jars_directory()}/spark/*:{jars_directory()}/disk/*"
    options[_JAVA] += f' "-Dlog4j2.configurationFile={_LOGGING}"'
    if archive:
        options[_JAVA] += f' "-XX:SharedArchiveFile={class_archive()}" -Xlog:cds=off'
    return options


def for_laptop_submit() -> dict[str, str]:
    """Return the same for spark-submit, with the archive and, if they are installed, the jars of S3.

    A driver that is started otherwise has them on its class path, where it needs them.
    """
    return for_laptop(archive=True) | _with_jars(installed_jars("s3"))


def _with_jars(jars: Sequence[Path]) -> dict[str, str]:
    return {"spark.jars": ",".join(map(str, jars))} if jars else {}


def read(path: Path) -> dict[str, str]:
    """Return the properties of a file: name and value, separated by spaces, on a line each."""
    lines = (line.strip() for line in path.read_text(encoding="utf-8").split("\n"))
    pairs = (line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))
    return {key: value.strip() for key, value in pairs}


def write(path: Path, options: Mapping[str, str]) -> None:
    """Write properties where spark-submit reads them; a rerun replaces the file.

    A value stays on its line: Java reads escapes for line ends, and for the backslash that begins one.
    """
    lines = (f"{key} {value.translate(_ESCAPES)}\n" for key, value in options.items())
    write_whole(path, "".join(lines), lasting=True)
