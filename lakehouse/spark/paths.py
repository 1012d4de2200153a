"""Where a path of Hadoop's lies, for those who read it without Spark.

Hadoop takes a path as it is: nothing in it stands for another character, as %20 does in a URL.
"""

from __future__ import annotations

from pathlib import Path

_OF_THIS_MACHINE = "file:"
_AS_S3 = ("s3a://", "s3n://")


def location(path: str) -> str:
    """Return a path as deltalake and pyarrow have it: of this machine a plain path, or a URL.

    Spark's names of S3 become the usual one. Keys and endpoints are read from the environment (AWS_…), not
    from Spark's properties.
    """
    if path.startswith(_OF_THIS_MACHINE):
        rest = path.removeprefix(_OF_THIS_MACHINE)
        if rest.startswith("//"):
            rest = rest[2:].partition("/")[2]  # without the host, which is this one
        return f"/{rest.lstrip('/')}"
    return f"s3://{path[len(_AS_S3[0]) :]}" if path.startswith(_AS_S3) else path


def is_local(path: str) -> bool:
    """Tell whether a path lies on a file system of this machine."""
    return "://" not in location(path)


def local_path(path: str) -> Path | None:
    """Return where a path lies on this machine; null where it lies elsewhere."""
    return Path(location(path)) if is_local(path) else None
