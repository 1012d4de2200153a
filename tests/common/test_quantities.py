"""Durations and sizes in text."""

import pytest

from lakehouse.common.quantities import (
    parse_duration_s,
    parse_size_bytes,
    roughly_told_s,
    show_duration,
    show_size,
    told_s,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0s", 0),
        ("90s", 90),
        ("15m", 900),
        ("1h30m", 5400),
        ("24h", 86_400),
        ("7d", 604_800),
        ("2w", 1_209_600),
        ("1d2h3m4s", 93_784),
    ],
)
def test_durations(text: str, seconds: int) -> None:
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "s", "-1s", "1.5h", "30m1h", "1h1h", "1 hour", "1H", "7 d", "٣s", "1s\n"]
)
def test_what_is_not_a_duration(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected a duration, such as 90s, 15m, 1h30m or 7d$"):
        parse_duration_s(text)


def test_a_number_without_a_unit_is_no_duration() -> None:
    with pytest.raises(ValueError, match=r"; 90 has no unit: write 90s$"):
        parse_duration_s("90")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (90, "1m30s"), (5400, "1h30m"), (86_400, "1d"), (604_800, "7d"), (1_209_600, "14d")],
)
def test_a_duration_is_shown_in_its_largest_units(seconds: int, text: str) -> None:
    assert show_duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text", "roughly"),
    [
        (-3, "0 s", "0 s"),
        (0.04, "0 s", "0 s"),
        (0.05, "0.1 s", "0.1 s"),
        (0.4, "0.4 s", "0.4 s"),
        (9.94, "9.9 s", "9.9 s"),
        (9.96, "10 s", "10 s"),
        (59.9, "59 s", "59 s"),
        (61, "1 min 1 s", "1 min"),
        (2_820, "47 min", "47 min"),
        (3_605, "1 h", "1 h"),
        (3_720, "1 h 2 min", "1 h"),
        (90_061, "1 d 1 h", "1 d"),
        (864_000, "10 d", "10 d"),
    ],
)
def test_a_measured_duration_is_told_as_on_the_page(seconds: float, text: str, roughly: str) -> None:
    assert (told_s(seconds), roughly_told_s(seconds)) == (text, roughly)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0B", 0),
        ("100B", 100),
        ("512KB", 524_288),
        ("256MB", 268_435_456),
        ("256 MB", 268_435_456),
        ("2GB", 2_147_483_648),
    ],
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert parse_size_bytes(text) == size_bytes


@pytest.mark.parametrize("text", ["", "MB", "-1MB", "1.5GB", "256m", "1TB", "1  MB", "1MB\n"])
def test_what_is_not_a_size(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected a size, such as 512KB, 256MB or 2GB$"):
        parse_size_bytes(text)


def test_a_number_without_a_unit_is_no_size() -> None:
    with pytest.raises(ValueError, match=r"; 256 has no unit: write 256MB$"):
        parse_size_bytes("256")


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0B"), (1, "1B"), (1536, "1536B"), (524_288, "512KB"), (268_435_456, "256MB"), (1 << 31, "2GB")],
)
def test_a_size_is_shown_in_its_largest_whole_unit(size_bytes: int, text: str) -> None:
    assert show_size(size_bytes) == text
