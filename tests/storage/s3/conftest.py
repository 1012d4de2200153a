"""A store for the tests of this package."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import seaweed


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the URL of a SeaweedFS with an empty bucket."""
    with seaweed.running(tmp_path_factory.mktemp("store") / "weed") as endpoint:
        yield endpoint
