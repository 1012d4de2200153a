"""The offsets from which the newest records of a topic are read."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from lakehouse.storage.kafka.newest import begins


@pytest.mark.parametrize(
    ("first", "begin", "missing", "found"),
    [
        ({0: 0, 1: 0}, {0: 10, 1: 10}, 4, {0: 8, 1: 8}),
        ({0: 0, 1: 0}, {0: 10, 1: 1}, 4, {0: 7, 1: 0}),
        ({0: 5, 1: 0, 2: 3}, {0: 6, 1: 9, 2: 3}, 5, {0: 5, 1: 5, 2: 3}),
        ({0: 5, 1: 0}, {0: 6, 1: 1}, 5, {0: 5, 1: 0}),
        ({0: 0, 1: 0, 2: 0}, {0: 9, 1: 9, 2: 9}, 1, {0: 8, 1: 9, 2: 9}),
        ({0: 0}, {0: 9}, 0, {0: 9}),
    ],
)
def test_other_partitions_make_up_for_those_with_few_records(
    first: Mapping[int, int], begin: Mapping[int, int], missing: int, found: Mapping[int, int]
) -> None:
    assert begins(first, begin, missing) == found
