"""What a query reads next, given the positions in the tables that it fills; real Delta tables, no stream."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakehouse.common.errors import PositionError, TableError
from lakehouse.engine.progress import parts
from lakehouse.engine.progress.reading import Filled, InMemory, Reading, Taken
from lakehouse.storage import tables
from lakehouse.storage.tables import Move, Position, lasting
from tests.support import pipeline
from tests.support.damage import as_in_a_new_process, damage, newest_commit

QUERY = "silver.numbers"


@dataclass
class Place:
    """A source `in` of numbers, and two tables filled from it: first `beside`, then `out`."""

    spark: SparkSession
    root: Path

    def __post_init__(self) -> None:
        for name in ("in", "beside", "out"):
            self.make(name)

    def make(self, name: str) -> None:
        self.spark.sql(
            f"CREATE TABLE delta.`{self.path(name)}` (n LONG) USING delta "
            "TBLPROPERTIES ('delta.enableDeletionVectors' = 'false')"
        )

    def path(self, name: str) -> str:
        return str(self.root / name)

    def land(self, *numbers: int) -> int:
        """Append numbers in one commit, and return its version."""
        rows = self.spark.createDataFrame([(n,) for n in numbers], "n LONG").coalesce(1)
        return tables.append(rows, self.path("in")).version or 0

    def reading(self, *, max_bytes: int = 1 << 40) -> Reading:
        return Reading(
            self.spark,
            QUERY,
            {"bronze.numbers": self.path("in")},
            Filled(QUERY, self.path("out")),
            (Filled("silver.letters", self.path("beside")),),
            max_bytes,
        )

    def take(self, reading: Reading | None = None) -> list[int] | None:
        """Take the next micro-batch, write it to both tables, and return its numbers."""
        taken = (reading or self.reading()).next({})
        if taken is None:
            return None
        self.write_beside(taken)
        self.write(taken)
        return numbers(taken)

    def write_beside(self, taken: Taken) -> None:
        (moves,) = taken.beside
        if moves is not None:
            tables.append(taken.rows["bronze.numbers"], self.path("beside"), moves)

    def write(self, taken: Taken) -> None:
        tables.append(taken.rows["bronze.numbers"], self.path("out"), taken.moves)

    def rows(self, name: str) -> list[int]:
        return sorted(row.n for row in tables.read(self.spark, self.path(name)).collect())


def numbers(taken: Taken | None) -> list[int]:
    assert taken is not None
    return sorted(row.n for row in taken.rows["bronze.numbers"].collect())


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> Place:
    return Place(spark, tmp_path)


def test_each_micro_batch_begins_where_the_last_one_ended_whoever_looks(place: Place) -> None:
    assert place.take() is None
    place.land(1, 2)
    place.land(3)
    assert place.take() == [1, 2, 3]
    assert place.take() is None
    place.land(4)
    assert place.take() == [4]
    assert place.reading().position("bronze.numbers") == Position(4)
    assert place.rows("out") == place.rows("beside") == [1, 2, 3, 4]


def test_a_micro_batch_takes_as_many_commits_as_fit_and_at_least_one(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        place.land(number)
    reading = place.reading(max_bytes=1)
    assert [place.take(reading) for _ in range(3)] == [[0], [1], [2]]
    monkeypatch.setattr(parts, "MOST_COMMITS", 1)
    assert [place.take() for _ in range(3)] == [[3], [4], None]


def test_a_micro_batch_that_was_killed_between_its_commits_is_taken_again_exactly(place: Place) -> None:
    place.land(1)
    place.take()
    place.land(2)
    first = place.reading().next({})
    assert first is not None
    assert not first.is_resumed
    place.write_beside(first)
    place.land(3)

    again = place.reading(max_bytes=1).next({})

    assert again is not None
    assert (again.is_resumed, again.beside) == (True, (None,))
    assert numbers(again) == [2]
    place.write(again)
    assert place.take() == [3]
    assert place.rows("out") == [1, 2, 3]


@pytest.mark.soak
def test_the_very_first_micro_batch_is_taken_again_exactly_too(place: Place) -> None:
    """Start with the first commit and then, after an update, with a version's files."""
    for rewritten in (False, True):
        if rewritten:
            for name in ("beside", "out"):
                shutil.rmtree(place.path(name))
                place.make(name)
            place.spark.sql(f"UPDATE delta.`{place.path('in')}` SET n = n * 10")
        place.land(1)
        first = place.reading(max_bytes=1).next({})
        assert first is not None
        place.write_beside(first)
        place.land(2)
        again = place.reading(max_bytes=1).next({})
        assert numbers(again) == numbers(first)
        assert again is not None
        place.write(again)
        rest = []
        while (more := place.take(place.reading(max_bytes=1))) is not None:
            rest += more
        assert place.rows("out") == place.rows("in")


@pytest.mark.soak
def test_a_query_begins_with_the_rows_of_a_table_in_parts_and_goes_on_with_its_commits(place: Place) -> None:
    for number in range(3):
        place.land(number)
    place.spark.sql(f"UPDATE delta.`{place.path('in')}` SET n = n + 10 WHERE n = 1")  # no longer an append
    reading = place.reading(max_bytes=1)

    given = [place.take(reading)]
    place.land(5)
    given += [place.take(place.reading(max_bytes=1)) for _ in range(4)]

    assert sorted(n for one in given[:3] for n in one or []) == [0, 2, 11]
    assert given[3:] == [[5], None]
    assert place.rows("out") == [0, 2, 5, 11]


@pytest.mark.soak
def test_what_changes_or_compacts_rows_is_no_micro_batch_and_is_noted_now_and_then(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.land(1)
    place.land(2)
    place.take()
    version = pipeline_version(place, "out")
    reading, table = place.reading(), f"delta.`{place.path('in')}`"
    for statement in (f"OPTIMIZE {table}", *(f"UPDATE {table} SET n = n + 1" for _ in range(2))):
        place.spark.sql(statement)
        assert reading.next({}) is None
    assert pipeline_version(place, "out") == version

    monkeypatch.setattr("lakehouse.engine.progress.reading._NOTED_AFTER", 3)
    taken = place.reading().next({})
    assert taken is not None
    assert (numbers(taken), taken.count) == ([], 0)
    tables.note(place.spark, place.path("out"), taken.moves)
    assert place.reading().next({}) is None
    assert place.reading().position("bronze.numbers") == Position(6)


def test_rows_behind_any_number_of_versions_without_rows_are_found(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "MOST_COMMITS", 2)
    place.land(1)
    place.take()
    reading = place.reading()
    for _ in range(7):
        tables.note(place.spark, place.path("in"), ())
    assert reading.next({}) is None
    place.land(2)

    assert place.take(reading) == [2]
    assert place.take(reading) is None


def test_what_lies_behind_a_version_that_was_asked_for_is_found_later(place: Place) -> None:
    place.land(1)
    place.take()
    place.land(2)
    reading = place.reading()
    assert reading.next({}, {"bronze.numbers": 1}) is None
    assert place.take(reading) == [2]


def test_rows_in_memory_are_taken_if_they_come_next(place: Place) -> None:
    version = place.land(1)
    memory = place.spark.createDataFrame([(1,)], "n LONG")
    reading = place.reading()

    taken = reading.next({"bronze.numbers": InMemory(memory, 1, version)})
    assert taken is not None
    assert taken.rows["bronze.numbers"] is memory
    assert taken.ends == {"bronze.numbers": Position(version + 1)}

    unread = place.land(2)
    taken = reading.next({"bronze.numbers": InMemory(memory, 1, unread)})
    assert taken is not None
    assert taken.rows["bronze.numbers"] is not memory  # version 1 comes first
    assert numbers(taken) == [1, 2]


def test_nothing_behind_a_version_is_taken_if_that_is_asked(place: Place) -> None:
    place.land(1)
    place.land(2)
    taken = place.reading().next({}, {"bronze.numbers": 1})
    assert numbers(taken) == [1]


def test_a_source_that_was_made_again_is_refused_by_name(place: Place) -> None:
    place.land(1)
    place.take()
    shutil.rmtree(place.path("in"))
    place.make("in")
    with pytest.raises(
        PositionError, match=r"^silver.numbers was built from a different bronze.numbers \(id "
    ) as no:
        place.reading().next({})
    assert "bronze.numbers was deleted and recreated" in str(no.value)
    assert f"or delete {place.path('out')} (and the tables made from it) and run again" in str(no.value)


def test_a_source_that_was_put_back_from_an_older_copy_is_refused(place: Place, tmp_path: Path) -> None:
    place.land(1)
    place.take()
    shutil.copytree(place.path("in"), tmp_path / "copy")
    place.land(2)
    place.take()
    shutil.rmtree(place.path("in"))
    shutil.move(tmp_path / "copy", place.path("in"))
    tables_forget(place)
    with pytest.raises(
        PositionError, match=r"has read version 2 of bronze.numbers, whose newest version is 1"
    ):
        place.reading().next({})


def test_a_filled_table_that_was_put_back_from_an_older_copy_is_filled_again(
    place: Place, tmp_path: Path
) -> None:
    place.land(1)
    place.take()
    shutil.copytree(place.path("out"), tmp_path / "copy")
    place.land(2)
    place.take()
    shutil.rmtree(place.path("out"))
    shutil.move(tmp_path / "copy", place.path("out"))
    tables_forget(place)

    taken = place.reading().next({})

    assert taken is not None
    assert taken.is_resumed  # the other table already has this micro-batch
    place.write(taken)
    assert place.rows("out") == place.rows("beside") == [1, 2]


def test_rows_of_unknown_origin_are_refused(place: Place) -> None:
    place.land(1)
    rows = place.spark.createDataFrame([(7,)], "n LONG")
    tables.append(rows, place.path("beside"))
    with pytest.raises(
        PositionError,
        match=r"^silver.numbers has no recorded position, but rows already exist in silver.letters: ",
    ) as no:
        place.reading().next({})
    way_out = f"or delete {place.path('beside')} (and the tables made from these rows) and run again"
    assert way_out in str(no.value)


@pytest.mark.soak
def test_a_commit_that_log_retention_has_removed_is_named(place: Place) -> None:
    place.land(1)
    place.take()
    path = place.path("in")
    place.spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.checkpointInterval' = '1')")
    place.land(2)
    pipeline.forget_commits(path, before=tables.version_of(place.spark, path))
    with pytest.raises(TableError, match="log retention has removed"):
        place.reading().next({})


def pipeline_version(place: Place, name: str) -> int:
    return tables.version_of(place.spark, place.path(name))


def tables_forget(place: Place) -> None:
    """Clear Delta's cache of logs, because the files have been replaced."""
    place.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]


def lose_newest(place: Place, name: str) -> None:
    """Lose a table's newest commit, as in a power failure, and discard it, as at the next start."""
    damage(newest_commit(place.path(name)), "empty")
    as_in_a_new_process(place.spark)
    lasting.look(Path(place.path(name)), name)


@pytest.mark.soak
def test_a_commit_that_was_lost_after_it_had_been_read_is_refused_and_after_a_new_start_too(
    place: Place,
) -> None:
    place.land(1)
    assert place.take() == [1]
    place.land(2)
    assert place.take() == [2]
    lose_newest(place, "in")
    place.land(2)  # its own source still has it

    for _ in range(2):
        with pytest.raises(
            PositionError,
            match=r"^silver.numbers has read version 2 of bronze.numbers, which a power failure",
        ) as caught:
            place.take()
        assert f"delete {place.path('out')} (and the tables made from it)" in str(caught.value)
        as_in_a_new_process(place.spark)
    assert place.rows("out") == [1, 2]


@pytest.mark.soak
def test_a_commit_that_was_lost_before_it_had_been_read_is_passed_over(place: Place) -> None:
    place.land(1)
    assert place.take() == [1]
    place.land(2)
    lose_newest(place, "in")
    reading = place.reading()
    assert place.take(reading) is None
    moves = [Move(f"{QUERY} reads {tables.table_id(place.spark, place.path('in'))}", 2, 3)]
    tables.note(place.spark, place.path("out"), moves)  # as if another source had rows
    assert place.take() is None
    place.land(2)
    assert place.take() == [2]
    assert place.rows("out") == [1, 2]
