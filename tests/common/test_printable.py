"""How other systems' text is shown in a terminal or a log."""

from __future__ import annotations

import json

import pytest

from lakehouse.common.printable import indented, printable, printable_json

EVIL = "a\x1b[2J\x9b1m\u202egp\u2066\u2028x\x7f\n\ud800\u200bé"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain [red]text[/] é 漢 🙂 \\n", "plain [red]text[/] é 漢 🙂 \\n"),
        ("\x00\x07\x1b[2K\r", r"\x00\x07\x1b[2K\r"),
        ("a\nb\tc", r"a\nb\tc"),
        ("\x7f\x85\x9b31m", r"\x7f\x85\x9b31m"),
        ("\u202eevil\u202c\u2066\u2069\u200e", r"\u{202e}evil\u{202c}\u{2066}\u{2069}\u{200e}"),
        ("\u2028\u2029\u200b\ufeff\u00a0", r"\u{2028}\u{2029}\u{200b}\u{feff}\xa0"),
        ("\ud800\U000e0041", r"\u{d800}\u{e0041}"),
    ],
)
def test_unprintable_characters_are_escaped_and_others_are_not(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_lines_after_the_first_are_indented() -> None:
    assert indented("one\x1b\n\ttwo\r\n") == [r"one\x1b", r"        two\r"]


def test_json_escapes_what_is_not_printable_and_is_the_same_value() -> None:
    value = {EVIL: [EVIL, 1, None, "\U000e0041"]}
    text = printable_json(value, indent=1)
    assert json.loads(text) == value
    assert "é" in text
    assert r"\u001b[2J\u009b1m\u202egp\u2066\u2028x\u007f\n\ud800\u200b" in text
    assert text.replace("\n", "").isprintable()
