"""A whole lake copied: literal rows, versions and positions in the copy; copies killed, disturbed, updated.

Rows a, b and c are written to tables named as in a lake, each in a commit of its own. In the last test, rows
go through the layers.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakehouse.common.errors import TableError
from lakehouse.common.events import Event
from lakehouse.engine.ops_tables import event_table
from lakehouse.engine.progress import sent
from lakehouse.operations.copies import choosing
from lakehouse.operations.copies import marker as markers
from lakehouse.operations.copies.copying import Copying, Tell, note_adoption
from lakehouse.settings import Settings
from lakehouse.storage import tables
from lakehouse.storage.spark import files as storage
from lakehouse.storage.spark.collecting import local_frame
from lakehouse.storage.tables import Lake, Move, Position, Progress, TableSpec
from lakehouse.storage.tables.adoption import Adoption, adoption_in
from tests.support import pipeline
from tests.support.commands import run_command
from tests.support.damage import as_in_a_new_process
from tests.support.pipeline import BRONZE, DEAD_LETTERS, GOLD, SILVER, STREAM

NOON = pipeline.utc("2026-03-01T12:00:00")
VERSIONS = {BRONZE: 3, SILVER: 3, DEAD_LETTERS: 0, GOLD: 3}


SCHEMA = StructType().add("name", "string").add("count", "long")
SPECS = {
    BRONZE: TableSpec("bronze", "metrics_events", SCHEMA, stats=("name",)),
    SILVER: TableSpec("silver", "metrics_events", SCHEMA, stats=("name",)),
    DEAD_LETTERS: TableSpec("silver", "dead_letters", SCHEMA, stats=("name",)),
    GOLD: TableSpec("gold", "metrics_1m", SCHEMA, stats=("name",), change_feed=True, is_merged=True),
}


@dataclass
class Place:
    """The lake of these settings, and its contents."""

    spark: SparkSession
    settings: Settings

    @property
    def lake(self) -> Lake:
        return Lake(self.spark, self.settings.lake)

    @property
    def root(self) -> Path:
        return Path(self.settings.lake)

    def path(self, table: str) -> str:
        return self.lake.path(*table.split("."))

    def put(self, name: str, number: int) -> None:
        """Put a row into bronze, silver and gold, each noting how far it has read."""
        row = local_frame(self.spark, [(name, 1)], SCHEMA).coalesce(1)
        tables.append(row, self.path(BRONZE), [Move("bronze", number or None, number + 1)])
        tables.append(row, self.path(SILVER), [Move("silver", number or None, number + 1)])
        tables.replace(row, self.path(GOLD), ["name"], within=F.lit(True))

    @property
    def counted(self) -> dict[str, int]:
        return {row["name"]: row["count"] for row in pipeline.rows_of(self.settings, GOLD)}

    @property
    def gold_files(self) -> set[str]:
        return {one.name for one in Path(self.path(GOLD)).glob("*.parquet")}

    def rewrite_gold(self) -> None:
        """Change every row of gold, and remove the old files, as VACUUM does."""
        old, path = self.gold_files, self.path(GOLD)
        tables.update(self.spark, path, F.lit(True), {"count": F.lit(2).cast("long")})
        for name in old:
            Path(path, name).unlink()

    def copied_to(self, place: Path, tell: Tell = lambda *_: None) -> Copying:
        done = Copying(self.lake, Lake(self.spark, str(place)), [STREAM], tell)
        done.run()
        return done

    def at(self, place: Path) -> Place:
        as_in_a_new_process(self.spark)
        return replace(self, settings=self.settings.changed({"lake": str(place)}))


@pytest.fixture(scope="module")
def filled(
    spark: SparkSession, session_settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Place:
    root = tmp_path_factory.mktemp("filled") / "lake"
    made = Place(spark, session_settings.changed({"lake": str(root)}))
    for spec in SPECS.values():
        made.lake.ensure(spec)
    for number, name in enumerate("abc"):
        made.put(name, number)
    for table in (GOLD, DEAD_LETTERS):
        sent.note(spark, made.path(table), "out", Progress("id", Position(2)))
    (made.root / "gold/metrics_1m/_lakehouse_lease").mkdir()
    (made.root / "_lakehouse_runs").mkdir()
    return made


@pytest.fixture
def original(filled: Place, tmp_path: Path) -> Place:
    """Return the same lake for a test to write to, copied file by file rather than as a lake."""
    shutil.copytree(filled.root, tmp_path / "lake")
    return filled.at(tmp_path / "lake")


def test_a_copy_has_the_original_s_rows_ids_versions_positions_feeds_and_times(
    filled: Place, tmp_path: Path
) -> None:
    filled.copied_to(tmp_path / "copy")

    copy = filled.at(tmp_path / "copy")
    assert copy.counted == {"a": 1, "b": 1, "c": 1}
    assert pipeline.versions(copy.settings) == VERSIONS
    assert pipeline.noted(copy.settings, SILVER) == {"silver": 3}
    for name, version in VERSIONS.items():
        ours, theirs = copy.path(name), filled.path(name)
        assert tables.table_id(copy.spark, ours) == tables.table_id(copy.spark, theirs)
        at = tables.committed_at(copy.spark, ours, version)
        assert at == tables.committed_at(copy.spark, theirs, version)
    feed = tables.read_changes(copy.spark, copy.path(GOLD), 1, 3)
    rows = feed.select("_commit_version", "_change_type", "name").orderBy("_commit_version").collect()
    assert list(map(tuple, rows)) == [(1, "insert", "a"), (2, "insert", "b"), (3, "insert", "c")]
    for name in (GOLD, DEAD_LETTERS):
        assert sent.noted(copy.spark, copy.path(name), "out") == Progress("id", Position(2))
    assert not (copy.root / "_lakehouse_runs").exists()
    assert not (copy.root / "gold/metrics_1m/_lakehouse_lease").exists()


@pytest.mark.parametrize("to_hadoop", [True, False])
def test_through_hadoop_s_file_systems_a_copy_is_the_same(
    filled: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, to_hadoop: bool
) -> None:
    on_this_machine = storage.on_this_machine

    def elsewhere(spark: SparkSession, path: str) -> Path | None:
        return None if to_hadoop or path.startswith(str(filled.root)) else on_this_machine(spark, path)

    monkeypatch.setattr(storage, "on_this_machine", elsewhere)
    filled.copied_to(tmp_path / "copy")
    again = filled.copied_to(tmp_path / "copy")
    monkeypatch.undo()

    copy = filled.at(tmp_path / "copy")
    assert (copy.counted, pipeline.versions(copy.settings)) == ({"a": 1, "b": 1, "c": 1}, VERSIONS)
    one, other = (tables.committed_at(copy.spark, place.path(GOLD), 1) for place in (filled, copy))
    assert one == other
    assert again.done.files == 0
    assert to_hadoop or not list(copy.root.glob("*/*/.*"))  # neither checksums nor drafts


def test_a_copy_that_was_killed_is_no_lake_until_it_is_finished_by_the_next(
    filled: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = 5
    copy_file = storage.copy

    def killed(spark: SparkSession, source: str, target: str) -> bool:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        return copy_file(spark, source, target)

    monkeypatch.setattr(storage, "copy", killed)
    with pytest.raises(KeyboardInterrupt):
        filled.copied_to(tmp_path / "copy")
    monkeypatch.undo()
    copy = filled.at(tmp_path / "copy")
    with pytest.raises(TableError, match=r"is an unfinished copy of .*: rerun `lakehouse copy` to finish it"):
        markers.refuse_unfinished(copy.lake)

    whole = filled.copied_to(tmp_path / "whole").done.files
    assert filled.copied_to(tmp_path / "copy").done.files == whole - 5
    markers.refuse_unfinished(copy.lake)
    assert filled.at(tmp_path / "copy").counted == {"a": 1, "b": 1, "c": 1}


def test_what_is_written_meanwhile_comes_with_the_next_copy(original: Place, tmp_path: Path) -> None:
    written = list[str]()

    def tell(*_: object) -> None:
        if not written:
            written.append("d")
            original.put("d", 3)

    original.copied_to(tmp_path / "copy", tell)
    copy = original.at(tmp_path / "copy")
    assert (copy.counted, pipeline.versions(copy.settings)) == ({"a": 1, "b": 1, "c": 1}, VERSIONS)

    assert 0 < original.copied_to(tmp_path / "copy").done.files < 10
    assert original.at(tmp_path / "copy").counted == {"a": 1, "b": 1, "c": 1, "d": 1}
    assert original.copied_to(tmp_path / "copy").done.files == 0


def test_what_the_original_has_no_longer_leaves_the_copy_and_so_does_what_was_noted_of_the_copy(
    original: Place, tmp_path: Path
) -> None:
    one = Event("1", NOON, "audit", None, None, None, "x", "h", 1, "0", "of the original", "{}")
    event_table.append(str(original.root), [one])
    original.copied_to(tmp_path / "copy")
    event_table.append(str(tmp_path / "copy"), [replace(one, id="2")])
    original.rewrite_gold()

    original.copied_to(tmp_path / "copy")

    copy = original.at(tmp_path / "copy")
    assert copy.gold_files == original.gold_files
    assert copy.counted == {"a": 2, "b": 2, "c": 2}
    assert [event.id for event in event_table.newest(str(tmp_path / "copy"), limit=9)] == ["1"]


def test_files_that_go_while_they_are_copied_are_looked_for_in_newer_versions(
    original: Place, tmp_path: Path
) -> None:
    rewritten = list[str]()

    def tell(table: str, _done: int, files: int) -> None:
        if table == GOLD and files and not rewritten:
            rewritten.append(table)
            original.rewrite_gold()

    original.copied_to(tmp_path / "copy", tell)

    copy = original.at(tmp_path / "copy")
    assert (copy.counted, pipeline.version_of(copy.settings, GOLD)) == ({"a": 2, "b": 2, "c": 2}, 4)


def test_another_place_is_asked_for_where_something_else_lies(original: Place, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(TableError, match="is not empty and not a copy of a lake; choose another location"):
        original.copied_to(tmp_path / "other")
    with pytest.raises(TableError, match="contains the other"):
        original.copied_to(original.root / "copy")

    original.copied_to(tmp_path / "copy")
    copy, another = original.at(tmp_path / "copy"), original.at(tmp_path / "another")
    another.lake.ensure(SPECS[GOLD])
    with pytest.raises(TableError, match=rf"is a copy of a different lake, or {GOLD} was recreated since"):
        another.copied_to(tmp_path / "copy")
    tables.note(copy.spark, copy.path(SILVER), [Move("me", None, 1)])
    with pytest.raises(TableError, match=rf"^{SILVER} at .* was written to after it was copied"):
        original.copied_to(tmp_path / "copy")


def test_a_copy_is_not_written_to_before_it_is_adopted_and_then_is_a_lake(
    original: Place, tmp_path: Path
) -> None:
    original.copied_to(tmp_path / "copy")
    copy = original.at(tmp_path / "copy")
    with pytest.raises(
        TableError, match=rf"is a copy of {original.root} as of .*run `lakehouse run all --adopt`"
    ):
        markers.refuse_copy(copy.lake)

    note_adoption(copy.lake)
    note_adoption(copy.lake)
    markers.remove(copy.spark, copy.settings.lake)

    for table in (GOLD, DEAD_LETTERS):
        path, shared = copy.path(table), VERSIONS[table]
        adoption = adoption_in(tables.transactions(copy.spark, path))
        assert adoption == Adoption(tables.generation_ms(copy.spark, path), shared)
        assert pipeline.version_of(copy.settings, table) == shared + 1
        DeltaTable.forPath(copy.spark, path).restoreToVersion(shared)
        assert adoption_in(tables.transactions(copy.spark, path)) == adoption
    markers.refuse_copy(copy.lake)
    with pytest.raises(TableError, match="is not a copy, or has already been adopted"):
        note_adoption(copy.lake)


def add_from_outside(place: Place, table: str, version: int) -> Path:
    """Commit a Parquet file that is outside the lake, as only another writer would, and return it."""
    file = place.root.parent / "outside.parquet"
    shutil.copy(min(Path(place.path(table)).glob("*.parquet")), file)
    add = {"path": "../../../outside.parquet", "partitionValues": {}, "size": file.stat().st_size}
    add |= {"modificationTime": 1, "dataChange": True, "stats": '{"numRecords":1}'}
    commit = f"_delta_log/{version:020}.json"
    text = "".join(f"{json.dumps(one)}\n" for one in ({"commitInfo": {"timestamp": 1}}, {"add": add}))
    Path(place.path(table), commit).write_text(text)
    return file


def test_files_outside_of_the_lake_are_neither_read_by_spark_nor_copied_nor_adopted(
    original: Place, tmp_path: Path
) -> None:
    refused = (
        r"version {} of the table at .*/{} names the file '../../../outside.parquet', which lies outside"
    )
    copy = original.at(tmp_path / "elsewhere" / "copy")
    original.copied_to(copy.root)
    add_from_outside(copy, SILVER, 4)
    with pytest.raises(TableError, match=refused.format(4, "silver/metrics_events")):
        note_adoption(copy.at(copy.root).lake)

    add_from_outside(original, BRONZE, 4)
    opened = original.at(original.root)
    assert tables.read(opened.spark, opened.path(BRONZE)).count() == 4  # Delta itself does not mind
    for place in (opened, original.at(original.root)):
        with pytest.raises(TableError, match=refused.format(4, "bronze/metrics_events")):
            place.lake.exists("bronze", "metrics_events")
    with pytest.raises(TableError, match=refused.format(4, "bronze/metrics_events")):
        tables.read_changes(opened.spark, opened.path(BRONZE), 4, 4)
    with pytest.raises(TableError, match=refused.format(4, "bronze/metrics_events")):
        original.copied_to(tmp_path / "another")


def test_the_command_says_what_it_has_copied_and_the_copy_is_left_alone(
    original: Place, tmp_path: Path
) -> None:
    environment = {"LAKEHOUSE_LAKE": str(original.root), "LAKEHOUSE_HOME": str(tmp_path / "home")}
    copy = tmp_path / "copy"

    done = run_command(environment, "copy", "--to", str(copy), spark=original.spark)
    refused = run_command(
        environment | {"LAKEHOUSE_LAKE": str(copy)}, "maintain", "--stream", "metrics", spark=original.spark
    )

    said = rf"{copy} is a copy of {original.root} as of .*: 4 tables; this run copied \d+ files, .*\n"
    assert re.fullmatch(said, done.stdout), done
    assert refused.returncode == 1
    assert f"error: {copy} is a copy of {original.root} as of" in refused.stderr


def test_versions_are_chosen_downstream_first_and_again_if_somebody_repairs_silver(
    original: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest, looked = choosing.newest, list[str]()

    def repairing(lake: Lake, layer: str, name: str) -> int:
        looked.append(f"{layer}.{name}")
        if len(looked) == len(VERSIONS) + 1:  # gold, as its version is chosen; the others follow
            tables.update(lake.spark, original.path(SILVER), F.lit(True), {"count": F.lit(7).cast("long")})
        return newest(lake, layer, name)

    monkeypatch.setattr(choosing, "newest", repairing)
    monkeypatch.setattr(choosing, "_LOOK_S", 0)
    chosen = choosing.choose(original.lake, [STREAM])
    assert [(one.qualified_name, one.version) for one in chosen] == [
        (GOLD, 3),
        (SILVER, 4),
        (DEAD_LETTERS, 0),
        (BRONZE, 3),
    ]
    assert looked == 4 * [GOLD, SILVER, DEAD_LETTERS, BRONZE]
