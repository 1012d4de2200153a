"""How often properties have the classes of lakehouse/storage/spark/scala/disk: see the fixture has_jar."""

from __future__ import annotations

import pytest

SHARES = {"at times": 0.5, "always": 1.0, "never": 0.0}
AT_TIMES = "at times"
EACH_SHARE = pytest.mark.parametrize(
    "has_jar",
    [AT_TIMES, *(pytest.param(share, marks=pytest.mark.soak) for share in ("always", "never"))],
    indirect=True,
)
"""Make test has them at times, make soak also always and never."""
