"""The one line that is shown for an error."""

from __future__ import annotations

from lakehouse.common.errors import first_line


def test_the_first_line_ends_where_people_see_it_end() -> None:
    assert first_line("\n no column a\u2028b\u0085c \nat Frame.java") == "no column a\u2028b\u0085c"
    assert first_line("") == "no message"


def test_what_ends_at_a_colon_says_the_rest() -> None:
    assert first_line("Task failed:\n\n  java.io.IOException: no room\n\tat A.b(A.java:1)") == (
        "Task failed: java.io.IOException: no room"
    )
    assert first_line("a row with values:\n - n : 1\n - m : 2\nmore") == "a row with values: n : 1, m : 2"
    assert first_line("one:\ntwo:\nthree\nfour") == "one: two: three"
    assert first_line("nothing follows:\n\n") == "nothing follows"
    assert first_line("nothing but a stack follows:\n\tat A.b(A.java:1)") == "nothing but a stack follows"
    assert len(first_line("a:\n" * 100_000)) < 1_010
    assert first_line("a:\n" + "x" * 5_000) == f"a: {'x' * 999}"
