"""Java for the JVMs that lakehouse starts: the executable, its environment, and its system requirements.

A missing requirement is reported before a JVM starts, because the JVM would only print a stack trace.
"""

from __future__ import annotations

import os
import pwd
import re
import resource
import shutil
import subprocess
import tempfile
from pathlib import Path

from lakehouse.common.errors import ServiceError

ENVIRONMENT = {"LC_ALL": "C.UTF-8"}
"""Variables that make a JVM read and write file names in UTF-8, regardless of the user's locale."""
LOCALE = ("-Duser.language=en", "-Duser.country=US")
"""The locale in spark.properties. It matters because Delta and Kafka number files with a locale's digits."""

_LEAST_FREE_BYTES = 64 << 20
_LEAST_FILES = 1_024


def find() -> str:
    """Return the path of PySpark's `java`. Raises ServiceError if it is neither in JAVA_HOME nor on PATH."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(Path(home, "bin", "java") if home else "java")
    if found is None:
        where = f"in JAVA_HOME={home}" if home else "on PATH and JAVA_HOME is not set"
        raise ServiceError(
            f"there is no java {where}; install Java 17 or later (Debian: openjdk-17-jre-headless)"
        )
    return found


def version() -> str | None:
    """Return the installed Java version, such as 17.0.15, or None if Java is not installed."""
    try:
        said = subprocess.run([find(), "-version"], capture_output=True, text=True, check=False)
    except (ServiceError, OSError):
        return None
    number = re.search(r'version "([^"]+)"', said.stderr + said.stdout)
    return number and number[1]


def require_files() -> None:
    """Raise ServiceError if the limit on open files is too low for a JVM's jars and the tables' files."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < _LEAST_FILES:
        raise ServiceError(
            f"a process may have only {most} files open, but Spark's JVM needs {_LEAST_FILES:,}: raise the "
            "limit (ulimit -Hn, LimitNOFILE= in systemd, or --ulimit nofile= for a container)"
        )


def temporary_directory() -> str:
    """Return the directory for a JVM's native libraries and temporary files: TMPDIR, or else usually /tmp.

    Raises ServiceError if the directory is not writable, is nearly full, or does not allow libraries to be
    loaded from it.
    """
    try:
        found = tempfile.gettempdir()
    except FileNotFoundError as error:
        raise ServiceError(
            "no temporary directory is writable, neither $TMPDIR nor /tmp: free some space, or set TMPDIR "
            "to a directory on another disk"
        ) from error
    if os.statvfs(found).f_flag & os.ST_NOEXEC:
        raise ServiceError(
            f"the temporary directory {found} is mounted noexec, so Spark's JVM could not load its libraries "
            "from there: set TMPDIR to another directory"
        )
    free = shutil.disk_usage(found).free
    if free < _LEAST_FREE_BYTES:
        raise ServiceError(
            f"the temporary directory {found} has only {free >> 20} MiB left, and Spark's JVM needs "
            f"{_LEAST_FREE_BYTES >> 20}: free some space, or set TMPDIR to another directory"
        )
    return found


def user() -> pwd.struct_passwd | None:
    """Return this user's passwd entry, or None if there is none, as for a container's arbitrary user id."""
    try:
        return pwd.getpwuid(os.getuid())
    except KeyError:
        return None


def has_home() -> bool:
    """Return whether this user has a home directory to which a JVM can write."""
    known = user()
    return known is not None and os.access(known.pw_dir, os.W_OK | os.X_OK)
