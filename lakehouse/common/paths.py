"""Convert a lake's address to the form each reader expects: Hadoop, deltalake, pyarrow (also for DuckDB).

Hadoop reads a path literally: unlike in a URL, %20 is not an escape. deltalake, however, decodes such
escapes.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_OF_THIS_MACHINE = "file:"
_S3A = "s3a://"
_OTHER_S3 = ("s3://", "s3n://")
# deltalake refuses such paths or looks elsewhere, because it decodes %41 to A and reads a backslash as a
# slash.
_MISREAD = re.compile(r"%[0-9A-Fa-f]{2}|[\x00-\x1f\x7f\\\ud800-\udfff]")
# If a path contains any other character, deltalake escapes it in the key of the checkpoint hint.
_TAKEN_ELSEWHERE = re.compile(r"\w+:/*[\w.=@:+,-]+(/[\w.=@:+,-]+)*", re.ASCII)


def lake_address(given: str) -> str:
    """Return the root of a lake in a form that all readers accept: an absolute local path, or a URL.

    Raises ValueError if a reader would not find tables below this root.
    """
    if not given:
        return given
    if not is_local(given):
        return _of_store(given)
    if given.startswith(_OF_THIS_MACHINE):
        of_tables(Path(location(given)))
        return given
    return str(of_tables(Path(given)))


def _of_store(given: str) -> str:
    """Return a URL without a trailing slash. s3:// and s3n:// become Hadoop's s3a://."""
    url = given.rstrip("/")
    for name in _OTHER_S3:
        if url.startswith(name):
            url = _S3A + url.removeprefix(name)
    if not _TAKEN_ELSEWHERE.fullmatch(url):
        raise ValueError(
            f"some table readers could not find {url!r}; a remote lake's address may contain only ASCII "
            "letters, digits and . _ - = + , @"
        )
    return url


def of_tables(path: Path) -> Path:
    """Return the absolute path of a directory. Raises ValueError if a reader would not find tables there."""
    found = absolute(path)
    if misread := _MISREAD.search(str(found)):
        raise ValueError(
            f"the path {str(found)!r} contains {misread[0]!r}, so some table readers could not find it; "
            "choose another directory"
        )
    return found


def absolute(path: Path) -> Path:
    """Return an absolute path. Raises ValueError if a leading ~ cannot be expanded."""
    try:
        return Path(os.path.abspath(path.expanduser()))  # noqa: PTH100 - Hadoop resolves .. in the same way
    except RuntimeError:
        raise ValueError(f"the home directory of the user in {path} is unknown") from None


def location(path: str) -> str:
    """Return a path in the form deltalake and pyarrow expect: a plain local path, or a URL.

    Spark's s3a:// becomes s3://. Keys and endpoints are read from the environment (AWS_…), not from Spark's
    properties.
    """
    if path.startswith(_OF_THIS_MACHINE):
        rest = path.removeprefix(_OF_THIS_MACHINE)
        if rest.startswith("//"):
            rest = rest[2:].partition("/")[2]  # drop the host, which is the local host
        return f"/{rest.lstrip('/')}"
    return f"s3://{path.removeprefix(_S3A)}" if is_on_s3(path) else path


def is_on_s3(path: str) -> bool:
    """Return whether a path is on S3."""
    return path.startswith(_S3A)


def is_local(path: str) -> bool:
    """Return whether a path is local: without a scheme, or with the scheme `file:`."""
    beginning, colon, _ = path.partition(":")
    return path.startswith(_OF_THIS_MACHINE) or not colon or "/" in beginning


def local_path(path: str) -> Path | None:
    """Return the local path, or None if the path is not local."""
    return Path(location(path)) if is_local(path) else None
