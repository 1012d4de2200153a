"""transactions over a real Kafka: what users spent in five minutes, and what is no transaction.

One lake takes it all, chapter by chapter; the last chapter is a total that stops the stream.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field

import pytest
from pyspark.sql import SparkSession

from lakehouse.errors import LakehouseError
from lakehouse.layer import LAYERS
from lakehouse.settings import Settings
from lakehouse.streams.transactions import TRANSACTIONS
from tests import pipeline
from tests.pipeline import DEAD_LETTERS, Raw, Row

SOURCE = TRANSACTIONS.sources[0]
WINDOW_MS = 300_000
START_MS = (int(time.time() * 1000) - 3_600_000) // WINDOW_MS * WINDOW_MS
"""The start of a window about an hour ago."""
LAST_MS = WINDOW_MS - 1


def spent(user: str, amount: float | str, after_ms: int = 0) -> Raw:
    """A transaction; an amount that is text stands in the record as it is written."""
    record = f'{{"userId":{json.dumps(user)},"amount":{amount},"timestamp":{START_MS + after_ms}}}'
    return Raw(record.encode(), key=user.encode())


def message(user: str, total: str, count: int, window: int = 0) -> tuple[str, bytes]:
    """What leaves for a user's window, counted from START_MS."""
    start_ms = START_MS + window * WINDOW_MS
    value = (
        f'{{"userId":"{user}","windowStart":{start_ms},"windowEnd":{start_ms + WINDOW_MS},'
        f'"totalAmount":{total},"count":{count}}}'
    )
    return user, value.encode()


REFUSED = {
    spent("zero", 0): [("not_positive", "amount")],
    spent("minus zero", "-0.0"): [("not_positive", "amount")],
    spent("negative", -12.5): [("not_positive", "amount")],
    Raw(b'{"userId":"missing"}'): [("missing_field", "amount")],
    spent("null", "null"): [("null_field", "amount")],
    spent("string", '"12.5"'): [("wrong_type", "amount")],
    spent("NaN", "NaN"): [("not_json", None)],
    spent("much", "1e29"): [("beyond_decimal", "amount")],
    spent("", 0): [("empty_string", "user_id"), ("not_positive", "amount")],
    Raw(None, key=b"nothing"): [("value_null", None)],
}


@dataclass
class Story:
    """The messages that had left after each chapter, the dead letters, and why the last chapter failed."""

    messages: list[list[tuple[str, bytes]]] = field(default_factory=list)
    letters: list[Row] = field(default_factory=list)
    failure: str = ""


@pytest.fixture(scope="module")
def story(spark: SparkSession, module_settings: Settings) -> Story:
    settings, told = module_settings, Story()

    def take(*records: Raw) -> None:
        """Send the records and run every layer."""
        pipeline.send(settings, records, SOURCE)
        pipeline.run_layers(spark, settings, *LAYERS, stream=TRANSACTIONS)
        found = pipeline.read_topic(
            settings.kafka_bootstrap_servers, settings.topic("aggregated-transactions")
        )
        told.messages.append([(one.key.decode(), one.value) for one in found])

    take(
        *REFUSED,
        spent("ann", "0.1"),
        spent("ann", "0.2", LAST_MS),
        spent("ann", "1e3", WINDOW_MS),
        spent("ann", "0.000000001", WINDOW_MS + LAST_MS),
        spent("bob", 12.5),
    )
    take(spent("ann", "2.70", 1000))
    told.letters = pipeline.rows_of(settings, DEAD_LETTERS)
    with pytest.raises(LakehouseError) as caught:
        take(spent("croesus", "6e28"), spent("croesus", "6e28"))
    told.failure = str(caught.value)
    return told


def test_amounts_that_are_not_positive_or_no_numbers_are_dead_letters_with_their_reasons(
    story: Story,
) -> None:
    found = {
        row["value"]: sorted((reason["rule"], reason["column"]) for reason in row["reasons"])
        for row in story.letters
    }

    assert found == {raw.value: rules for raw, rules in REFUSED.items()}
    assert len(story.letters) == len(REFUSED)


def test_amounts_add_up_to_the_last_digit_and_an_earlier_window_can_still_change(story: Story) -> None:
    r"""Two windows of ann's, [0, 5 min) and [5 min, 10 min), and a record for the first that comes later.

    0                       5 min                    10 min
    |0.1-----------------0.2|1e3--------0.000000001|
            2.70
    """
    first, then = story.messages

    assert sorted(first) == sorted(
        [
            message("ann", "0.3", 2),
            message("ann", "1000.000000001", 2, window=1),
            message("bob", "12.5", 1),
        ]
    )
    assert then == [*first, message("ann", "3", 3)]


def test_a_total_that_no_decimal_holds_stops_the_query_and_names_the_user(story: Story) -> None:
    assert "croesus" in story.failure
