"""A stream's health is the same wherever it is shown: JSON, metrics, the API, alerts, the terminal, the page.

Each situation is a lake that has only logs, and what a broker says of its topics.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from lakehouse.cli.reports.status import drawn
from lakehouse.common.errors import ServiceError
from lakehouse.common.events import Event, Kind
from lakehouse.common.terminal import Console
from lakehouse.engine.layers import LAYERS
from lakehouse.engine.ops_tables.event_table import append
from lakehouse.engine.records.dead_letters import DEAD_LETTERS
from lakehouse.operations.alerts.facts import Facts, find
from lakehouse.operations.alerts.rules import HealthRule
from lakehouse.operations.quality.results import GATES
from lakehouse.operations.telemetry import (
    Observation,
    ObservationCollector,
    Observer,
    QueryRun,
    Run,
    Word,
    observe,
)
from lakehouse.operations.telemetry.broker import Broker, Ends
from lakehouse.operations.telemetry.runs import as_json, file_of
from lakehouse.storage.tables.specs import LEASE
from tests.support import pipeline
from tests.support.browser import Page
from tests.support.log_lakes import DAY, ENDS, Logs, added, caught_up, removed
from tests.support.page_status import show_answer
from tests.support.served_lakes import MakeClient, ServedLake, letter
from tests.support.serving import serving
from tests.support.streams import CALL_RECORDS, CALLS

NOW = pipeline.utc(DAY.format("08:14:00"))
READ = ENDS[-1]
WAITING_SINCE = NOW - timedelta(minutes=13)
SOON, LATER = NOW + timedelta(minutes=5), NOW + timedelta(days=2)
REFUSAL = "PostgreSQL at 127.0.0.1:5432 refuses the rows: permission denied for table call_records"


@dataclass(frozen=True)
class Place:
    """A lake of calls that has caught up, its export's note, and how many records wait in which topic."""

    lake: ServedLake
    sent: Path
    waiting: dict[str, int]


def run_all(
    place: Place, layers: Sequence[str] = LAYERS, at: datetime = NOW, queries: Sequence[QueryRun] = ()
) -> None:
    """Record a sign of life of a process on another host."""
    home = place.lake.settings.home
    run = Run("elsewhere", 7, tuple(layers), ("calls",), at, at, None, tuple(queries))
    file = file_of(home, run.host, run.pid)
    file.parent.mkdir(parents=True)
    file.write_text(as_json(run))


def wait(place: Place) -> None:
    place.waiting.update(analyticsTopic=6_765, metricsTopic=6_735)


def fall_behind(place: Place) -> None:
    run_all(place)
    wait(place)


def send_nothing(place: Place) -> None:
    """Let an export run that has never sent a row."""
    run_all(place)
    place.sent.unlink()


def refuse(place: Place) -> None:
    run_all(place)
    place.lake.write_spec(DEAD_LETTERS, [letter(1, "late", stream="calls")])
    table = {"table": "silver.call_metrics", "judged": 2_000, "refused": 1_980, "limit": 0.05, "over": True}
    said = json.dumps({**table, "causes": []})
    append(
        place.lake.settings.lake,
        [Event("1", NOW, Kind.REFUSED, "calls", None, None, "tests", "here", 7, "0", "", said)],
    )


def take_kafka_away(place: Place) -> None:
    run_all(place)
    place.waiting["no broker"] = 1


def run_two_layers(place: Place) -> None:
    run_all(place, ("bronze", "silver"))


def take_redis_away(place: Place) -> None:
    """Let the export note that Redis lacks rows."""
    run_all(place)
    lack(place, "redis")


def take_postgres_away(place: Place) -> None:
    """Let the export note that PostgreSQL lacks rows."""
    run_all(place)
    lack(place, "postgres")


def lack(place: Place, store: str) -> None:
    place.sent.write_text(json.dumps({**json.loads(place.sent.read_text()), f"{store}_is_behind": True}))


def let_postgres_refuse(place: Place) -> None:
    run_all(place, queries=[QueryRun("export.call_records", error=REFUSAL, failed_at=WAITING_SINCE)])


def hold_a_lease(place: Place) -> None:
    """Let rows wait for silver for minutes while a rebuild has the lease of its table."""
    run_all(place, at=SOON)
    logs = Logs(place.lake.root)
    logs.append("bronze.call_metrics", DAY.format("08:14:30"), (5,))
    metadata = {"id": "silver.call_metrics", "schemaString": "{}", "configuration": {LEASE: "a rebuild"}}
    logs.commit("silver.call_metrics", DAY.format("08:14:20"), [{"metaData": metadata}])


def erase(place: Place) -> None:
    """Rewrite files of bronze and silver without the rows of a person."""
    run_all(place)
    at, logs = DAY.format("08:13:50"), Logs(place.lake.root)
    for table in ("bronze.call_metrics", "silver.call_metrics"):
        logs.commit(table, at, [removed("a.parquet", 4, at), *added([3], at)])


def close_the_gate(place: Place) -> None:
    run_all(place)
    place.lake.write_spec(
        GATES, [{"stream": "calls", "changed_at": NOW, "is_open": False, "reasons": ["totals differ"]}]
    )


def storm(place: Place) -> None:
    """Let thousands of letters be open although few records of the last hour were refused."""
    run_all(place)
    place.lake.write_spec(DEAD_LETTERS, [letter(number, "late", stream="calls") for number in range(3_000)])


def send_no_events(place: Place) -> None:
    run_all(place, at=LATER)


SITUATIONS: dict[str, tuple[Callable[[Place], None], Word]] = {
    "all runs, and all is done": (run_all, Word.WELL),
    "nothing runs, and all is done": (lambda _: None, Word.IDLE),
    "two layers run, and all is done": (run_two_layers, Word.IDLE),
    "nothing runs, and records wait": (wait, Word.STOPPED),
    "one layer is behind": (fall_behind, Word.BEHIND),
    "one layer stands still": (send_nothing, Word.STALLED),
    "Kafka is away": (take_kafka_away, Word.UNKNOWN),
    "Redis is away": (take_redis_away, Word.BEHIND),
    "PostgreSQL is away": (take_postgres_away, Word.BEHIND),
    "PostgreSQL refuses rows": (let_postgres_refuse, Word.FAILING),
    "a lease is held": (hold_a_lease, Word.STALLED),
    "records were erased": (erase, Word.WELL),
    "the gate is closed": (close_the_gate, Word.BLOCKED),
    "nearly all is refused": (refuse, Word.REFUSING),
    "many letters are open": (storm, Word.WELL),
    "no events for two days": (send_no_events, Word.STALE),
    "the clock was set back by a day": (fall_behind, Word.UNKNOWN),
}
MOMENTS = {
    "a lease is held": SOON,
    "no events for two days": LATER,
    "the clock was set back by a day": NOW - timedelta(days=1),
}


def place_in(lake: ServedLake, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Fill a lake, and let the broker of the next observations be that of this place."""
    sent = caught_up(lake.root).note_sent("gold.call_records", str(CALL_RECORDS.export.topic), 3)
    waiting = dict[str, int]()

    def ends(_self: Broker, topics: Collection[str]) -> dict[str, dict[int, Ends]]:
        if "no broker" in waiting:
            raise ServiceError("no broker")
        return {
            topic: {n: Ends(0, read + (0 if n else waiting.get(topic, 0))) for n, read in enumerate(READ)}
            for topic in topics
        }

    def times_of(_self: Broker, offsets: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        return dict.fromkeys(offsets, pipeline.micros(WAITING_SINCE) // 1000)

    monkeypatch.setattr(Broker, "ends", ends)
    monkeypatch.setattr(Broker, "times_of", times_of)
    return Place(lake, sent, waiting)


@pytest.fixture
def place(lake: ServedLake, monkeypatch: pytest.MonkeyPatch) -> Place:
    return place_in(lake, monkeypatch)


def word_in_metrics(seen: Observation) -> list[str]:
    registry = CollectorRegistry()
    registry.register(ObservationCollector(lambda: seen))
    return [
        word.value
        for word in Word
        if registry.get_sample_value("lakehouse_health", {"stream": "calls", "word": word.value}) == 1.0
    ]


def told_by_alerts(seen: Observation) -> list[tuple[str, str]]:
    """Return the words for which a rule would fire, and what the alert would say."""
    rules = [HealthRule(name="r", kind="health", words=(word,)) for word in Word]
    found = ((rule.words[0].value, find(rule, Facts(seen), NOW)) for rule in rules)
    return [(word, one.what) for word, judged in found for one in judged or [] if one.is_so]


def told_by_the_api(
    seen: Observation, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    def looked(_self: Observer, _now: datetime) -> Observation:
        return seen

    monkeypatch.setattr(Observer, "observe", looked)
    return dict(make_client().get("/api/v1/status").json())


def on_a_terminal(seen: Observation) -> list[str]:
    console = Console(width=200, color_system=None)
    with console.capture() as captured:
        console.print(drawn(seen, None, console))
    return [" ".join(line.split()) for line in captured.get().splitlines()]


@pytest.mark.parametrize("situation", SITUATIONS)
def test_the_word_and_its_reason_are_the_same_everywhere(
    place: Place, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch, situation: str
) -> None:
    happen, word = SITUATIONS[situation]
    happen(place)
    seen = observe([CALLS], place.lake.settings, MOMENTS.get(situation, NOW))
    health = seen.streams[0].health
    assert health.word is word

    (shown,) = seen.as_json()["streams"]
    assert (shown["health"]["word"], shown["health"]["reason"]) == (word.value, health.reason)
    assert word_in_metrics(seen) == [word.value]
    assert told_by_alerts(seen) == [(word.value, f"calls is {word.value}: {health.reason}")]
    assert any(line.startswith(f"calls {word.value}") for line in on_a_terminal(seen))
    (stream,) = told_by_the_api(seen, make_client, monkeypatch)["streams"]
    of_api = stream["health"]
    assert (of_api["word"], of_api["reason"]) == (word.value, health.reason)
    assert (of_api["since"] is None) is (health.since is None)


def test_a_reason_names_what_a_step_waits_for_or_why_it_fails_and_since_when(place: Place) -> None:
    let_postgres_refuse(place)
    failing = observe([CALLS], place.lake.settings, NOW).streams[0].health
    assert (failing.reason, failing.since) == (f"export.call_records fails: {REFUSAL}", WAITING_SINCE)
    file_of(place.lake.settings.home, "elsewhere", 7).unlink()
    file_of(place.lake.settings.home, "elsewhere", 7).parent.rmdir()
    hold_a_lease(place)
    waiting = observe([CALLS], place.lake.settings, SOON).streams[0].health
    assert waiting.reason.startswith("5 rows of bronze.call_metrics wait for silver.call_metrics")
    said = "; its step waits while silver.call_metrics is being rebuilt, replayed or maintained"
    assert waiting.reason.endswith(said)


@pytest.mark.soak
def test_the_page_shows_the_same_word_and_reason(
    lake: ServedLake,
    make_client: MakeClient,
    monkeypatch: pytest.MonkeyPatch,
    page: Page,
    tmp_path: Path,
) -> None:
    with serving(lake, tmp_path / "log") as (_, url):
        for number, (situation, (happen, word)) in enumerate(SITUATIONS.items()):
            own = {"lake": str(tmp_path / f"{number}" / "lake"), "home": tmp_path / f"{number}" / "home"}
            place = place_in(ServedLake(lake.settings.changed(own)), monkeypatch)
            happen(place)
            seen = observe([CALLS], place.lake.settings, MOMENTS.get(situation, NOW))
            answer = told_by_the_api(seen, make_client, monkeypatch)
            monkeypatch.undo()
            page.go("about:blank")
            page.go(f"{url}/")
            show_answer(page, answer)
            assert page.text(".streams tbody .badge") == word.value, situation
            assert page.text(".headline") == f"{answer['summary']}."
            reason = seen.streams[0].health.reason
            lines = page.run(
                "[...document.querySelectorAll('.reasons li, .notice')].map((one) => one.innerText)"
            )
            if seen.broker_reason is not None:  # which a notice shows, and a stream's line does not repeat
                assert reason.endswith(lines[0]), situation
            elif word is not Word.WELL:
                assert any(reason in line for line in lines), situation
            assert not any("failing\n" in line for line in lines[1:]), situation


@pytest.mark.parametrize("situation", ["nothing runs, and records wait", "one layer is behind"])
def test_the_number_of_waiting_records_is_the_same_everywhere(
    place: Place, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch, situation: str
) -> None:
    SITUATIONS[situation][0](place)
    seen = observe([CALLS], place.lake.settings, NOW)

    said = "13,500 records wait for bronze (6,765 of analyticsTopic, 6,735 of metricsTopic)"
    assert seen.streams[0].health.reason.startswith(said)
    of_api = told_by_the_api(seen, make_client, monkeypatch)
    (stream,) = of_api["streams"]
    assert sum(one["records"] for one in stream["partitions"]) == 13_500
    assert stream["waiting"] == {"layer": "bronze", "records": 13_500, "seconds": 780.0}
    word = seen.streams[0].health.word
    sentence = f"1 of 1 stream is {word}; 13,500 records wait, the oldest for 13 min"
    assert of_api["summary"] == sentence
    registry = CollectorRegistry()
    registry.register(ObservationCollector(lambda: seen))
    lags = [one for one in registry.collect() if one.name == "lakehouse_lag_records"]
    assert sum(sample.value for one in lags for sample in one.samples) == 13_500.0
    assert any(line.startswith("calls ") and "13,500, 13 min" in line for line in on_a_terminal(seen))


def test_the_number_of_open_letters_is_the_same_everywhere(
    place: Place, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    storm(place)
    seen = observe([CALLS], place.lake.settings, NOW)
    registry = CollectorRegistry()
    registry.register(ObservationCollector(lambda: seen))
    labels = {"stream": "calls"}
    assert registry.get_sample_value("lakehouse_dead_letters_open", labels) == 3_000.0
    (stream,) = told_by_the_api(seen, make_client, monkeypatch)["streams"]
    assert stream["openLetters"] == 3_000
    assert any(line.startswith("calls ") and "3,000" in line for line in on_a_terminal(seen))


def test_a_store_that_lacks_rows_is_named_everywhere(
    place: Place, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_redis_away(place)
    seen = observe([CALLS], place.lake.settings, NOW)
    assert seen.streams[0].health.reason.startswith("redis lacks rows that export.call_records sent to ")
    (stream,) = told_by_the_api(seen, make_client, monkeypatch)["streams"]
    assert [one["behind"] for one in stream["queries"] if one["behind"]] == [["redis"]]
    assert any("redis" in line for line in on_a_terminal(seen))
