"""Fingerprints of ids: whether a hash occurs and on which days, compared with a plain dictionary."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import UTC, datetime
from unittest.mock import patch

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.engine.layers import fingerprints
from lakehouse.engine.layers.fingerprints import LAST_DAY, Fingerprints, Packed, repeated, spans

HASHES = st.sampled_from([0, 1, 2, 3, 2**47 - 1, -1, -(2**47)])  # signed 48-bit integers
DAYS = st.sampled_from([0, 1, 20_000, 20_001, LAST_DAY])
GIVEN = st.lists(st.tuples(HASHES, DAYS), max_size=12)


def packed(given_: list[tuple[int, int]]) -> Packed:
    return np.array([(hash_ << 16) | day for hash_, day in given_], np.int64)


@given(st.lists(GIVEN, max_size=4), GIVEN, st.sampled_from([0, 3, 200_000]))
def test_it_finds_the_hashes_that_it_was_given_and_their_days(
    added: list[list[tuple[int, int]]], asked: list[tuple[int, int]], few: int
) -> None:
    known = defaultdict[int, set[int]](set)
    with patch.object(fingerprints, "_RECENT", few):
        first, *more = added or [[]]
        set_ = Fingerprints(packed(first))
        for one in more:
            set_.add(packed(one))
        found, days = set_.found(packed(asked)), set_.days(packed(asked))
    for hash_, day in (pair for one in added for pair in one):
        known[hash_].add(day)

    assert len(set_) == sum(map(len, added))
    assert found.tolist() == [hash_ in known for hash_, _ in asked]
    assert days == sorted({day for hash_, _ in asked if hash_ in known for day in known[hash_]})


@given(GIVEN)
def test_a_hash_is_repeated_whatever_its_days(asked: list[tuple[int, int]]) -> None:
    times = Counter(hash_ for hash_, _ in asked)

    assert repeated(packed(asked)).tolist() == [times[hash_] > 1 for hash_, _ in asked]


def test_neighbouring_days_are_one_span_and_the_first_and_the_last_have_no_end() -> None:
    assert spans([]) == []
    assert spans([20_483, 20_484, 20_486]) == [
        (datetime(2026, 1, 30, tzinfo=UTC), datetime(2026, 2, 1, tzinfo=UTC)),
        (datetime(2026, 2, 2, tzinfo=UTC), datetime(2026, 2, 3, tzinfo=UTC)),
    ]
    assert spans([0, 1, LAST_DAY]) == [
        (None, datetime(1970, 1, 3, tzinfo=UTC)),
        (datetime(2149, 6, 6, tzinfo=UTC), None),
    ]
