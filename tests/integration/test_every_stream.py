"""What holds for every stream and every layer of it: a rerun changes nothing, a crash costs nothing."""

from __future__ import annotations

import pytest

from lakehouse.streams import STREAMS
from tests.chaos.files import QUERIES, TABLES
from tests.journey import CRASHES, EVENTS, MALFORMED, Journey

EVERY_QUERY = {query for queries in QUERIES.values() for query in queries}


@pytest.mark.slow
def test_a_micro_batch_that_runs_again_writes_nothing_again(journey: Journey) -> None:
    assert set(journey.done["first"]) == EVERY_QUERY
    assert set(journey.versions["first"]) == set(TABLES)
    assert min(journey.versions["first"].values()) > 0
    assert journey.done["repeated"] == dict.fromkeys(EVERY_QUERY, 1)
    assert journey.versions["repeated"] == journey.versions["first"]
    assert journey.messages["repeated"] == journey.messages["first"]
    assert min(journey.messages["first"].values()) > 0


@pytest.mark.slow
def test_after_crashes_every_row_message_and_redis_key_is_the_oracles(journey: Journey) -> None:
    assert set(journey.done["crashed"]) == EVERY_QUERY
    again = {query: journey.done["crashed"][query] for query in CRASHES.values()}
    assert min(again.values()) >= 2, again  # one of them again
    assert journey.differences == []
    books = journey.books
    assert books.sent == books.clean + books.dead == len(STREAMS) * 2 * EVENTS
    assert books.dead == len(STREAMS) * 2 * MALFORMED
    for topic, messages in journey.messages["crashed"].items():
        assert messages > journey.messages["first"][topic], topic
