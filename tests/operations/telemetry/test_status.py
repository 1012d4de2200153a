"""`lakehouse status` for a lake that nobody runs, as a user sees it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lakehouse.cli.commands import status
from lakehouse.cli.main import app
from lakehouse.cli.reports.status import drawn
from lakehouse.common.terminal import Console
from lakehouse.engine.layers import LAYERS
from lakehouse.engine.records.dead_letters import DEAD_LETTERS
from lakehouse.operations.telemetry import (
    Health,
    LayerLag,
    Observation,
    PartitionLag,
    QueryRun,
    Run,
    StreamGate,
    StreamState,
    Word,
    observe,
)
from lakehouse.operations.telemetry.runs import as_json, file_of
from lakehouse.settings import Settings, load_settings
from tests.support import log_lakes as lakes
from tests.support import pipeline
from tests.support.served_lakes import ServedLake, letter
from tests.support.streams import TRANSACTIONS

NOW = pipeline.utc("2026-11-22T09:00:00")


def make_lake(directory: Path) -> Settings:
    """Return settings of a lake that has caught up, except for the exports, with an open dead letter."""
    settings = load_settings().changed(
        {
            "lake": str(directory / "lake"),
            "kafka.bootstrap_servers": "127.0.0.1:1",
            "home": directory / "home",
        }
    )
    lakes.caught_up(directory / "lake")
    ServedLake(settings).write_spec(DEAD_LETTERS, [letter(1, stream="transactions")])
    return settings


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    settings = make_lake(tmp_path)
    monkeypatch.setenv("LAKEHOUSE_HOME", str(settings.home))
    monkeypatch.setenv("LAKEHOUSE_LAKE", settings.lake)
    monkeypatch.setenv("LAKEHOUSE_KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def test_status_as_json_is_the_whole_observation(lake: Path) -> None:
    del lake
    result = CliRunner().invoke(app, ["status", "--format", "json", "--stream", "transactions"])
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    (stream,) = found["streams"]
    assert found["broker_reason"].startswith("no Kafka broker at 127.0.0.1:1")
    assert [(lag["query"], lag["records"]) for lag in stream["layers"]] == [
        ("silver.transactions", 0),
        ("gold.user_transactions_5m", 0),
        ("export.user_transactions_5m", 5),
    ]
    assert stream["open_letters"] == 1


def told(*arguments: str) -> list[str]:
    """Return the lines that the command prints, with single spaces."""
    result = CliRunner().invoke(app, ["status", *arguments])
    assert result.exit_code == 0
    return [" ".join(line.split()) for line in result.stdout.splitlines()]


@pytest.mark.usefixtures("lake")
def test_status_once_has_a_line_for_each_stream_and_none_for_its_steps() -> None:
    lines = told("--once")
    for stream in ("metrics", "calls", "sales", "transactions"):
        assert sum(line.startswith(f"{stream} stopped 2026-11-22 08:12:39") for line in lines) == 1
        assert sum(line.startswith(f"{stream}: ") for line in lines) == 1
    assert not any(line.startswith(("waits for", "table")) for line in lines)


@pytest.mark.usefixtures("lake")
def test_status_with_steps_also_has_every_lag_and_table() -> None:
    lines = told("--once", "--steps", "--stream", "transactions")
    assert any(line.startswith("transactions stopped 2026-11-22 08:12:39") for line in lines)
    assert "stream waits for source records oldest version done at" in lines
    assert "transactions bronze transactions-topic 0 ? ?" in lines
    assert "transactions silver.transactions bronze.transactions 0 0 s 2 2026-11-22 08:13:20" in lines
    assert any(line.startswith("transactions export.user_transactions_5m gold.") for line in lines)
    assert "silver.transactions 2 2026-11-22 08:13:20 38 2 3,800 2026-11-15 08:12:59" in lines


@pytest.mark.usefixtures("lake")
def test_status_in_a_pipe_is_printed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def stay(*_: object, **__: object) -> None:
        raise AssertionError("it stays")

    monkeypatch.setattr(status, "_stay", stay)
    assert sum(line.startswith("stream health") for line in told("--stream", "transactions")) == 1


def shown(
    seen: Observation,
    width: int,
    *,
    alerts_reason: str | None = None,
    with_steps: bool = False,
    height: int | None = None,
) -> list[str]:
    """Return what a terminal shows, without trailing spaces. With a height, the report is live."""
    console = Console(width=width, height=height, color_system=None)
    is_live = height is not None
    with console.capture() as captured:
        console.print(drawn(seen, alerts_reason, console, with_steps=with_steps, is_live=is_live))
    return [line.rstrip() for line in captured.get().splitlines()]


def seen_in(tmp_path: Path, *runs: Run) -> Observation:
    """Return what is seen of one stream while these processes run."""
    settings = make_lake(tmp_path)
    for run in runs:
        file = file_of(settings.home, run.host, run.pid)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(as_json(run))
    return observe([TRANSACTIONS], settings, NOW)


Waits = tuple[int | None, float | None]
FAILING = QueryRun("gold.user_transactions_5m", rows_per_s=1_234.5, error="OSError: the disk is full")
RUN = Run("elsewhere", 4711, ("gold",), ("transactions",), NOW - timedelta(hours=1), NOW, 9464, (FAILING,))
NOBODY = "alerts are not evaluated: `lakehouse alert` is not running"


def test_a_terminal_of_80_characters_gets_what_fits_into_its_lines(tmp_path: Path) -> None:
    assert shown(seen_in(tmp_path), 80, with_steps=True) == [
        "2026-11-22 09:00:00 UTC",
        "no Kafka broker at 127.0.0.1:1 (nothing accepts connections there); start one",
        "with `lakehouse services up` or set kafka.bootstrap_servers",
        "(LAKEHOUSE_KAFKA_BOOTSTRAP_SERVERS)",
        "stream        health      since  newest    waiting  letters",
        "transactions  stopped  08:12:39  47 min  5, 47 min        1",
        "  transactions: 5 rows of gold.user_transactions_5m wait for export; no process",
        "  runs it; the oldest has waited since 2026-11-22 08:12:39 UTC",
        "  stopped: Start it: `lakehouse run all` (docs/run.md)",
        "  unknown: `lakehouse doctor` shows what cannot be reached or read, and why",
        "  (docs/doctor.md)",
        "  away (store): Start it, or correct its address; the export then sends the rows",
        "  (docs/failures.md)",
        "no process is running these streams",
        "",
        "waits for                    records       oldest  done at",
        "bronze (transactions-topic)        ?            ?",
        "silver.transactions                0          0 s  2026-11-22 08:13:20",
        "gold.user_transactions_5m          0          0 s  2026-11-22 08:13:40",
        "export.user_transactions_5m        5  47 min 21 s",
        "",
        "export                       store  state   since",
        "export.user_transactions_5m  kafka  away",
        "export.user_transactions_5m  redis  behind  2026-11-22 08:12:39",
        "",
        "table                      version  committed            rows  files",
        "bronze.transactions              2  2026-11-22 08:13:00    42      4",
        "silver.transactions              2  2026-11-22 08:13:20    38      2",
        "gold.user_transactions_5m        2  2026-11-22 08:13:40     5      2",
    ]


def test_one_of_60_characters_gets_the_words_what_waits_and_the_processes(tmp_path: Path) -> None:
    lines = shown(seen_in(tmp_path, RUN), 60, with_steps=True)
    assert max(map(len, lines)) <= 60
    assert lines[4:9] == [
        "stream        health      since    waiting",
        "transactions  stopped  08:12:39  5, 47 min",
        "  transactions: 5 rows of gold.user_transactions_5m wait for",
        "  export; no process runs it; the oldest has waited since",
        "  2026-11-22 08:12:39 UTC",
    ]
    assert lines[14:18] == [
        "process 4711 on elsewhere runs gold since 08:00:00, 1,234 r…",
        "  gold.user_transactions_5m fails: OSError: the disk is full",
        "",
        "waits for                    records       oldest",
    ]


def test_one_of_200_characters_gets_whole_times_and_durations(tmp_path: Path) -> None:
    assert shown(seen_in(tmp_path, RUN), 200, alerts_reason=NOBODY)[2:] == [
        NOBODY,
        "stream        health                 since  newest event         waiting  letters",
        "transactions  stopped  2026-11-22 08:12:39    47 min 1 s  5, 47 min 21 s        1",
        (
            "  transactions: 5 rows of gold.user_transactions_5m wait for export; no process runs it; "
            "the oldest has waited since 2026-11-22 08:12:39 UTC"
        ),
        "  stopped: Start it: `lakehouse run all` (docs/run.md)",
        "  unknown: `lakehouse doctor` shows what cannot be reached or read, and why (docs/doctor.md)",
        (
            "  away (store): Start it, or correct its address; the export then sends the rows "
            "(docs/failures.md)"
        ),
        "process 4711 on elsewhere runs gold since 2026-11-22 08:00:00, 1,234 rows/s, telemetry on port 9464",
        "  gold.user_transactions_5m fails: OSError: the disk is full",
    ]


def state(
    name: str, word: Word, reason: str = "", minutes: float | None = None, **values: Any
) -> StreamState:
    """Return a stream that has had this word for so many minutes, while 13,500 records wait."""
    since = None if minutes is None else NOW - timedelta(minutes=minutes)
    lag = PartitionLag(f"topic of {name}", 0, 5, 13_505, 13_500, 780.0)
    given: dict[str, Any] = {"partitions": (lag,), "open_letters": 12, "freshness_s": 3_720.0} | values
    return StreamState(name, Health(word, reason, since), **given)


def test_the_worst_streams_come_first_and_of_them_those_that_have_been_so_for_longest() -> None:
    states = (
        state("well", Word.WELL),
        state("idle", Word.IDLE, minutes=600),
        state("behind", Word.BEHIND, "b", 60),
        state("stopped just now", Word.STOPPED, "s1", 1),
        state("stopped long ago", Word.STOPPED, "s2", 90),
        state("stopped once", Word.STOPPED, "s3"),
    )
    lines = shown(Observation(NOW, states), 80)
    assert [line.split("  ")[0] for line in lines[2:8]] == [
        *("stopped long ago", "stopped just now", "stopped once", "behind", "idle", "well")
    ]
    assert lines[8:12] == [
        "  stopped long ago: s2",
        "  stopped just now: s1",
        "  stopped once: s3",
        "  behind: b",
    ]
    assert lines[12] == "  stopped: Start it: `lakehouse run all` (docs/run.md)"
    assert sum("lakehouse run all" in line for line in lines) == 1


@pytest.mark.parametrize(
    ("topic", "silver", "gold", "expected"),
    [
        ((0, 0.0), [(0, 0.0)], [(0, 0.0)], "0"),
        ((7, 60.0), [(5, 120.0), (6, 180.0)], [(9, 30.0)], "11, 3 min"),
        ((7, 60.0), [(5, None), (6, 180.0)], [(0, 0.0)], "11, ?"),
        ((None, None), [(0, 0.0)], [(9, 30.0)], "9, 30 s"),
        ((None, None), [(0, 0.0)], [(0, 0.0)], "?"),
    ],
)
def test_a_line_has_the_longest_wait_of_the_layers(
    topic: Waits, silver: Sequence[Waits], gold: Sequence[Waits], expected: str
) -> None:
    found = StreamState(
        "sales",
        Health(Word.WELL, ""),
        partitions=(PartitionLag("t", 0, 5, None, *topic),),
        layers=(
            *(LayerLag("silver", "silver.a", "bronze.a", *one) for one in silver),
            *(LayerLag("gold", "gold.a", "silver.a", *one) for one in gold),
        ),
        open_letters=12,
    )
    line = shown(Observation(NOW, (found,)), 80)[2]
    assert " ".join(line.split()) == f"sales well ? {expected} 12"


def test_no_sentence_is_shown_twice() -> None:
    away, lost = "no Kafka broker at k:9092", "stream c in the lake cannot be read: KeyError: 'size'"
    closed = StreamGate(is_open=False, changed_at=NOW, reasons=("too few rows",))
    states = (
        state("a", Word.UNKNOWN, f"topic-a: {away}"),
        state("b", Word.UNKNOWN, away),
        state("c", Word.UNKNOWN, lost),
        state("d", Word.EMPTY, "nothing has been accepted yet"),
        state("e", Word.EMPTY, "nothing has been accepted yet"),
        state("f", Word.BLOCKED, "gate closed: too few rows", gate=closed),
        state("g", Word.STOPPED, "7 rows wait", gate=closed),
    )
    lines = shown(Observation(NOW, states, f"{lost}; ops.gates is lost", away), 100)
    assert lines[1:3] == [f"{lost}; ops.gates is lost", away]
    assert lines[11:15] == [
        "  g: 7 rows wait",
        "  f: gate closed: too few rows",
        "  d, e: nothing has been accepted yet",
        "  gate of g closed since 2026-11-22 09:00:00 UTC: too few rows",
    ]
    words = [line.split(":")[0] for line in lines[15:] if line.startswith("  ") and ": " in line]
    assert words == ["  stopped", "  blocked", "  unknown", "  empty"]
    assert lines[-1] == "no process is running these streams"


def test_the_failure_that_makes_a_stream_fail_is_shown_once() -> None:
    other = QueryRun("export.user_transactions_5m", error="Redis is full")
    run = replace(RUN, queries=(FAILING, other))
    reason = f"{FAILING.name} fails: {FAILING.error}"
    failing = state("transactions", Word.FAILING, reason, runs=(run,))
    lines = shown(Observation(NOW, (failing,)), 100)
    assert [line for line in lines if "fails" in line] == [
        f"  transactions: {reason}",
        "  export.user_transactions_5m fails: Redis is full",
    ]


STOPPED = (
    "13,500 records of {} wait for bronze; no process runs it (last active at 2026-11-22 08:47:00 UTC); "
    "the oldest has waited since 2026-11-22 08:47:00 UTC"
)


@pytest.mark.parametrize("trouble", [2, 3, 12])
def test_twelve_streams_fit_into_a_terminal_of_80_by_24(trouble: int) -> None:
    names = [f"stream-{number:02}" for number in range(12)]
    run = Run("elsewhere", 4711, LAYERS, tuple(names[:9]), NOW - timedelta(days=3), NOW, 9464, (FAILING,))
    gate = StreamGate(is_open=True, changed_at=NOW, reasons=())
    more = {"runs": (run,), "gate": gate, "open_letters": 12_345, "freshness_s": 864_000.0}
    states = tuple(
        state(name, Word.STOPPED, STOPPED.format(name), 60 * 24 * number, **more)
        if number < trouble
        else state(name, Word.IDLE, "", 1, **more)
        for number, name in enumerate(names)
    )
    seen = Observation(NOW, states)
    lines = shown(seen, 80, alerts_reason=NOBODY, height=24)
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert {line[:9] for line in lines[3:15]} == set(names)
    assert sum("wait for bronze" in line for line in lines) == 2
    unshown = "1 more reason" if trouble == 3 else f"{trouble - 2} more reasons"
    left = [f"  {unshown}: `lakehouse status --once` shows all"] if trouble > 2 else []
    assert lines[-2 - len(left) :] == [
        *left,
        "process 4711 on elsewhere runs all layers of 9 streams since 11-19 09:00, 1,234…",
        "  gold.user_transactions_5m fails: OSError: the disk is full",
    ]
    assert sum("wait for bronze" in line for line in shown(seen, 80)) == trouble


def test_status_as_json_says_which_processes_run_a_stream(tmp_path: Path) -> None:
    run = Run("elsewhere", 4711, ("gold",), ("transactions",), NOW, NOW, None, (QueryRun("gold.other"),))
    (found,) = seen_in(tmp_path, run).as_json()["streams"]
    assert found["runs"] == [
        {
            "host": "elsewhere",
            "pid": 4711,
            "layers": ["gold"],
            "streams": ["transactions"],
            "started_at": "2026-11-22T09:00:00+00:00",
            "beat_at": "2026-11-22T09:00:00+00:00",
            "telemetry_port": None,
            "queries": [],
        }
    ]
