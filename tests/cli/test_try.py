"""`lakehouse try`: what it shows of a file, and how it exits. It runs in the tests' session."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from lakehouse.cli.commands import try_stream
from lakehouse.cli.main import app
from lakehouse.cli.reports import try_stream as report
from lakehouse.cli.reports.try_stream import Letter, Reason
from lakehouse.common.errors import ServiceError, SettingsError
from lakehouse.common.record_lines import Line, Record
from lakehouse.common.terminal import Console
from lakehouse.engine.records.dead_letters import RULES
from lakehouse.testing import session
from tests.support.processes import QUICK_JVM, ROOT

NOW = "2026-03-29T01:07:00Z"
START_MS = 1_774_746_300_000
"""2026-03-29T01:05:00Z"""

Try = Callable[..., Result]

OWN_STREAM = """
from lakehouse.streams import windowed_sums

ORDERS = windowed_sums("orders", "orders-topic", by="shop", value="price", length="1m")
BROKEN = 3
"""


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Try:
    """Return a function that runs the command in the test's own directory."""
    monkeypatch.setattr(session, "small_session", lambda _home: nullcontext(spark))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(app, ["try", *arguments], input=stdin)

    return run


def lines(*values: object) -> str:
    return "".join(f"{value if isinstance(value, str) else json.dumps(value)}\n" for value in values)


def spent(user: str, amount: object) -> dict[str, object]:
    return {"userId": user, "amount": amount, "timestamp": START_MS}


def test_clean_records_dead_letters_gold_and_messages_are_shown(run: Try) -> None:
    Path("payments.jsonl").write_text(lines(spent("ann", 1.5), "", spent("bob", 0), '{"userId":'))

    ended = run("transactions", "payments.jsonl", "--now", NOW)

    said = [line.strip("│ ") for line in ended.stdout.split("\n")]
    assert ended.exit_code == 1
    assert "silver.transactions, clean records (1)" in said
    assert "1    │ ann     │ 1.500000000 │ 2026-03-29T01:05:00Z" in said
    assert "dead letters, by rule (2)" in said
    assert "not_positive │ amount │ 1       │ 3          │ amount must be above 0, not 0" in said
    assert "dead letters, every reason (2)" in said
    assert "3    │ not_positive │ amount │ amount must be above 0, not 0" in said
    assert """4    │ not_json     │        │ the value is not valid JSON: {"userId":""" in said
    assert "gold.user_transactions_5m (1)" in said
    assert "ann     │ 2026-03-29T01:05:00Z │ 2026-03-29T01:10:00Z │ 1.500000000  │ 1" in said
    assert "gold.user_transactions_5m, sent to aggregated-transactions (1)" in said
    assert any(line.startswith("ann │ {") and '"totalAmount":1.5' in line for line in said)
    assert "3 records, 1 clean, 2 dead letters, 1 message, in" in ended.stdout
    assert "; 2 of 3 records refused (66.7 %); nothing was written or sent" in ended.stdout


@pytest.mark.soak
def test_a_repeated_record_does_not_fail_the_trial(run: Try) -> None:
    Path("lakehouse.toml").write_text('[streams.transactions]\nunique_by = "id"\n')
    Path("payments.jsonl").write_text(lines(*[{"id": "a", **spent("ann", 1.5)}] * 2))

    ended = run("transactions", "payments.jsonl", "--now", NOW)

    assert ended.exit_code == 0, ended.output
    assert "2 records, 1 clean, 1 dead letter (1 closed: repeated, replaced or deleted)," in ended.stdout


def test_a_stream_of_the_working_directory_is_tried_in_json_from_standard_input(run: Try) -> None:
    Path("shop_of_this_test.py").write_text(OWN_STREAM)
    records = lines(*({"shop": "x", "price": price, "timestamp": START_MS} for price in (1, 2.25)))

    ended = run(
        "shop_of_this_test:ORDERS", "-", "--format", "json", "--now", NOW, "--batch", "1", stdin=records
    )

    found = json.loads(ended.stdout)
    assert ended.exit_code == 0
    assert (found["stream"], found["now"], found["records"], found["dead"]) == ("orders", NOW, 2, 0)
    assert (found["dead_letters"], found["by_rule"]) == ([], [])
    assert found["silver"]["orders"][1] == {
        "line": "standard input:2",
        "row": {
            "shop": "x",
            "price": "2.250000000",
            "event_time": "2026-03-29T01:05:00Z",
            "own_time": "2026-03-29T01:05:00Z",
            "topic": "orders-topic",
            "partition": 0,
            "offset": 1,
            "kafka_timestamp": NOW,
            "ingested_at": NOW,
            "admitted": None,
        },
    }
    assert [row["total_price"] for row in found["gold"]["orders_1m"]] == ["3.250000000"]
    totals = [(one["batch"], one["topic"], json.loads(one["value"])["totalPrice"]) for one in found["sent"]]
    assert totals == [(0, "orders-1m", 1), (1, "orders-1m", 3.25)]


@pytest.mark.soak
def test_the_state_of_aggregates_is_not_shown(run: Try) -> None:
    Path("lakehouse.toml").write_text(
        """
[streams.tills]
kind = "sql"
topic = "tills"
tables = [{ by = "shop", aggregates = { sales = "count(*)" } }]
"""
    )
    records = lines({"shop": "x", "timestamp": START_MS})

    ended = run("tills", "-", "--format", "json", "--now", NOW, stdin=records)

    assert json.loads(ended.stdout)["gold"] == {
        "tills_by_shop": [{"shop": "x", "sales": 1, "last_event_time": "2026-03-29T01:05:00Z"}]
    }


@pytest.mark.soak
def test_files_of_several_topics_and_a_clock_that_moves_on(run: Try) -> None:
    call = {"user1": "ann", "user2": "bob", "timestamp": START_MS}
    Path("a.jsonl").write_text(lines(call | {"analytics": "busy"}))
    Path("m.jsonl").write_text(lines(call | {"metrics": 3}))
    files = ("analyticsTopic=a.jsonl", "metricsTopic=m.jsonl")

    opened = json.loads(run("calls", *files, "--format", "json", "--now", NOW).stdout)
    closed = json.loads(
        run("calls", *files, "--format", "json", "--now", NOW, "--later", "2026-03-29T02:00").stdout
    )

    assert [row["status"] for row in opened["gold"]["call_records"]] == ["open"]
    assert opened["sent"] == []
    assert [row["status"] for row in closed["gold"]["call_records"]] == ["closed"]
    (message,) = closed["sent"]
    assert message["key"] == f"ann-bob:{START_MS}"
    assert json.loads(message["value"])["metrics"] == 3


def test_envelopes_give_keys_tombstones_times_and_topics(run: Try) -> None:
    sale = {"topic": "sales-events-v1", "key": "pen", "timestamp_ms": START_MS, "partition": 1}
    Path("sales.jsonl").write_text(
        lines(
            sale | {"value": {"product": "pen", "value": 2500}},
            sale | {"value": None},
            sale | {"value": {"product": "pen", "value": 1}},
            {"value": None},
        )
    )

    found: dict[str, Any] = json.loads(run("sales", "sales.jsonl", "--envelope", "--format", "json").stdout)

    (total,) = found["gold"]["product_sales"]
    assert (total["total"], total["count"], list(total["partitions"])) == ("1.000000000", 1, ["1"])
    assert [row["event_time"] for row in found["gold"]["sales_notifications"]] == ["2026-03-29T01:05:00Z"]
    assert [one["line"] for one in found["dead_letters"]] == ["sales.jsonl:4"]
    assert [(one["rule"], one["records"], one["line"]) for one in found["by_rule"]] == [
        ("key_null", 1, "sales.jsonl:4")
    ]
    assert [one["topic"] for one in found["sent"]] == [None, "notifications-events-v1"]


def letter(number: int, *rules: tuple[str, str | None]) -> Letter:
    reasons = tuple(Reason(rule, column, f"{rule} in line {number}") for rule, column in rules)
    return Letter(Line(Record(b""), "f.jsonl", number), reasons)


def result_of(records: int, *letters: Letter) -> report.Result:
    return report.Result("sales", datetime.fromisoformat(NOW), records, {}, list(letters), {}, [])


def shown(result: report.Result, limit: int) -> list[str]:
    """Return the lines of the report for a terminal, without the frames of tables."""
    out = io.StringIO()
    Console(file=out, width=400).print(report.shown(result, 1.0, limit=limit))
    lines = [line.strip("│ ") for line in out.getvalue().splitlines()]
    return [line for line in lines if line and line[0] not in "┏┃┡└"]


NO_TIME, NO_NUMBER = ("bad_timestamp", "event_time"), ("wrong_type", "value")


def test_the_commonest_rule_comes_first_and_the_limit_takes_from_each_rule() -> None:
    often = [letter(number, NO_TIME) for number in range(5, 0, -1)]
    result = result_of(40, *often, letter(30, NO_NUMBER, NO_NUMBER), letter(20, NO_NUMBER, NO_TIME))

    assert shown(result, 3) == [
        "dead letters, by rule (2)",
        "bad_timestamp │ event_time │ 6       │ 1          │ bad_timestamp in line 1",
        "wrong_type    │ value      │ 2       │ 20         │ wrong_type in line 20",
        f"bad_timestamp: {report.KEYS['bad_timestamp']}",
        f"wrong_type: {report.KEYS['wrong_type']}",
        "dead letters, every reason (9)",
        "1    │ bad_timestamp │ event_time │ bad_timestamp in line 1",
        "2    │ bad_timestamp │ event_time │ bad_timestamp in line 2",
        "20   │ wrong_type    │ value      │ wrong_type in line 20",
        "6 more; --limit 9 shows them",
        (
            "sales: 40 records, 33 clean, 7 dead letters, 0 messages, in 1.0 s; "
            "7 of 40 records refused (17.5 %); nothing was written or sent"
        ),
    ]


def test_a_letter_that_would_be_closed_is_not_refused() -> None:
    closed, both = letter(2, ("duplicate", None)), letter(3, ("duplicate", None), ("late", "event_time"))

    assert shown(result_of(3, closed), 20)[-1] == (
        "sales: 3 records, 2 clean, 1 dead letter (1 closed: repeated, replaced or deleted), 0 messages, in "
        "1.0 s; nothing was written or sent"
    )
    assert "; 1 of 3 records refused (33.3 %); " in shown(result_of(3, closed, both), 20)[-1]


def test_without_dead_letters_no_rule_is_listed() -> None:
    assert shown(result_of(1), 20)[0] == "dead letters, every reason (0)"


def test_json_has_the_same_counts_by_rule() -> None:
    result = result_of(9, letter(4, NO_NUMBER), letter(3, NO_NUMBER, NO_TIME))

    assert report.as_json(result, 1.0)["by_rule"] == [
        {
            "rule": "wrong_type",
            "column": "value",
            "records": 2,
            "line": "f.jsonl:3",
            "message": "wrong_type in line 3",
        },
        {
            "rule": "bad_timestamp",
            "column": "event_time",
            "records": 1,
            "line": "f.jsonl:3",
            "message": "bad_timestamp in line 3",
        },
    ]


def test_advice_says_where_it_does_not_apply() -> None:
    result = result_of(2, letter(1, ("null_field", "value")), letter(2, ("wrong_type", "value")))

    advice = [line for line in shown(result, 9) if line.startswith(("null_field: ", "wrong_type: "))]
    assert advice[0] == (
        "null_field: if null is a valid value, declare required = false (but outside the kind sql, values "
        "and keys are always required)"
    )
    assert advice[1].endswith(
        "other text, such as n/a, fits only a string, from which the kind sql can compute "
        "a number with try_cast"
    )


def test_advice_is_about_rules_that_every_stream_has() -> None:
    assert report.KEYS.keys() <= RULES


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("orders", "f"), "unknown stream orders; known: calls, metrics, sales, transactions"),
        (("nowhere:ORDERS", "f"), "nowhere:ORDERS, which failed: ModuleNotFoundError"),
        (("shop_with_one_stream:BROKEN", "f"), "BROKEN, which is of type int, not a stream"),
        (("sales", "nothing.jsonl"), "nothing.jsonl cannot be read: No such file or directory"),
        (("sales", "f", "--now", "noon"), "--now noon: expected ISO 8601, such as"),
        (("sales", "f", "--envelope"), "f:1 is not an envelope: unknown field product"),
        (("calls", "f"), "f:1: stream calls reads several topics; name one of analyticsTopic, metricsTopic"),
        (("sales", "e", "--envelope"), "e:1: stream sales does not read topic elsewhere; name one of "),
        (("sales", "twice", "--envelope"), "twice:2 and twice:1 are both sales-events-v1/0/5"),
    ],
)
def test_what_is_wrong_with_a_call_is_said_in_one_line(
    run: Try, arguments: tuple[str, ...], why: str
) -> None:
    Path("shop_with_one_stream.py").write_text(OWN_STREAM)
    Path("f").write_text(lines({"product": "pen", "value": 1}))
    Path("e").write_text(lines({"value": None, "topic": "elsewhere"}))
    Path("twice").write_text(lines(*({"value": None, "key": "pen", "offset": 5} for _ in range(2))))

    ended = run(*arguments)

    assert isinstance(ended.exception, SettingsError)
    assert ended.exception.exit_code == 2
    assert why in str(ended.exception)


def test_a_stream_whose_functions_fail_is_named_with_what_spark_says(run: Try) -> None:
    Path("shop_that_fails.py").write_text(
        OWN_STREAM
        + """
from dataclasses import replace
(table,) = ORDERS.gold
FAILING = replace(ORDERS, gold=(replace(table, preaggregate=lambda clean: clean.select("prize")),))
"""
    )
    Path("f").write_text(lines({"shop": "x", "price": 1}))

    ended = run("shop_that_fails:FAILING", "f")

    assert isinstance(ended.exception, try_stream.TrialError)
    assert ended.exception.exit_code == 2
    assert str(ended.exception).startswith("stream orders failed: AnalysisException: ")
    assert "prize" in str(ended.exception)


def test_that_spark_does_not_start_is_no_dead_letter(run: Try, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_home: Path) -> None:
        raise ServiceError("the runtime jars are missing")

    monkeypatch.setattr(session, "small_session", refuse)
    Path("f").write_text(lines({"product": "pen", "value": 1}))

    ended = run("sales", "f")

    assert isinstance(ended.exception, try_stream.TrialError)
    assert (str(ended.exception), ended.exception.exit_code) == ("the runtime jars are missing", 2)


@pytest.mark.soak
def test_the_command_starts_a_session_of_its_own_and_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "own_shop.py").write_text(OWN_STREAM)
    (tmp_path / "f").write_text(lines({"shop": "x", "price": 1}, "no"))
    before = sorted(tmp_path.iterdir())

    ended = subprocess.run(
        [sys.executable, "-m", "lakehouse", "try", "own_shop:ORDERS", "f", "--format", "json"],
        cwd=tmp_path,
        env={**QUICK_JVM, "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert ended.returncode == 1, ended.stderr
    assert [one["line"] for one in json.loads(ended.stdout)["dead_letters"]] == ["f:2"]
    assert sorted(tmp_path.iterdir()) == before
