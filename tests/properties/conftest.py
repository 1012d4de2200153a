"""Properties hold with the jar's kept plans and files, without them, and switching between them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakehouse.storage.spark import internals
from tests.properties.jar import AT_TIMES, SHARES
from tests.support.chance import chance


@pytest.fixture(scope="module", autouse=True)
def has_jar(request: pytest.FixtureRequest) -> Iterator[None]:
    """Provide the jar's classes for half of their uses, or all, or none.

    It precedes every other fixture of a module, so that what they compute is computed this way too.
    """
    found, draw = internals.compiled, chance(11)
    share = SHARES[getattr(request, "param", AT_TIMES)]

    def compiled(spark: SparkSession, name: str) -> Any | None:
        return found(spark, name) if draw.random() < share else None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(internals, "compiled", compiled)
        yield
