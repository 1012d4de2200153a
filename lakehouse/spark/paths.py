"""Hadoop's paths for readers without Spark.

Hadoop takes a path literally: nothing in it is an escape, as %20 is in a URL.
"""

from __future__ import annotations

from pathlib import Path

_OF_THIS_MACHINE = "file:"
_AS_S3 = ("s3a://", "s3n://")


def location(path: str) -> str:
    """Return a path in the form of deltalake and pyarrow: a plain path of this machine, or a URL.

    Spark's names of S3 become the usual one. Keys and endpoints are read from the environment (AWS_…), not
    from Spark's properties.
    """
    if path.startswith(_OF_THIS_MACHINE):
        rest = path.removeprefix(_OF_THIS_MACHINE)
        if rest.startswith("//"):
            rest = rest[2:].partition("/")[2]  # without the host, which is this machine
        return f"/{rest.lstrip('/')}"
    return f"s3://{path[len(_AS_S3[0]) :]}" if path.startswith(_AS_S3) else path


def is_local(path: str) -> bool:
    """Tell whether a path lies on a file system of this machine."""
    return "://" not in location(path)


def local_path(path: str) -> Path | None:
    """Return the path on this machine; null if it lies elsewhere."""
    return Path(location(path)) if is_local(path) else None
