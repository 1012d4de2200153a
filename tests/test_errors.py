"""The one line that is told of an error."""

from __future__ import annotations

from lakehouse.errors import first_line


def test_the_first_line_ends_where_people_see_it_end() -> None:
    assert first_line("\n no column a\u2028b\u0085c \nat Frame.java") == "no column a\u2028b\u0085c"
    assert first_line("") == "no message"
