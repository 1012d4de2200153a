"""The table of services' metrics is known by what it contains, whatever its name."""

from __future__ import annotations

from lakehouse.streams.definition import Stream
from lakehouse.streams.kinds import Windows, windowed_statistics
from lakehouse.streams.transforms.windows import service_metrics
from tests.support.streams import METRICS_1M, STREAMS


def stream(*windows: Windows) -> Stream:
    return windowed_statistics("load", "load", value="value", windows=windows)


def test_the_built_in_table_is_the_one() -> None:
    assert service_metrics(STREAMS) is METRICS_1M
    assert service_metrics([one for one in STREAMS if one.name != "metrics"]) is None


def test_one_of_another_stream_has_any_name_but_the_same_key_and_length() -> None:
    key = ("serviceId", "metricName")
    minutes, hours = Windows(by=key, length="60s", gold_table="loads"), Windows(by=key, length="1h")
    by_host = Windows(by=("hostId", "metricName"), length="1m")
    finer = Windows(by=("zone", *key), length="1m")

    found = service_metrics([stream(hours, by_host), stream(finer, minutes)])

    assert found is not None
    assert found.name == "loads"
    assert service_metrics([stream(hours, by_host, finer)]) is None
