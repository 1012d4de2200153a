"""The lakehouse pytest plugin: fixtures for tests of streams.

    lakehouse_spark   the only Spark session of the run; a conftest can override it
    case              `lakehouse.testing.Case`: records in, literal rows out
    assert_same_gold  `lakehouse.testing.SameGold`: order, micro-batches and crashes do not change gold
    assert_kept       `lakehouse.testing.AssertKept`: a store keeps the promises of the export

A run without these fixtures costs nothing, because Spark is imported only when the first fixture is
requested.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from lakehouse.testing import AssertKept, Case, SameGold


_OF_KAFKA = (
    "ignore:read_text is deprecated:DeprecationWarning:kafka.protocol.schemas.load_json",
    "ignore:open_text is deprecated:DeprecationWarning:importlib.resources._legacy",
)


def pytest_configure(config: pytest.Config) -> None:
    """Silence the Kafka client's warnings. Otherwise, importing a stream would show two hundred of them."""
    for one in _OF_KAFKA:
        config.addinivalue_line("filterwarnings", one)


@pytest.fixture(scope="session")
def lakehouse_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Yield a Spark session for small data. All tests share it, and it can open lakes."""
    from lakehouse.testing.session import small_session

    with small_session(tmp_path_factory.mktemp("lakehouse")) as spark:
        yield spark


@pytest.fixture
def case(lakehouse_spark: SparkSession) -> Case:
    """Run records through a stream, and compare the results with literal rows."""
    from lakehouse.testing.cases import Case

    return Case(lakehouse_spark)


@pytest.fixture
def assert_same_gold(lakehouse_spark: SparkSession) -> SameGold:
    """Assert that the order of records, micro-batch boundaries and retries do not change gold."""
    from lakehouse.testing.same_gold import SameGold

    return SameGold(lakehouse_spark)


@pytest.fixture
def assert_kept(lakehouse_spark: SparkSession, tmp_path: Path) -> AssertKept:
    """Assert that a store keeps a promise, on an empty store and a new lake."""
    from lakehouse.testing.stores import AssertKept

    return AssertKept(lakehouse_spark, tmp_path)
