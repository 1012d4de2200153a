"""In every layer of every stream, a rerun changes nothing and a crash costs nothing."""

from __future__ import annotations

import pytest

from lakehouse.common.rows_as_text import plain_rows
from lakehouse.operations.catalog import duckdb_sql as duck
from lakehouse.operations.catalog.spark_sql import ask, define_views
from lakehouse.storage.tables import Lake
from tests.chaos.files import QUERIES, TABLES
from tests.support.journey import CRASHES, EVENTS, MALFORMED, Journey
from tests.support.streams import STREAMS

pytestmark = pytest.mark.soak

EVERY_QUERY = {query for queries in QUERIES.values() for query in queries}


@pytest.mark.slow
def test_a_rerun_with_nothing_new_writes_nothing(journey: Journey) -> None:
    assert {query for query, _ in journey.done["first"]} == EVERY_QUERY
    assert set(journey.versions["first"]) == set(TABLES)
    assert min(journey.versions["first"].values()) > 0
    assert journey.done["repeated"] == {}
    assert journey.versions["repeated"] == journey.versions["first"]
    assert journey.messages["repeated"] == journey.messages["first"]
    assert min(journey.messages["first"].values()) > 0


@pytest.mark.slow
def test_a_step_that_fails_behind_its_write_is_made_anew_and_writes_nothing_again(journey: Journey) -> None:
    failed = [f"{query} failed; retrying in 1 s: CrashError: {query}" for query in CRASHES.values()]
    recovered = [f"{query} works again" for query in CRASHES.values()]
    assert sorted(journey.notices) == sorted((*failed, *recovered))
    assert {query for query, _ in journey.done["crashed"]} == EVERY_QUERY
    again = {one: times for one, times in journey.done["crashed"].items() if one[1] is not None and times > 1}
    assert again == {}


@pytest.mark.slow
def test_after_crashes_every_row_message_and_redis_key_is_the_oracles(journey: Journey) -> None:
    assert journey.differences == []
    books = journey.books
    assert books.sent == books.clean + books.dead == len(STREAMS) * 2 * EVENTS
    assert books.dead == len(STREAMS) * 2 * MALFORMED
    for topic, messages in journey.messages["crashed"].items():
        assert messages > journey.messages["first"][topic], topic


@pytest.mark.slow
def test_duckdb_reads_every_table_as_spark_does(journey: Journey) -> None:
    lake = Lake(journey.spark, journey.settings.lake)
    for table in define_views(lake, STREAMS):
        ours = duck.ask(lake.root, STREAMS, f"SELECT * FROM {table}", limit=10_000)
        theirs = ask(journey.spark, f"SELECT * FROM {table}", limit=10_000)
        assert ours.schema.simpleString() == theirs.schema.simpleString(), table
        assert sorted(map(str, plain_rows(ours))) == sorted(map(str, plain_rows(theirs)))
