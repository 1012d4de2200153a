"""What cases are made from: names, times around the edges of windows, numbers at the ends of their range."""

from __future__ import annotations

from hypothesis import strategies as st

DAY_MS = 24 * 3600 * 1000
LATE_MS = -8 * DAY_MS  # beyond the default lateness, once there is a watermark

NAMES = st.sampled_from(["a", "A", "b c", "größe", "検索-🚚", ":"])

DOUBLES = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, 0.1, 0.2, 0.3, -7.5, 1e-300, 5e-324, 1e15, 1e140, -1e140]),
    st.integers(min_value=-3, max_value=3).map(float),
    st.floats(min_value=-1e140, max_value=1e140, allow_nan=False),
)

MONEY = st.one_of(
    st.sampled_from(
        ["1000", "1500", "1300", "1e3", "2E+3", "1999.999999999", "0.000000001", "1e-9", "0.1", "0.2"]
    ),
    st.sampled_from(["8e27", "7999999999999999999999999999.999999999", "8000000000000000000000000000.0000"]),
    st.sampled_from([f"{'9' * 29}.{'9' * 9}", "6e28"]),  # two of them are beyond decimal(38,9)
    st.integers(min_value=1, max_value=3000).map(str),
    st.decimals(min_value="0.000000001", max_value=3000, places=9).map(lambda number: f"{number:f}"),
)
"""Positive numbers as written in JSON, each exactly a decimal(38,9)."""

NO_MONEY = st.sampled_from(
    ["NaN", '"12"', "null", "true", "[1]", "1e29", "1e999", "0.0000000001", "1" + "0" * 29, ""]
)
"""Texts in place of a number that are refused, or that break the JSON around them."""


def around_windows(length_ms: int) -> st.SearchStrategy[int]:
    """Draw milliseconds after a start: edges and middles of windows, anywhere within hours, and too late."""
    edges = st.builds(
        lambda window, offset: window * length_ms + offset,
        st.sampled_from([0, 1, 2, 11, 12, 13, 48]),
        st.sampled_from([-1, 0, 1, length_ms // 2, length_ms - 1]),
    )
    anywhere = st.integers(min_value=0, max_value=9 * 3600 * 1000)
    return st.one_of(edges, edges, anywhere, st.just(LATE_MS))
