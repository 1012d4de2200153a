"""Properties hold with the jar's kept plans and files, without them, and switching between them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakehouse.storage.spark import internals
from tests.support.chance import chance

_SHARES = {"at times": 0.5, "always": 1.0, "never": 0.0}
JAR = pytest.mark.parametrize(
    "has_jar",
    ["at times", *(pytest.param(share, marks=pytest.mark.soak) for share in ("always", "never"))],
    indirect=True,
)


@pytest.fixture(scope="module", autouse=True)
def has_jar(request: pytest.FixtureRequest) -> Iterator[None]:
    """Provide the classes of lakehouse/storage/spark/scala/disk for half of their uses, or all, or none.

    It precedes every other fixture of a module, so that what they compute is computed this way too.
    """
    found, draw = internals.compiled, chance(11)
    share = _SHARES[getattr(request, "param", "at times")]

    def compiled(spark: SparkSession, name: str) -> Any | None:
        return found(spark, name) if draw.random() < share else None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(internals, "compiled", compiled)
        yield
