"""The search for many byte sequences at once, against Python's `in`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.operations.erasure.matching import Matcher
from lakehouse.operations.erasure.readings import readings, unescaped

FEW_BYTES = st.lists(st.sampled_from(b"ab\x00"), max_size=40).map(bytes)
"""Bytes in which the same sequences occur again and again."""


@pytest.mark.cases
@given(data=FEW_BYTES, needles=st.sets(FEW_BYTES.filter(lambda one: 4 <= len(one) <= 20), max_size=12))
def test_it_finds_every_place_that_python_finds(data: bytes, needles: set[bytes]) -> None:
    places = {(at, one) for one in needles for at in range(len(data)) if data[at:].startswith(one)}

    found = list(Matcher(needles).find(data))

    assert sorted(found) == sorted(places)
    assert {one for _, one in found} == {one for one in needles if one in data}


def test_sequences_that_end_alike_or_contain_each_other_are_all_found() -> None:
    needles = {b"user-4711", b"er-4711", b"-4711", b"4711", b"other-user-4711"}

    found = sorted(Matcher(needles).find(b"xuser-4711x"))

    assert found == [(1, b"user-4711"), (3, b"er-4711"), (5, b"-4711"), (6, b"4711")]


def test_a_sequence_that_would_occur_in_any_file_is_refused() -> None:
    with pytest.raises(ValueError, match="too short"):
        Matcher([b"abc"])


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (rb"caf\u00e9", "café"),
        (rb"caf\\u00e9", "café"),
        (rb"a\/b\"c\\d", 'a/b"c\\d'),
        (rb"\ud83d\ude00", "😀"),
        (rb"\\\\ud83d\\\\ude00", "😀"),
        (b"caf%C3%A9", "café"),
        (b"caf%25C3%25A9", "café"),
        (rb"C:\New", r"C:\New"),
    ],
)
def test_the_readings_of_a_text_are_without_its_escapes(text: bytes, read: str) -> None:
    assert read.encode() in list(readings(text))


def test_half_of_a_surrogate_pair_and_other_backslashes_stay() -> None:
    assert unescaped(rb"\ud83d\x \u12 \q") == b"\xed\xa0\xbd" + rb"\x \u12 \q"
