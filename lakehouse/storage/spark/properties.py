"""Spark properties for any cluster, additional properties for a laptop, and the jars' paths.

    spark-submit --properties-file .venv/share/lakehouse/laptop.properties jobs/bronze.py --stream metrics

The package's `spark.properties` and `laptop.properties` contain no paths. For spark-submit, `lakehouse setup`
writes copies with this machine's paths. `lakehouse run` and other commands read the package's files through
this module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from lakehouse.common.state_files import write_whole
from lakehouse.storage.spark.jars import class_archive, installed_jars, jars_directory, require_jars

CLUSTER = Path(__file__).with_name("spark.properties")
LAPTOP = Path(__file__).with_name("laptop.properties")
_LOGGING = Path(__file__).with_name("log4j2.properties")
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", "\r": r"\r"})
_JAVA = "spark.driver.extraJavaOptions"


def for_cluster() -> dict[str, str]:
    """Return the properties for a job on any cluster, including the S3 jars if they are installed.

    Raises ServiceError if Spark's jars are missing.
    """
    return read(CLUSTER) | _with_jars([*require_jars("spark"), *installed_jars("s3")])


def for_laptop(*, archive: bool) -> dict[str, str]:
    """Return the properties for a driver in local mode on the user's machine.

    With `archive`, the driver maps Spark's classes from the archive that `lakehouse.dev.class_archive`
    creates, if it exists. Raises ServiceError if jars are missing.
    """
    require_jars("spark")
    require_jars("disk")
    options = read(CLUSTER) | read(LAPTOP)
    # The archive needs these jars on the class path from the start, in this order, hence the wildcards. If
    # the jars were in spark.jars, the driver would send them to itself, encrypted.
    options["spark.driver.extraClassPath"] = f"{jars_directory()}/spark/*:{jars_directory()}/disk/*"
    options[_JAVA] += f' "-Dlog4j2.configurationFile={_LOGGING}"'
    if archive:
        options[_JAVA] += f' "-XX:SharedArchiveFile={class_archive()}" -Xlog:cds*=off'
    return options


def for_laptop_submit() -> dict[str, str]:
    """Return the `for_laptop` properties for spark-submit, including the archive and any installed S3 jars.

    A driver that spark-submit does not start must already have the S3 jars, if it needs them, on its class
    path.
    """
    return for_laptop(archive=True) | _with_jars(installed_jars("s3"))


def _with_jars(jars: Sequence[Path]) -> dict[str, str]:
    return {"spark.jars": ",".join(map(str, jars))} if jars else {}


def read(path: Path) -> dict[str, str]:
    """Return the properties in a file: one per line, a name and a value separated by spaces."""
    lines = (line.strip() for line in path.read_text(encoding="utf-8").split("\n"))
    pairs = (line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))
    return {key: value.strip() for key, value in pairs}


def write(path: Path, options: Mapping[str, str]) -> None:
    """Write a properties file for spark-submit, replacing an existing one.

    Line ends and backslashes in values are escaped as Java expects.
    """
    lines = (f"{key} {value.translate(_ESCAPES)}\n" for key, value in options.items())
    write_whole(path, "".join(lines), lasting=True)
