"""The validator that the tests of all suites share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.expectations.validator import Validator


@pytest.fixture(scope="package")
def validator(spark: SparkSession) -> Iterator[Validator]:
    validator = Validator(spark)
    yield validator
    validator.drop_views()
