"""A lake copied to S3 by the command, and from there to a disk: every file is the same."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyarrow.fs import FileSelector, FileType

from tests.support.processes import LAKEHOUSE, finish
from tests.support.seaweed import BUCKET, environment, files_of

EVENTS = "ops/events/"  # each command adds to it


def files_below(root: Path) -> dict[str, bytes]:
    """Return every file of the tables except events, by path."""
    found = {str(file.relative_to(root)): file for file in root.rglob("*") if file.is_file()}
    return {name: file.read_bytes() for name, file in found.items() if not name.startswith(("_", EVENTS))}


@pytest.mark.soak
def test_a_lake_is_copied_to_s3_brought_up_to_date_there_and_copied_back(store: str, tmp_path: Path) -> None:
    lake, again = tmp_path / "lake", tmp_path / "again"
    here = environment(tmp_path, store, "copied") | {"LAKEHOUSE_LAKE": str(lake)}
    there = environment(tmp_path, store, "copied")
    place = there["LAKEHOUSE_LAKE"]
    for name in ("silver/one", "gold/two"):
        for number in range(2):
            write_deltalake(str(lake / name), pa.table({"n": [number]}), mode="append")

    first = finish([LAKEHOUSE, "copy", "--to", place], here)
    assert first.returncode == 0, first.stderr
    assert f"{place} is a copy of {lake} as of " in first.stdout
    write_deltalake(str(lake / "gold/two"), pa.table({"n": [2]}), mode="append")
    second = finish([LAKEHOUSE, "copy", "--to", place], here)
    assert second.returncode == 0, second.stderr
    back = finish([LAKEHOUSE, "copy", "--to", str(again)], there)
    assert back.returncode == 0, back.stderr

    listed = files_of(store).get_file_info(FileSelector(f"{BUCKET}/copied/gold/two", recursive=True))
    stored = {Path(one.path).name for one in listed if one.type == FileType.File}
    assert stored >= {f"{version:020}.json" for version in range(3)}
    assert files_below(again) == files_below(lake)
    refused = finish([LAKEHOUSE, "maintain"], there)
    assert refused.returncode == 1
    assert f"error: {place} is a copy of {lake} as of " in refused.stderr
