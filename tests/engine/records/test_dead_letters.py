"""Finding dead letters and printing their contents; integration/test_commands.py tests the commands."""

from __future__ import annotations

import re
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from typer.testing import CliRunner

from lakehouse.cli.main import app
from lakehouse.cli.reports import dead_letters as report
from lakehouse.common.errors import QueryError, SettingsError
from lakehouse.common.readable import parse_moment, readable
from lakehouse.common.terminal import Console
from lakehouse.engine.records.dead_letters import (
    SCHEMA,
    Selection,
    count_by_rule,
    count_letters,
    find_letter,
    newest_letters,
    refuse_unnamed,
)
from lakehouse.operations.repair.replay import Discarded, Replayed

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("data", "limit", "shown"),
    [
        (None, None, None),
        (b"", None, ""),
        ("größe 🚚".encode(), None, "größe 🚚"),
        (b"a\tb\r\n\x1b[31m\x00\x7f", None, r"a\tb\r\n\x1b[31m\x00\x7f"),
        ("\u202edcba\u200b\u2028".encode(), None, r"\u{202e}dcba\u{200b}\u{2028}"),
        (b"\xff\x00A", None, "0xff0041"),
        (b"x" * 1000, 8, "xxxxxxxx… (1,000 bytes)"),
        (b"\xff" * 1000, 6, "0xffff… (1,000 bytes)"),
        (b"\x1b" * 3, 4, r"\x1b… (3 bytes)"),
        (b"exactly", 7, "exactly"),
    ],
)
def test_raw_bytes_are_shown_on_one_line_that_no_terminal_obeys(
    data: bytes | None, limit: int | None, shown: str | None
) -> None:
    assert readable(data, limit) == shown


def test_a_beginning_may_end_within_a_character() -> None:
    whole = ("é" * 10).encode()
    assert readable(whole[:5], 80, length=20) == "éé… (20 bytes)"
    assert readable(b"\xff" + whole[:4], 80, length=21) == "0xffc3a9c3a9… (21 bytes)"


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("90s", NOON - timedelta(seconds=90)),
        ("15m", NOON - timedelta(minutes=15)),
        ("1h", NOON - HOUR),
        ("7d", NOON - timedelta(days=7)),
        ("2026-03-01T10:00:00Z", NOON - 2 * HOUR),
        ("2026-03-01T12:30:00+05:30", NOON - 5 * HOUR),
    ],
)
def test_a_moment_has_an_offset_or_is_so_long_ago(text: str, moment: datetime) -> None:
    assert parse_moment(text, NOON) == moment


@pytest.mark.parametrize("text", ["", "1", "1 year", "-1h", "2026-03-01T10:00:00", "yesterday", "999999999w"])
def test_what_is_no_moment_is_refused_with_examples(text: str) -> None:
    with pytest.raises(SettingsError, match="is not a time; expected ISO 8601 with an offset, such as 2026-"):
        parse_moment(text, NOON)


@pytest.fixture(scope="module")
def letters(spark: SparkSession) -> DataFrame:
    """Return five letters, an hour apart; the last has a 2,000-byte value and two reasons with one rule."""

    def letter(
        number: int, stream: str, rules: list[str], status: str, value: bytes | None
    ) -> tuple[object, ...]:
        reasons = [(rule, "value", f"{rule} is \x1b[1mbad") for rule in rules]
        seen = NOON + number * HOUR
        place = (f"{stream}-events", number % 2, number * 10)
        raw = (seen, b"k\x07", value, [("h", b"\xff"), ("", None)])
        times = (number, seen, seen)
        return (
            f"{number}abc{number}",
            stream,
            "silver",
            *place,
            *raw,
            reasons,
            status,
            *times,
            "job",
            0,
            "1",
            *(None, None),
            *(seen, None, None, None),
        )

    rows = [
        letter(0, "metrics", ["late"], "open", b"{}"),
        letter(1, "metrics", ["late", "future"], "open", b"\x1b[2J"),
        letter(2, "metrics", ["not_json"], "discarded", b"\xff"),
        letter(3, "sales", ["late"], "replayed", None),
        letter(4, "sales", ["null_field", "null_field"], "open", b"v" * 2000),
    ]
    return spark.createDataFrame(rows, SCHEMA).persist()


@pytest.mark.parametrize(
    ("selection", "numbers"),
    [
        (Selection(), [0, 1, 2, 3, 4]),
        (Selection(streams=("sales",)), [3, 4]),
        (Selection(streams=("sales", "metrics"), rule="late"), [0, 1, 3]),
        (Selection(since=NOON + HOUR, until=NOON + 3 * HOUR), [1, 2]),
        (Selection(topic="metrics-events", partition=0), [0, 2]),
        (Selection(offset=0), [0]),
        (Selection(partition=0, offset=10), []),
        (Selection(id="3abc"), [3]),
    ],
)
def test_all_that_is_given_must_apply(letters: DataFrame, selection: Selection, numbers: list[int]) -> None:
    found = letters.where(selection.condition()).select("attempts").collect()

    assert sorted(row.attempts for row in found) == numbers
    assert selection.is_everything is (numbers == [0, 1, 2, 3, 4])


@pytest.mark.parametrize(
    ("selection", "said"),
    [
        (Selection(topic="nosuch"), "no topic 'nosuch': calls, metrics-events or sales-events"),
        (Selection(topic="cals"), "no topic 'cals': did you mean calls?"),
        (Selection(rule="nul_field"), "no dead-letter rule 'nul_field': did you mean null_field?"),
        (Selection(rule="too_chep"), "no dead-letter rule 'too_chep': did you mean too_cheap?"),
        (Selection(topic="calls", rule="too_cheap"), None),
        (Selection(topic="sales-events", rule="late"), None),
        (Selection(rule="beyond_long"), None),
        (Selection(), None),
    ],
)
def test_a_topic_or_a_rule_that_neither_a_stream_nor_a_letter_has_is_refused_with_the_nearest(
    letters: DataFrame, selection: Selection, said: str | None
) -> None:
    with nullcontext() if said is None else pytest.raises(QueryError, match=f"^{re.escape(said)}$"):
        refuse_unnamed(letters, selection, topics={"calls"}, rules={"too_cheap"})


def test_letters_are_counted_under_each_of_their_rules_once_and_the_largest_counts_come_first(
    letters: DataFrame,
) -> None:
    assert [tuple(row) for row in count_letters(letters)] == [
        ("metrics", "late", "open", 2),
        ("metrics", "future", "open", 1),
        ("metrics", "not_json", "discarded", 1),
        ("sales", "late", "replayed", 1),
        ("sales", "null_field", "open", 1),
    ]
    assert list(count_by_rule(letters).items()) == [
        ("late", 3),
        ("future", 1),
        ("not_json", 1),
        ("null_field", 1),
    ]


def test_counts_of_several_sources_are_added_and_the_largest_come_first() -> None:
    one = Replayed(failed=3, failing={"late": 2, "not_json": 1})
    both = one + Replayed(failed=3, failing={"not_json": 3})
    assert (both.failed, list(both.failing.items())) == (6, [("not_json", 4), ("late", 2)])


def test_a_letter_is_found_by_the_beginning_of_its_id(letters: DataFrame) -> None:
    assert find_letter(letters, "3a").offset == 30
    with pytest.raises(QueryError, match=r"no dead letter whose id begins with '9'; .* lists the letters"):
        find_letter(letters, "9")
    with pytest.raises(QueryError, match="several dead letters have an id that begins with ''; specify more"):
        find_letter(letters, "")


def test_a_list_in_a_pipe_has_whole_ids(
    letters: DataFrame, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    long_id = "0123456789abcdef" * 4
    newest = newest_letters(letters.withColumn("id", F.lit(long_id)), 1, report.VALUE_BYTES)
    report.print_list(count_letters(letters), newest)
    assert f" {long_id} " in capsys.readouterr().out


def test_a_list_cuts_values_and_escapes_what_does_not_print(
    letters: DataFrame, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    newest = newest_letters(letters.where("status = 'open'"), 2, report.VALUE_BYTES)

    report.print_list(count_letters(letters), newest)
    printed = capsys.readouterr().out
    listed = report.listed(count_letters(letters), newest)

    assert "\x1b" not in printed
    assert "4abc4" in printed
    assert "v… (2,000 bytes)" in printed
    assert r"\x1b[2J" in printed
    assert "0abc0" not in printed
    assert listed["counts"][0] == {"stream": "metrics", "rule": "late", "status": "open", "count": 2}
    assert listed["letters"][1] == {
        "id": "1abc1",
        "stream": "metrics",
        "status": "open",
        "topic": "metrics-events",
        "partition": 1,
        "offset": 10,
        "attempts": 1,
        "rules": ["late", "future"],
        "first_seen": "2026-03-01T13:00:00Z",
        "value": r"\x1b[2J",
    }


def test_everything_about_a_letter_is_shown_and_nothing_of_it_reaches_the_terminal_raw(
    letters: DataFrame, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    letter = find_letter(letters, "4")

    report.print_letter(letter)
    printed = capsys.readouterr().out
    whole = report.whole(letter)

    assert "\x1b" not in printed
    assert printed.count("v") > 2000
    assert r"reason null_field" in printed
    assert r"null_field is \x1b[1mbad" in printed
    assert whole["key"] == r"k\x07"
    assert whole["value"] == "v" * 2000
    assert whole["headers"] == [{"key": "h", "value": "0xff"}, {"key": "", "value": None}]
    assert (whole["first_seen"], whole["attempts"]) == ("2026-03-01T16:00:00Z", 4)


@pytest.mark.parametrize("command", ["replay", "discard"])
def test_everything_is_meant_only_where_it_is_said(command: str) -> None:
    unfiltered = CliRunner().invoke(app, ["dead-letters", command])
    both = CliRunner().invoke(app, ["dead-letters", command, "--all", "--rule", "late"])

    assert isinstance(unfiltered.exception, SettingsError)
    assert "specify a filter, such as --rule or --stream, or --all" in str(unfiltered.exception)
    assert isinstance(both.exception, SettingsError)
    assert "--all selects every open dead letter" in str(both.exception)


def test_results_are_printed_by_rule(capsys: pytest.CaptureFixture[str]) -> None:
    report.print_replayed(Replayed(1200, 1, 3, 2, {"late": 2, "not_json": 1}, in_flight=4), Console())
    report.print_discarded(Discarded(2, 0, {"late": 2}), Console())

    assert capsys.readouterr().out.splitlines() == [
        "1,200 passed and are now in silver",
        "1 were already in silver",
        "3 still fail: late 2, not_json 1",
        "2 no longer have a row in bronze and remain open",
        "4 belong to a micro-batch that silver has not finished, and remain open until it has",
        "2 discarded: late 2",
    ]
