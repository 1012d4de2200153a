"""Check that a table's log refers only to files in the table's directory. All log readers use this. No I/O.

Delta's protocol allows absolute paths and URLs, as in shallow clones, and a relative path can contain `..`.
Such a path could make a reader open any file that the process can access. lakehouse never writes such paths,
so a table that contains one is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from lakehouse.common.errors import TableError
from lakehouse.common.nearest import shown

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_STEPS = re.compile(r"[/\\]")
_KINDS = ("add", "remove", "cdc", "sidecar")
_DECODED = 4  # checks per path: the protocol encodes a path once, but a partition's value twice
_IN_THE_LOG, _ELSEWHERE = "i", "p"
_UUID = 20  # the length of a deletion vector's name; a directory may precede it


def leads_outside(path: str) -> bool:
    """Return whether a path from the log (percent-encoded) points outside the table's directory."""
    for _ in range(_DECODED):
        if path.startswith(("/", "\\")) or _SCHEME.match(path) or ".." in _STEPS.split(path):
            return True
        decoded = unquote(path)
        if decoded == path:
            return False
        path = decoded
    return True


def refuse_outside(table: str, version: int | None, actions: Iterable[Mapping[str, Any]]) -> None:
    """Raise TableError if an action from a log names a file outside the table's directory.

    An action is an object with one key. `version` is the commit's version, or None for the state after
    several commits.
    """
    for action in actions:
        for kind in _KINDS:
            file = action.get(kind)
            if isinstance(file, Mapping):
                refuse_paths(table, version, _paths(file))


def refuse_paths(table: str, version: int | None, paths: Iterable[str]) -> None:
    """Raise TableError if one of these paths from a log points outside the table's directory."""
    for path in paths:
        if leads_outside(path):
            of = "the log" if version is None else f"version {version}"
            raise TableError(
                f"{of} of the table at {table} names the file {shown(path)}, which lies outside the table, "
                "so the table is not read. Restore it from a copy (docs/restore.md); instead of a shallow "
                "clone, use a copy of the table's directory"
            )


def _paths(file: Mapping[str, Any]) -> Iterable[str]:
    yield str(file.get("path") or "")
    vector = file.get("deletionVector")
    if isinstance(vector, Mapping) and vector.get("storageType") != _IN_THE_LOG:
        named = str(vector.get("pathOrInlineDv") or "")
        if vector.get("storageType") == _ELSEWHERE:
            yield f"/{named}"
        else:
            yield named[:-_UUID]
