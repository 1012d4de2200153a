"""Ten questions of a person in trouble, each answered within three clicks from the overview, in Chromium.

A click into a field counts; typing does not. The first question's status is made by the test.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from lakehouse.engine.layers import bronze, silver
from lakehouse.engine.ops_tables.event_table import append
from lakehouse.engine.progress import sent
from lakehouse.engine.records.dead_letters import DEAD_LETTERS
from lakehouse.operations.quality.results import RESULTS
from lakehouse.storage.tables.specs import path_of
from tests.support.browser import Page
from tests.support.page_status import seen, show
from tests.support.served_lakes import NOON_MS, Row, ServedLake, at, event, letter, transactions
from tests.support.serving import serving
from tests.support.streams import TRANSACTIONS, USER_TRANSACTIONS_5M

pytestmark = pytest.mark.soak
MOST = 3
TOPIC = "transactions-topic"
NOW = datetime.now(UTC).replace(microsecond=0)
YESTERDAY = (NOW - timedelta(days=1)).replace(hour=12, minute=0, second=0)
(SOURCE,) = TRANSACTIONS.sources
ANSWER_DRY_RUNS = """(() => {
    const ask = window.fetch;
    const result = {asked: 3, wouldPass: 2, failing: {late: 1}};
    const done = {id: '1', status: 'succeeded', lines: [], result};
    window.fetch = (path, options = {}) => options.method === 'POST' && JSON.parse(options.body).dryRun
        ? Promise.resolve(new Response(JSON.stringify(done), {status: 202}))
        : ask(path, options);
})()"""


@pytest.fixture
def lake_of_trouble(lake: ServedLake) -> ServedLake:
    """Return a lake with a record in every layer, letters of two days, findings, and events."""
    place = {"topic": TOPIC, "partition": 3, "offset": 4711}
    raw = {**place, "timestamp": at(NOON_MS), "ingested_at": at(NOON_MS), "key": b"k", "value": b"v"}
    lake.write_spec(bronze.spec(SOURCE), [raw], noted={f"bronze.transactions reads {TOPIC}:9Zc/3": 4712})
    lake.write_spec(silver.spec(SOURCE), [{**place, "event_time": at(NOON_MS), "user_id": "u1"}])
    windows = [transactions("u1", NOON_MS, "3.75"), transactions("u2", NOON_MS, "8")]
    note_sent(lake, lake.write(USER_TRANSACTIONS_5M, windows))
    letters = [
        letter(1, "late", stream="transactions", topic=TOPIC, first_seen=NOW),
        letter(2, "not_json", stream="transactions", topic=TOPIC, first_seen=YESTERDAY),
        letter(3, "not_json", stream="sales", topic="sales-events-v1", first_seen=YESTERDAY),
        letter(4, "not_json", stream="sales", topic="sales-events-v1", first_seen=NOW),
    ]
    lake.write_spec(DEAD_LETTERS, letters)
    lake.write_spec(RESULTS, [finding("keys are unique", 0), finding("amounts are positive", 60)])
    hours = {"a failure of this hour": 0.5, "a failure of the morning": 5}
    append(
        lake.settings.lake,
        [
            replace(event(number, "failure", said, stream="transactions"), at=NOW - timedelta(hours=ago))
            for number, (said, ago) in enumerate(hours.items())
        ],
    )
    return lake


def note_sent(lake: ServedLake, table: DeltaTable) -> None:
    """Note that the export sent the table's first version a minute past noon."""
    topic = "aggregated-transactions"
    note = Path(sent.file_of(path_of(lake.settings.lake, "gold", USER_TRANSACTIONS_5M.name), topic))
    note.parent.mkdir()
    note.write_text(json.dumps({"table": table.metadata().id, "version": 1, "files": None}))
    at_s = NOON_MS / 1000 + 60
    os.utime(note, (at_s, at_s))


def finding(expectation: str, second: int) -> Row:
    found = {"run_id": str(second), "checked_at": at(NOON_MS + 1000 * second), "rows": 2, "version": 0}
    table = {"table": f"gold.{'user_transactions_5m' if second else 'product_sales'}"}
    return (
        found | table | {"expectation": expectation, "severity": "error", "success": False, "examples": "[]"}
    )


@dataclass
class Reader:
    """A person who clicks, and who types into the field that was clicked last."""

    page: Page
    clicks: int = 0

    def click(self, selector: str, saying: str = "") -> None:
        self.clicks += 1
        self.page.click(selector, saying)

    def enter(self, text: str) -> None:
        self.page.write(text)
        self.page.press("Enter")

    def reads(self, selector: str, *texts: str) -> None:
        """Wait until an element shows all of these texts."""
        for text in texts:
            shown = f"[...document.querySelectorAll({json.dumps(selector)})]"
            told = f"one.innerText.replace(/\\s+/g, ' ').includes({json.dumps(text)})"
            self.page.wait(f"{shown}.some((one) => {told})")


def behind(reader: Reader) -> None:
    health: dict[str, Any] = {
        "word": "behind",
        "reason": "13,500 records wait for bronze",
        "isUnrun": False,
        "todo": "Look",
    }
    late = seen("sales", "behind", 13_500, health={**health, "since": "2026-05-04T11:47:00Z"})
    show(reader.page, [late, seen("calls", "well")])
    reader.reads(".reasons li", "sales", "13,500 records wait for bronze", "since 2026-05-04 11:47:00 UTC")


def letters_of_yesterday(reader: Reader) -> None:
    reader.click("header nav a", "Dead letters")
    reader.click("a.choice", "yesterday")
    reader.click(".sides td a", TOPIC)
    reader.page.wait("document.querySelectorAll('[data-key^=\"#/letters/\"]').length === 1")
    reader.reads(".sides td", "not_json", f"{TOPIC} 0 @ 2")


def record(reader: Reader) -> None:
    reader.click(".streams th a", "transactions")
    reader.click(".find input")
    reader.enter("3/4711")
    reader.reads(".find h3", f"{TOPIC}/3/4711 in transactions")
    reader.reads(".find tr", "silver.transactions there event time 2026-05-04 12:00:00")
    reader.reads(".find tr", "gold.user_transactions_5m there user id u1")


def sent_to_redis(reader: Reader) -> None:
    record(reader)
    reader.reads(
        ".find tr", "up to version 0 of 0 to aggregated-transactions, redis at 2026-05-04 12:01:00 UTC"
    )


def dry_run(reader: Reader) -> None:
    reader.page.run(ANSWER_DRY_RUNS)
    reader.click("header nav a", "Dead letters")
    reader.click(".sides button", "Replay")
    reader.reads("dialog .foretold", "2 of 3 would pass now", "late: 1")


def worst_rule(reader: Reader) -> None:
    reader.click("header nav a", "Dead letters")
    reader.page.wait("document.querySelectorAll('.sides section:first-child tbody tr').length === 3")
    counts = "[...document.querySelectorAll('.sides section:first-child tbody td:last-child')]"
    numbers = [int(one) for one in reader.page.run(f"{counts}.map((one) => one.innerText)")]
    assert numbers == sorted(numbers, reverse=True)
    reader.reads(".sides section:first-child tbody tr:first-child", "sales not_json 2")


def last_failed_check(reader: Reader) -> None:
    reader.click("header nav a", "Checks")
    said = "2 of 2 expectations fail; the last, at 2026-05-04 12:01:00 UTC: gold.user_transactions_5m: "
    reader.reads(".suites .trouble", said)


def changed_settings(reader: Reader) -> None:
    reader.click(".streams th a", "transactions")
    reader.reads(".settings p", "redis.url")
    reader.reads(".settings tr", "redis.url unix://")


def last_hour(reader: Reader) -> None:
    reader.click(".streams th a", "transactions")
    reader.reads("section .message", "a failure of the morning")
    reader.click("[aria-label=Span] button", "hour")
    reader.reads("section h2", "Events of the last hour")
    reader.reads("section .message", "a failure of this hour")
    reader.page.wait("!document.querySelector('main').innerText.includes('a failure of the morning')")


def gold_row(reader: Reader) -> None:
    reader.click("header nav a", "Gold")
    reader.click(".tabs a", "user_transactions_5m")
    reader.click("[name=user_id]")
    reader.enter("u1")
    reader.page.wait("document.querySelectorAll('.rows tbody tr').length === 1")
    reader.reads(".rows tbody tr", "u1", "3.75")


QUESTIONS: dict[str, Callable[[Reader], None]] = {
    "which stream is behind, and since when": behind,
    "which letters of this topic are from yesterday": letters_of_yesterday,
    "where is the record 3/4711": record,
    "when was its row sent to Redis": sent_to_redis,
    "what would a replay do now": dry_run,
    "which rule refuses most": worst_rule,
    "which check failed last": last_failed_check,
    "which settings differ from the default": changed_settings,
    "what happened to the stream in the last hour": last_hour,
    "what does the gold row of this key say": gold_row,
}


def test_ten_questions_are_answered_within_three_clicks(
    lake_of_trouble: ServedLake, page: Page, tmp_path: Path
) -> None:
    assert len(QUESTIONS) == 10
    page.resize(1300, 900)
    with serving(lake_of_trouble, tmp_path / "log") as (_, url):
        for question, answer in QUESTIONS.items():
            page.go("about:blank")
            page.go(f"{url}/")
            page.wait("document.querySelectorAll('.streams tbody tr').length === 4")
            reader = Reader(page)
            answer(reader)
            assert reader.clicks <= MOST, question
