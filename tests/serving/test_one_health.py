"""Health and the states of stores are the same in JSON, metrics, the API, alerts, the terminal and the page.

Each situation is a lake that has only logs, and what a broker says of its topics. What an export notes about
a store comes from the error of a real one in some of them.
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
from pydantic import SecretStr

from lakehouse.cli.reports.status import drawn
from lakehouse.common.errors import ServiceError, SinkTroubleError, StoreWord
from lakehouse.common.events import Event, Kind
from lakehouse.common.terminal import Console
from lakehouse.engine.layers import LAYERS
from lakehouse.engine.ops_tables.event_table import append
from lakehouse.engine.records.dead_letters import DEAD_LETTERS
from lakehouse.operations.alerts.facts import Facts, find
from lakehouse.operations.alerts.rules import HealthRule, StoreRule
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
from lakehouse.operations.telemetry.words import WHAT_TO_DO, WHAT_TO_DO_FOR_A_STORE, StoreState
from lakehouse.sinks.postgres import client as postgres
from lakehouse.sinks.redis import client as redis
from lakehouse.storage.tables.specs import LEASE
from tests.support import pipeline, postgres_servers, redis_servers
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
REFUSAL = "PostgreSQL denies a permission: permission denied for table call_records"
UNREACHED = "is unreachable: Connection refused"
QUERY, TABLE = f"export.{CALL_RECORDS.name}", CALL_RECORDS.name
SECRET, OTHER = "of-the-reader", "of-another"
POSTGRES = {"postgres.url": SecretStr("postgresql://lakehouse@127.0.0.1:1/lake")}


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
    lack(place, "redis", SinkTroubleError(f"Redis {UNREACHED}", StoreWord.AWAY))


def take_postgres_away(place: Place) -> None:
    """Let the export note that PostgreSQL lacks rows."""
    run_all(place)
    lack(place, "postgres", SinkTroubleError(f"PostgreSQL {UNREACHED}", StoreWord.AWAY))


def lack(place: Place, store: str, error: SinkTroubleError) -> None:
    """Let the export note an error that it has had with a store for 13 minutes."""
    note = json.loads(place.sent.read_text())
    said = {"word": error.word, "reason": str(error), "since": WAITING_SINCE.isoformat()}
    place.sent.write_text(json.dumps({**note, "at": NOW.isoformat(), f"{store}_is_behind": said}))


def let_postgres_refuse(place: Place) -> None:
    run_all(place, queries=[QueryRun(QUERY, error=REFUSAL, failed_at=WAITING_SINCE)])
    lack(place, "postgres", SinkTroubleError(REFUSAL, StoreWord.REFUSED))


def fill_redis(place: Place) -> None:
    """Let the export note that Redis is full, after which its process ends."""
    lack(place, "redis", SinkTroubleError("Redis is full, so rows wait", StoreWord.FULL))


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
    "Redis is full, and nothing runs": (fill_redis, Word.BEHIND),
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
AILING: dict[str, dict[str, StoreWord]] = {
    "one layer stands still": dict.fromkeys(("kafka", "redis", "postgres"), StoreWord.BEHIND),
    "Kafka is away": {"kafka": StoreWord.AWAY},
    "Redis is away": {"redis": StoreWord.AWAY},
    "Redis is full, and nothing runs": {"redis": StoreWord.FULL},
    "PostgreSQL is away": {"postgres": StoreWord.AWAY},
    "PostgreSQL refuses rows": {"postgres": StoreWord.REFUSED},
}
"""The stores that are not well, by situation."""
MOMENTS = {
    "a lease is held": SOON,
    "no events for two days": LATER,
    "the clock was set back by a day": NOW - timedelta(days=1),
}


def place_in(lake: ServedLake, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Fill a lake, and let the broker of the next observations be that of this place."""
    lake = ServedLake(lake.settings.changed(POSTGRES))
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


def told_of_stores_by_alerts(seen: Observation) -> list[tuple[str, str]]:
    """Return the words of stores for which a rule would fire, and what the alert would say."""
    rules = [StoreRule(name="r", kind="store", words=(word,)) for word in StoreWord]
    found = ((rule.words[0].value, find(rule, Facts(seen), NOW)) for rule in rules)
    return [(word, one.what) for word, judged in found for one in judged or [] if one.is_so]


def stores_in_metrics(seen: Observation) -> dict[str, list[str]]:
    return {
        store: [
            word
            for word in StoreWord
            if in_metrics(seen, "store_state", table=TABLE, store=store, word=word) == 1.0
        ]
        for store in ("kafka", "redis", "postgres")
    }


def in_metrics(seen: Observation, name: str, **labels: str) -> float | None:
    registry = CollectorRegistry()
    registry.register(ObservationCollector(lambda: seen))
    return registry.get_sample_value(f"lakehouse_{name}", {"stream": "calls", **labels})


def since_epoch(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


def plain(text: str) -> str:
    """Return a message as the page shows it, with code set apart by a font instead of backticks."""
    return text.replace("`", "")


def on_a_terminal(seen: Observation) -> list[str]:
    console = Console(width=500, color_system=None)
    with console.capture() as captured:
        console.print(drawn(seen, None, console, with_steps=True))
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
    todo = WHAT_TO_DO[word]
    told = {"word": word.value, "reason": health.reason, "todo": todo}
    assert {name: shown["health"][name] for name in told} == told
    assert word_in_metrics(seen) == [word.value]
    assert in_metrics(seen, "health_since_seconds") == since_epoch(health.since)
    since = "" if health.since is None else f" since {health.since:%F %T} UTC"
    assert told_by_alerts(seen) == [(word.value, f"calls is {word.value}{since}: {health.reason}. {todo}")]
    lines = on_a_terminal(seen)
    assert any(line.startswith(f"calls {word.value}") for line in lines)
    if seen.broker_reason is not None:
        assert {seen.broker_reason, f"unknown: {todo}"} <= set(lines)
    elif word not in (Word.WELL, Word.IDLE):
        assert {f"calls: {health.reason}", f"{word}: {todo}"} <= set(lines)
    answer = told_by_the_api(seen, make_client, monkeypatch)
    of_api = answer["streams"][0]["health"]
    assert {name: of_api[name] for name in told} == told
    assert (of_api["since"] is None) is (health.since is None)
    stores = shown_alike(seen, answer)
    words = dict.fromkeys(("kafka", "redis", "postgres"), StoreWord.WELL) | AILING.get(situation, {})
    assert {name: one.word for name, one in stores.items()} == words


def shown_alike(seen: Observation, of_api: Mapping[str, Any]) -> dict[str, StoreState]:
    """Return the stores of the export, after comparing all that is told of them."""
    stores = {one.name: one for one in seen.streams[0].queries[-1].stores}
    (stream,), (shown,) = of_api["streams"], seen.as_json()["streams"]
    (in_api,), (in_json,) = (
        [one["stores"] for one in state["queries"] if one["stores"]] for state in (stream, shown)
    )
    assert stores_in_metrics(seen) == {name: [one.word] for name, one in stores.items()}
    lines, alerts = on_a_terminal(seen), told_of_stores_by_alerts(seen)
    for (name, one), of_api_, of_json in zip(stores.items(), in_api, in_json, strict=True):
        todo = WHAT_TO_DO_FOR_A_STORE[one.word]
        told = {"name": name, "word": one.word, "reason": one.reason, "todo": todo}
        assert {key: of_api_[key] for key in told} == {key: of_json[key] for key in told} == told
        assert in_metrics(seen, "store_since_seconds", table=TABLE, store=name) == since_epoch(one.since)
        since = "" if one.since is None else f" since {one.since:%F %T}"
        utc = since and f"{since} UTC"
        assert (one.word, f"{name} of {QUERY} is {one.word}{utc}: {one.reason}. {todo}") in alerts
        assert f"{QUERY} {name} {one.word}{since.removeprefix(' since')}" in lines
        is_ailing = one.lacks_rows or one.word is StoreWord.AWAY
        is_told = one.reason in f"{seen.streams[0].health.reason} {seen.broker_reason}"
        told_alone = f"{name} is {one.word}{since} ({QUERY}): {one.reason}"
        assert (told_alone in lines) is (is_ailing and not is_told)
        assert (f"{one.word} (store): {todo}" in lines) is is_ailing
    return stores


def trouble_of_redis(url: str) -> SinkTroubleError:
    with (
        pytest.raises(SinkTroubleError) as caught,
        redis.reported(),
        redis.redis_client(url, **redis.impatient(5)) as client,
    ):
        client.set("key", "value")
    return caught.value


@dataclass(frozen=True)
class Answer:
    """What a Redis with these options answers (None: it is stopped), and the state that this implies."""

    options: Sequence[str] | None
    word: StoreWord
    said: str


ANSWERS = {
    "stopped": Answer(None, StoreWord.AWAY, "Redis is unreachable: "),
    "password": Answer(
        ("--requirepass", SECRET), StoreWord.REFUSED, "Redis has refused the user in redis.url: "
    ),
    "right": Answer(
        ("--user", "default", "on", "nopass", "~*", "+@all", "-set"),
        StoreWord.REFUSED,
        "Redis denies a permission: ",
    ),
    "full": Answer(
        ("--maxmemory", "1", "--maxmemory-policy", "noeviction"),
        StoreWord.FULL,
        "Redis is full, so rows wait: ",
    ),
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=list(ANSWERS))
def test_what_a_real_redis_answers_is_its_state_everywhere(
    place: Place, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answer: Answer
) -> None:
    with redis_servers.at_socket(tmp_path / "redis", *(answer.options or ())) as url:
        error = None if answer.options is None else trouble_of_redis(url)
    run_all(place)
    lack(place, "redis", error or trouble_of_redis(url))
    seen = observe([CALLS], place.lake.settings, NOW)
    redis_ = shown_alike(seen, told_by_the_api(seen, make_client, monkeypatch))["redis"]
    assert (redis_.word, redis_.since) == (answer.word, WAITING_SINCE)
    assert redis_.reason.startswith(answer.said)


@pytest.mark.soak
def test_what_a_real_postgresql_answers_is_its_state_everywhere(
    place: Place, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trouble(url: str, statement: str = "SELECT 1") -> SinkTroubleError:
        with (
            pytest.raises(SinkTroubleError) as caught,
            postgres.connect(url) as connection,
            postgres.reported(TABLE),
        ):
            connection.execute(statement)
        return caught.value

    with postgres_servers.server() as server:
        with server.connect() as admin:
            admin.execute("CREATE TABLE of_another (n int)")
            admin.execute(f"CREATE ROLE reader LOGIN PASSWORD '{SECRET}'")
        insert = "INSERT INTO of_another VALUES (1)"
        found = {
            "has refused the connection": trouble(server.url(user="reader", secret=OTHER)),
            "denies a permission": trouble(server.url(user="reader", secret=SECRET), insert),
        }
        server.end()
        found["is unreachable"] = trouble(server.url())
    run_all(place)
    words = dict.fromkeys(found, StoreWord.REFUSED) | {"is unreachable": StoreWord.AWAY}
    seen = dict[str, Observation]()
    for said, error in found.items():
        lack(place, "postgres", error)
        seen[said] = observe([CALLS], place.lake.settings, NOW)
    for said, one in seen.items():
        store = shown_alike(one, told_by_the_api(one, make_client, monkeypatch))["postgres"]
        assert store.reason.startswith(f"PostgreSQL {said}")
        assert (store.word, store.since) == (words[said], WAITING_SINCE)


STORE_ROWS = """[...document.querySelectorAll('.steps div.table:last-of-type tbody tr')].map(
    (row) => [...row.cells].map((one) => one.innerText))"""


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
            health = seen.streams[0].health
            reason = health.reason
            lines = page.run(
                "[...document.querySelectorAll('.reasons li, .notice')].map((one) => one.innerText)"
            )
            if seen.broker_reason is not None:  # which a notice shows, and a stream's line does not repeat
                assert reason.endswith(lines[0]), situation
            elif word is not Word.WELL:
                assert any(plain(health.told) in line for line in lines), situation
            if word is not Word.WELL:
                assert any(plain(health.todo) in line for line in lines), situation
            assert not any("failing\n" in line for line in lines[1:]), situation
            ailing = AILING.get(situation, {})
            cell = page.text("[data-about='newest in stores']")
            assert [one for one in ailing if f"{one} {ailing[one]}" not in cell] == [], situation
            page.run("location.hash = '#/streams/calls'")
            page.wait("document.querySelectorAll('.steps table').length === 2")
            rows = page.run(STORE_ROWS)
            stores = sorted(
                seen.streams[0].queries[-1].stores, key=lambda one: -list(StoreWord).index(one.word)
            )
            assert [(row[0], row[1], row[2], row[4]) for row in rows] == [
                (one.name, QUERY, one.word, f"{plain(one.told)}.") for one in stores
            ], situation


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
    health = seen.streams[0].health
    assert health.reason == f"redis lacks rows of {QUERY} because it is away: Redis {UNREACHED}"
    assert health.since == WAITING_SINCE
    (stream,) = told_by_the_api(seen, make_client, monkeypatch)["streams"]
    stores = [one for query in stream["queries"] for one in query["stores"] if one["lacksRows"]]
    assert [one["name"] for one in stores] == ["redis"]
    assert any("redis" in line for line in on_a_terminal(seen))


def test_a_store_of_which_only_an_earlier_version_has_noted_that_it_lacks_rows_is_behind(
    place: Place,
) -> None:
    place.sent.write_text(json.dumps({**json.loads(place.sent.read_text()), "redis_is_behind": True}))
    _, redis_, _ = observe([CALLS], place.lake.settings, NOW).streams[0].queries[-1].stores
    assert (redis_.word, redis_.since, redis_.lacks_rows) == (StoreWord.BEHIND, None, True)
    assert redis_.reason == "it was unavailable or full"
