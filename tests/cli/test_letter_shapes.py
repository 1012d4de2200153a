"""`lakehouse dead-letters list --by-shape`: its table, and its JSON."""

from __future__ import annotations

import json

import pytest
from pyspark.sql import Row

from lakehouse.cli.reports.dead_letters import print_shapes


def letter(number: int, value: bytes | None, length: int | None = None) -> Row:
    """Return a dead letter as Spark collects it, with the first bytes of its value and its whole length."""
    size = length if value is None or length is not None else len(value)
    reasons = [Row(rule="wrong_type", column="amount", message="")]
    return Row(id=f"{number:064x}", topic="sales", reasons=reasons, value=value, length=size)


def test_letters_of_one_shape_share_a_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    amounts = [
        letter(number, b'{"amount": "12", "\x1b[2J": 1}'.replace(b"\x1b", b"\\u001b")) for number in (1, 2)
    ]
    rows = [*amounts, letter(3, None), letter(4, b'{"amount"', 70_000)]

    print_shapes(rows, as_json=False)

    table = capsys.readouterr().out
    assert "\x1b" not in table
    lines = [line.split("│")[1:-1] for line in table.splitlines() if "sales" in line]
    assert [[cell.strip() for cell in line] for line in lines] == [
        ["2", r'{"\u001b[2J": number, amount: string}', "wrong_type", "sales", "000000000000"],
        ["1", "more than 64 KiB", "wrong_type", "sales", "000000000000"],
        ["1", "no value", "wrong_type", "sales", "000000000000"],
    ]

    print_shapes(rows, as_json=True)

    found = json.loads(capsys.readouterr().out)
    assert (found["letters"], found["is_all"]) == (4, True)
    assert [(one["count"], one["newest"]) for one in found["shapes"]] == [
        (2, {"id": f"{1:064x}"}),
        (1, {"id": f"{4:064x}"}),
        (1, {"id": f"{3:064x}"}),
    ]


def test_a_note_says_if_only_the_newest_letters_are_grouped(capsys: pytest.CaptureFixture[str]) -> None:
    print_shapes([letter(number, b"[]") for number in range(501)], as_json=False)
    assert "only the newest 500 are grouped" in capsys.readouterr().out
    print_shapes([], as_json=False)
    assert capsys.readouterr().out == "no dead letters\n"
