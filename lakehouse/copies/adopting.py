"""A copy takes the original's place: its gold tables note that, before the layers go on."""

from __future__ import annotations

import time
from datetime import datetime

from lakehouse import tables
from lakehouse.copies import marker as markers
from lakehouse.copies.choosing import newest
from lakehouse.copies.marker import Marker
from lakehouse.errors import TableError
from lakehouse.tables import Lake
from lakehouse.tables.adoption import PROPERTY, Adoption, adoption_in

_GOLD = "gold."


def note_adoption(lake: Lake) -> Marker:
    """Note in each gold table that from now on its versions are the copy's own; return what it is a copy of.

    A rerun changes nothing. Raises TableError if the lake is no copy, or one that was never finished, or if
    something has written to it, or if a table is not safe to read.
    """
    marker = markers.refuse_unfinished(lake)
    if marker is None:
        raise TableError(f"{lake.root} is no copy, or was adopted before: `lakehouse run` goes on there")
    for table in marker.known:
        lake.exists(*table.split(".", 1))  # which refuses what its readers would
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
            f"gold.{name} at {path} was written to after it was copied, so it is unknown what its versions "
            "are. Copy the lake again, to another place"
        )
