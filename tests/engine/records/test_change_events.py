"""A third party's feed: change events in the format of Wikimedia's stream of recent changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pyspark.sql import SparkSession

from lakehouse.streams.contract import Contract
from tests.support.change_events import CHANGES, CLEAN, REFUSED
from tests.support.judged import judged

BY_SECONDS = replace(CHANGES, event_time="timestamp", event_time_unit="s")


@pytest.mark.parametrize("contract", [CHANGES, BY_SECONDS], ids=["by meta.dt", "by timestamp"])
def test_change_events_of_all_shapes_are_rows_as_they_are(spark: SparkSession, contract: Contract) -> None:
    rows = judged(spark, contract, [(None, text.encode()) for text in CLEAN])

    for row, expected in zip(rows, CLEAN.values(), strict=True):
        assert row.reasons == []
        seconds = {"event_time": 1_767_225_598_000_000} if contract == BY_SECONDS else {}
        assert {name: row[name] for name in expected} == expected | seconds


def test_change_events_that_break_the_contract_have_every_reason(spark: SparkSession) -> None:

    rows = judged(spark, CHANGES, [(None, text.encode()) for text in REFUSED])

    assert [[(one.rule, one.column) for one in row.reasons] for row in rows] == list(REFUSED.values())
