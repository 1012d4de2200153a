"""How far a query has read, as transaction names and numbers; without Spark."""

from __future__ import annotations

from itertools import pairwise

from lakehouse.engine.progress.positions import (
    BEFORE_ALL,
    application,
    beginning_in,
    moves,
    offset_moves,
    offsets_in,
    position_in,
    sources_in,
    topic_source,
)
from lakehouse.storage.tables.specs import Move, Position

SILVER = "silver.metrics_events"


def noted(*taken: tuple[Move, ...]) -> dict[str, int]:
    """Return what a table has recorded after commits with these moves; each must find what it expects."""
    found: dict[str, int] = {}
    for each in taken:
        for move in each:
            assert found.get(move.application) == move.before
            assert move.after is not None
            found[move.application] = move.after
    return found


def test_a_query_and_its_source_are_named_and_the_table_filled_last_where_there_are_two() -> None:
    assert application(SILVER, "a1") == "silver.metrics_events reads a1"
    assert application(SILVER, "a1", of="b2") == "silver.metrics_events of b2 reads a1"


def test_positions_are_ordered_and_the_files_of_a_version_come_before_the_next_one() -> None:
    rising = [Position(3), Position(3, 0), Position(3, 1), Position(3, 9), Position(4), Position(4, 0)]

    for one, next_ in pairwise(rising):
        assert one.is_before(next_)
        assert not next_.is_before(one)
    assert not Position(3, 1).is_before(Position(3, 1))
    assert [str(one) for one in rising[:3]] == ["3", "0 files of 3", "1 files of 3"]


def test_what_has_been_read_from_the_first_commit_on_is_one_number() -> None:
    app = application(SILVER, "a1")
    first = moves(app, {}, BEFORE_ALL, Position(5))
    there = noted(first)

    assert first == (Move(app, None, 5),)
    assert position_in(there, app) == Position(5)
    assert beginning_in(there, app) is None
    assert moves(app, there, Position(5), Position(6)) == (Move(app, 5, 6),)
    assert position_in(there, application("silver.other", "a1")) is None


def test_what_begins_with_the_rows_of_a_version_notes_its_files_and_then_that_it_has_all_of_them() -> None:
    app = application(SILVER, "a1")
    first = moves(app, {}, Position(7, 0), Position(7, 2))
    second = moves(app, noted(first), Position(7, 2), Position(7, 5))
    last = moves(app, noted(first, second), Position(7, 5), Position(8))
    after = moves(app, noted(first, second, last), Position(8), Position(9))

    assert first == (Move(f"{app}@7", None, 2),)
    assert position_in(noted(first), app) == Position(7, 2)
    assert position_in(noted(first, second), app) == Position(7, 5)
    assert position_in(noted(first, second, last), app) == Position(8)
    assert position_in(noted(first, second, last, after), app) == Position(9)
    assert beginning_in(noted(first, second, last), app) == Position(7, 0)


def test_all_files_in_one_micro_batch_still_say_that_they_were_files() -> None:
    app = application(SILVER, "a1", of="b2")
    only = noted(moves(app, {}, Position(7, 0), Position(8)))

    assert position_in(only, app) == Position(8)
    assert beginning_in(only, app) == Position(7, 0)


def test_the_sources_of_a_query_are_those_that_it_has_noted() -> None:
    there = {
        application(SILVER, "a1"): 5,
        f"{application(SILVER, 'a2')}@3": 1,
        application(SILVER, "a3", of="b2"): 5,
        application("silver.metrics", "a4"): 5,
    }

    assert sources_in(there, SILVER) == {"a1", "a2"}
    assert sources_in(there, SILVER, of="b2") == {"a3"}


def test_each_partition_of_a_topic_has_its_offset_and_only_those_that_moved_are_noted() -> None:
    source = topic_source("metrics-events", "x1")
    first = offset_moves("bronze.a", source, {}, {0: 3, 12: 0})
    second = offset_moves("bronze.a", source, {0: 3, 12: 0}, {0: 3, 12: 7})

    assert first == (
        Move("bronze.a reads metrics-events:x1/0", None, 3),
        Move("bronze.a reads metrics-events:x1/12", None, 0),
    )
    assert second == (Move("bronze.a reads metrics-events:x1/12", 0, 7),)
    there = noted(first, second)
    assert offsets_in(there, "bronze.a", source) == {0: 3, 12: 7}
    assert offsets_in(there, "bronze.a", topic_source("metrics-events", "x2")) == {}
    assert topic_source("metrics-events", None) == "metrics-events:-"
