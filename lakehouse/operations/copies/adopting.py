"""Adoption of a copy in the original's place: noted in its gold tables before the layers run there."""

from __future__ import annotations

import time
from datetime import datetime

from lakehouse.common.errors import TableError
from lakehouse.operations.copies import marker as markers
from lakehouse.operations.copies.choosing import newest
from lakehouse.operations.copies.marker import Marker
from lakehouse.storage import tables
from lakehouse.storage.tables import Lake
from lakehouse.storage.tables.adoption import PROPERTY, Adoption, adoption_in

_GOLD = "gold."


def note_adoption(lake: Lake) -> Marker:
    """Note the adoption in each gold table, whose later versions are the copy's own; return the marker.

    A rerun changes nothing. Raises TableError if the lake is not a copy, if it is an unfinished one or was
    written to, or if a table is not safe to read.
    """
    marker = markers.refuse_unfinished(lake)
    if marker is None:
        raise TableError(f"{lake.root} is not a copy, or was already adopted: start `lakehouse run` there")
    for table in marker.known:
        lake.exists(*table.split(".", 1))  # raises if the table is not safe to read
    at_ms = int(time.time() * 1000)
    for table in filter(lambda name: name.startswith(_GOLD), marker.known):
        _note(lake, table.removeprefix(_GOLD), marker, at_ms)
    return marker


def _note(lake: Lake, name: str, marker: Marker, at_ms: int) -> None:
    path, last = lake.path("gold", name), newest(lake, "gold", name)
    if last <= marker.known[_GOLD + name].version:
        if last >= 0:
            commit = tables.begin(lake.spark, path)
            commit.set_properties({PROPERTY: str(Adoption(at_ms, last))})
        return
    adoption = adoption_in(tables.properties_of(tables.snapshot(lake.spark, path)))
    copied_ms = datetime.fromisoformat(marker.at).timestamp() * 1000
    if adoption is None or adoption.at_ms < copied_ms:
        raise TableError(
            f"gold.{name} at {path} was written to after it was copied, so its versions may not be the "
            "original's. Copy the lake again, to another place"
        )
