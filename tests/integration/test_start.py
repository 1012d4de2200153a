"""Where a topic is first read from: its end or a time, decided once, and known to the audit."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from lakehouse.common.errors import SettingsError
from lakehouse.engine.runtime.runner import RunOptions, run
from lakehouse.engine.runtime.triggers import AVAILABLE_NOW
from lakehouse.operations.audit.landing import check_landing
from lakehouse.settings import Settings
from lakehouse.storage.tables import Lake
from lakehouse.streams.registry import read_settings
from tests.support import pipeline
from tests.support.pipeline import Raw
from tests.support.settings import MakeSettings
from tests.support.streams import TRANSACTIONS, under, with_streams

SOURCE = TRANSACTIONS.sources[0]
BRONZE = "bronze.transactions"
NOON_MS = 1_772_366_400_000  # 2026-03-01T12:00:00Z


def sent(settings: Settings, *values: str) -> None:
    """Send each value as a record, timestamped that many hours after noon."""
    records = [Raw(one.encode(), timestamp_ms=NOON_MS + 3_600_000 * int(one)) for one in values]
    pipeline.send(settings, records, SOURCE)


def landed(spark: SparkSession, settings: Settings, notices: list[str] | None = None) -> list[str]:
    """Run bronze, and return the values in its table."""
    options = RunOptions(AVAILABLE_NOW, on_notice=(notices if notices is not None else []).append)
    run(Lake(spark, settings.lake), [under(settings, TRANSACTIONS)], ["bronze"], settings, options)
    return sorted(row["value"].decode() for row in pipeline.rows_of(settings, BRONZE))


def audited(spark: SparkSession, settings: Settings) -> tuple[int, tuple[str, ...]]:
    topic = settings.topic(SOURCE.topic)
    (check,) = check_landing(Lake(spark, settings.lake), TRANSACTIONS, SOURCE, topic, settings.kafka.access)
    return check.differences, tuple(check.notes)


def test_a_topic_is_begun_at_its_end_once(spark: SparkSession, make_settings: MakeSettings) -> None:
    settings = make_settings({"kafka.topic_partitions": 1, "streams": {"transactions": {"start": "latest"}}})
    sent(settings, "1", "2")
    notices = list[str]()

    assert landed(spark, settings, notices) == []
    sent(settings, "3")  # while nothing was running
    assert landed(spark, settings, notices) == ["3"]

    topic = settings.topic(SOURCE.topic)
    assert notices == [
        (
            f"{BRONZE} begins at offsets 0:2 of {topic}, as set by the source's key `start` (latest); "
            "earlier records are skipped"
        )
    ]
    why = f"{topic}-0: offsets before 2 were skipped (the source's key `start`)"
    differences, notes = audited(spark, settings)
    assert differences == 0
    assert why in notes


def test_a_topic_is_begun_at_a_time_and_a_partition_without_one_at_its_end(
    spark: SparkSession, make_settings: MakeSettings
) -> None:
    settings = make_settings(
        {"kafka.topic_partitions": 1, "streams": {"transactions": {"start": "2026-03-01T13:30:00Z"}}}
    )
    sent(settings, "0", "1", "2", "3")
    assert landed(spark, settings) == ["2", "3"]
    # A changed start has no effect: the table knows how far it has read.
    later = with_streams(settings, transactions={"start": "latest"})
    sent(later, "4")
    assert landed(spark, later) == ["2", "3", "4"]
    assert audited(spark, later)[0] == 0


def test_a_start_that_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEHOUSE_STREAMS", '{"transactions": {"start": "newest"}}')
    with pytest.raises(SettingsError) as refused:
        read_settings()
    message = (
        "streams.transactions.start = 'newest': 'newest' is not a time; expected ISO 8601 with an offset, "
    )
    assert str(refused.value).startswith(message)
