"""Properties hold with the jar's kept plans and files, without them, and switching between them."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakehouse.storage.spark import internals
from tests.support.chance import chance

_SHARES = {"at times": 0.5, "always": 1.0, "never": 0.0}


@pytest.fixture(
    autouse=True,
    params=["at times", *(pytest.param(share, marks=pytest.mark.soak) for share in ("always", "never"))],
)
def has_jar(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Provide the classes of lakehouse/storage/spark/scala/disk for some, all or none of their uses."""
    found, draw, share = internals.compiled, chance(11), _SHARES[request.param]

    def compiled(spark: SparkSession, name: str) -> Any | None:
        return found(spark, name) if draw.random() < share else None

    monkeypatch.setattr(internals, "compiled", compiled)
