"""Compare a session's versions of Spark and Delta with the tested versions.

This code uses private members of Spark and Delta. With untested versions, the code might still work, so the
session starts with a warning. If a member is missing, the session is refused. Checking all members takes a
second, so they are checked only with untested versions.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import pyspark
from pyspark.sql import SparkSession

from lakehouse.common.errors import VersionError
from lakehouse.storage.spark import internals, members
from lakehouse.storage.tables import delta_internals, delta_members

TESTED = {"PySpark": "4.2.0", "Spark": "4.2.0", "Delta": "4.4.0", "deltalake": "1.6.6"}
_WITHOUT_JVM = {"deltalake"}


def check(spark: SparkSession) -> str | None:
    """Return a warning if the session has an untested version of Spark or Delta, or None otherwise.

    Raises VersionError if such a version lacks a member that this code needs.
    """
    present = _present(spark)
    other = {name: present[name] for name, tested in TESTED.items() if present[name] != tested}
    if other.keys() - _WITHOUT_JVM:
        lacks = internals.missing_here() + internals.missing(
            spark, (*members.MEMBERS, *delta_members.MEMBERS)
        )
        if lacks:
            more = f" and {len(lacks) - 1} more members" if len(lacks) > 1 else ""
            raise VersionError(
                f"lakehouse cannot work with {_listed(other)}, which lacks {lacks[0]}{more}; install "
                f"{_listed({name: TESTED[name] for name in other})}"
            )
    if not other:
        return None
    tested = _listed({name: TESTED[name] for name in other})
    return f"this is {_listed(other)}; lakehouse is tested with {tested}"


def _present(spark: SparkSession) -> dict[str, str]:
    try:
        deltalake = version("deltalake")
    except PackageNotFoundError:
        deltalake = "unknown"
    return {
        "PySpark": pyspark.__version__,
        "Spark": spark.version,
        "Delta": delta_internals.delta_version(spark),
        "deltalake": deltalake,
    }


def _listed(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in versions.items())
