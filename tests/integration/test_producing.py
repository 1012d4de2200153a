import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaConsumer
from kafka.partitioner.default import murmur2
from typer.testing import CliRunner

from lakehouse.cli.commands.produce import app
from lakehouse.common.errors import LakehouseError, ProduceError, ServiceError, SettingsError
from lakehouse.dev.samples import Sample, calls, sales, spread_times, transactions
from lakehouse.dev.samples.metrics import samples
from lakehouse.dev.samples.mixing import Shares
from lakehouse.dev.samples.producing import SendingProgress, bursts, produce
from lakehouse.dev.services.services import Endpoints
from lakehouse.settings.kafka_access import KafkaAccess
from lakehouse.storage.kafka.topics import create_topics
from tests.support.pipeline import read_topic
from tests.support.sampling import CONTRACTS

NOW_MS = 1_767_225_600_000
UNREACHABLE = "127.0.0.1:1"
TOPICS = {"calls": calls.TOPICS, "sales": sales.TOPICS, "transactions": transactions.TOPICS}


class FakeClock:
    """A clock that only `sleep` and `busy` advance."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def busy(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def topic(services: Endpoints) -> str:
    name = f"producing-{uuid.uuid4().hex}"
    create_topics(services.access, {name: 4})
    return name


def by_key(pairs: Iterable[tuple[bytes | None, bytes | None]]) -> dict[bytes | None, list[bytes | None]]:
    grouped: dict[bytes | None, list[bytes | None]] = defaultdict(list)
    for key, value in pairs:
        grouped[key].append(value)
    return grouped


def environment(bootstrap_servers: str, topics: Mapping[str, str]) -> dict[str, str]:
    return {
        "LAKEHOUSE_KAFKA_BOOTSTRAP_SERVERS": bootstrap_servers,
        "LAKEHOUSE_TOPICS": json.dumps(dict(topics)),
    }


# Pacing, with a fake clock.


def test_bursts_are_due_when_their_last_event_is() -> None:
    clock = FakeClock()

    sent = 0
    for size in bursts(10_000, 1050, clock=clock, sleep=clock.sleep):
        sent += size
        assert clock.now == pytest.approx(1000 + sent / 10_000)

    assert sent == 1050


def test_a_delay_is_caught_up_with_and_does_not_add_up() -> None:
    clock = FakeClock()

    for number, _ in enumerate(bursts(1000, 10_000, clock=clock, sleep=clock.sleep)):
        clock.busy(2.0 if number == 100 else 0.004)

    assert clock.now == pytest.approx(1010, abs=0.005)


def test_a_pace_that_cannot_be_kept_does_not_sleep() -> None:
    clock = FakeClock()

    for _ in bursts(1000, 1000, clock=clock, sleep=clock.sleep):
        clock.busy(0.02)

    assert len(clock.slept) == 1


def test_a_slow_pace_gives_turns_while_it_waits() -> None:
    clock = FakeClock()

    sizes = list(bursts(0.5, 2, clock=clock, sleep=clock.sleep))

    assert [size for size in sizes if size] == [1, 1]
    assert sizes.count(0) >= 10
    assert max(clock.slept) <= 0.2
    assert clock.now == pytest.approx(1004)


def test_without_a_rate_nothing_waits() -> None:
    clock = FakeClock()

    assert sum(bursts(None, 1234, clock=clock, sleep=clock.sleep)) == 1234
    assert clock.slept == []


# Delivery to a real broker.


def test_everything_arrives_once_byte_for_byte_and_in_order_per_key(services: Endpoints, topic: str) -> None:
    sent = list(
        samples(
            5000,
            spread_times(5000, end_ms=NOW_MS, span_s=600),
            seed=11,
            shares=Shares(malformed=0.02, late=0.02, duplicates=0.02),
        )
    )

    summary = produce(services.access, topic, sent)

    assert (summary.sent, summary.acknowledged, summary.failed) == (5000, 5000, 0)
    assert summary.kinds == Counter(sample.kind for sample in sent)
    assert summary.first_error is None
    assert not summary.stopped
    records = read_topic(services.kafka, topic)
    assert by_key((r.key, r.value) for r in records) == by_key((s.key, s.value) for s in sent)
    assert len({r.partition for r in records}) == 4


def test_of_several_topics_each_sample_goes_to_the_one_at_its_source(services: Endpoints, topic: str) -> None:
    topics = (topic, f"{topic}-metrics")
    create_topics(services.access, dict.fromkeys(topics, 2))
    sent = CONTRACTS["calls"].generate(3000, malformed=0.02, late=0.02, duplicates=0.02)

    summary = produce(services.access, topics, sent)

    assert (summary.sent, summary.acknowledged, summary.failed) == (3000, 3000, 0)
    for source, name in enumerate(topics):
        expected = by_key((s.key, s.value) for s in sent if s.source == source)
        assert by_key((r.key, r.value) for r in read_topic(services.kafka, name)) == expected


def test_a_sample_without_a_time_of_its_own_has_kafkas(services: Endpoints, topic: str) -> None:
    began_ms = time.time() * 1000

    produce(services.access, topic, [Sample(b"a", None, "tombstone", timestamp_ms=NOW_MS)])
    produce(services.access, topic, [Sample(None, None, "malformed:tombstone_key_null")])

    found = {record.key: (record.value, record.timestamp) for record in read_topic(services.kafka, topic)}
    assert found[b"a"] == (None, NOW_MS)
    assert found[None][1] >= began_ms - 1


def test_keys_go_to_the_partitions_that_javas_producer_chooses(services: Endpoints, topic: str) -> None:
    keys = [f"key-{number}".encode() for number in range(50)]

    produce(services.access, topic, [Sample(key, b"{}", "valid") for key in keys])

    chosen = {record.key: record.partition for record in read_topic(services.kafka, topic)}
    assert chosen == {key: (murmur2(key) & 0x7FFFFFFF) % 4 for key in keys}


def test_a_paced_run_sends_its_total_of_endless_samples_and_reports_progress(
    services: Endpoints, topic: str
) -> None:
    seen: list[SendingProgress] = []
    endless = (Sample(b"k", b"%d" % number, "valid") for number in count())

    summary = produce(services.access, topic, endless, rate=1000, total=700, on_progress=seen.append)

    assert (summary.sent, summary.acknowledged) == (700, 700)
    assert [int(record.value) for record in read_topic(services.kafka, topic)] == list(range(700))
    assert (seen[-1].sent, seen[-1].acknowledged, seen[-1].total) == (700, 700, 700)
    assert [progress.sent for progress in seen] == sorted(progress.sent for progress in seen)


def test_more_than_the_clients_queue_holds_is_sent_whole(services: Endpoints, topic: str) -> None:
    summary = produce(services.access, topic, [Sample(b"k", b"x", "valid")] * 250_000)

    assert (summary.sent, summary.acknowledged, summary.failed) == (250_000, 250_000, 0)


def test_stop_ends_a_run_with_everything_sent_accounted_for(services: Endpoints, topic: str) -> None:
    seen: list[SendingProgress] = []
    endless = (Sample(b"k", b"x", "valid") for _ in count())

    summary = produce(
        services.access,
        topic,
        endless,
        rate=2000,
        on_progress=seen.append,
        stop=lambda: len(seen) >= 2,
    )

    assert summary.stopped
    assert summary.sent == summary.acknowledged == len(read_topic(services.kafka, topic)) > 0


# Failures.


def test_what_the_broker_refuses_is_counted_with_the_first_reason(services: Endpoints) -> None:
    topic = f"producing-{uuid.uuid4().hex}"
    admin = KafkaAdminClient(bootstrap_servers=services.kafka)
    refusing = {topic: {"num_partitions": 4, "configs": {"max.message.bytes": "100"}}}
    admin.create_topics(refusing, wait_for_metadata=True)
    admin.close()

    summary = produce(services.access, topic, [Sample(b"k", b"x" * 4000, "valid")] * 10)

    assert (summary.sent, summary.acknowledged, summary.failed) == (10, 0, 10)
    assert "large" in str(summary.first_error).lower()


def test_what_the_client_refuses_fails_alone(services: Endpoints, topic: str) -> None:
    small = Sample(b"k", b"x", "valid")

    summary = produce(services.access, topic, [small, Sample(b"k", b"x" * 2_000_000, "valid"), small])

    assert (summary.sent, summary.acknowledged, summary.failed) == (3, 2, 1)


def test_a_missing_topic_is_an_error_that_names_it(services: Endpoints) -> None:
    with pytest.raises(ProduceError, match="cannot produce to topic no-such-topic"):
        produce(services.access, "no-such-topic", [])


def test_a_rate_of_zero_is_refused() -> None:
    with pytest.raises(ProduceError, match="expected a positive, finite rate"):
        produce(KafkaAccess(UNREACHABLE), "t", [], rate=0)


def test_an_unreachable_broker_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment(UNREACHABLE, {}).items():
        monkeypatch.setenv(name, value)

    result = CliRunner().invoke(app, ["metrics", "--events", "5"])

    assert isinstance(result.exception, ServiceError)
    assert "\n" not in str(result.exception)


# The command.


@pytest.mark.parametrize(
    ("arguments", "got"),
    [
        ([], "none"),
        (["--rate", "5"], "--rate"),
        (["--seconds", "5"], "--seconds"),
        (["--events", "5", "--seconds", "5"], "--events and --seconds"),
        (["--events", "5", "--rate", "5", "--seconds", "1"], "--events and --rate and --seconds"),
    ],
)
def test_the_command_takes_one_form_only(arguments: list[str], got: str) -> None:
    result = CliRunner().invoke(app, ["metrics", *arguments])

    assert isinstance(result.exception, SettingsError)
    assert str(result.exception) == (
        f"got {got}; expected --events N, or --rate R --seconds S, or --events N --rate R"
    )


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--events", "5", "--rate", "inf"], "--rate inf"),
        (["--rate", "5", "--seconds", "inf"], "--seconds inf"),
        (["--events", "5", "--span", "inf"], "--span inf"),
        (["--events", "5", "--late", "0.9", "--malformed", "0.2"], "late 0.9"),
    ],
)
def test_the_command_refuses_numbers_that_make_no_sense(arguments: list[str], named: str) -> None:
    result = CliRunner().invoke(app, ["metrics", *arguments])

    assert isinstance(result.exception, LakehouseError)
    assert named in str(result.exception)


@pytest.fixture
def command_topic(services: Endpoints, monkeypatch: pytest.MonkeyPatch) -> str:
    """Configure a topic that does not exist yet as the metrics topic, and return its name."""
    name = f"producing-{uuid.uuid4().hex}"
    for variable, value in environment(services.kafka, {"metrics-events": name}).items():
        monkeypatch.setenv(variable, value)
    return name


@pytest.fixture
def in_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to an empty directory, and return it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command_creates_the_topic_and_counts_what_it_sent(
    services: Endpoints, command_topic: str
) -> None:
    shares = ["--malformed", "0.05", "--late", "0.04", "--duplicates", "0.1", "--seed", "3"]

    result = CliRunner().invoke(app, ["metrics", "--events", "1000", *shares])

    assert result.exit_code == 0, result.output
    table = {cells[0]: cells[1] for cells in rows(result.stdout)}
    assert table["sent"] == table["acknowledged"] == "1,000"
    assert table["failed"] == "0"
    assert table["malformed"] == "50"
    assert table["late, within the allowed lateness"] == "30"
    assert table["late, beyond it"] == "10"
    assert table["duplicated"] == "100"
    assert "--seed 3" in result.stderr
    assert len(read_topic(services.kafka, command_topic)) == 1000


@pytest.mark.parametrize(
    ("stream", "option", "special"),
    [
        ("calls", ["--one-sided", "0.3"], {}),
        ("sales", ["--tombstones", "0.02"], {"tombstones": "20"}),
        ("transactions", ["--hot-user", "0.5"], {}),
    ],
)
def test_the_other_streams_have_an_option_each(
    services: Endpoints,
    monkeypatch: pytest.MonkeyPatch,
    stream: str,
    option: list[str],
    special: dict[str, str],
) -> None:
    topics = TOPICS[stream]
    own = {name: f"{name}-{uuid.uuid4().hex}" for name in topics}
    for variable, value in environment(services.kafka, own).items():
        monkeypatch.setenv(variable, value)
    shares = ["--malformed", "0.05", "--late", "0.04", "--duplicates", "0.1", "--seed", "3", *option]

    result = CliRunner().invoke(app, [stream, "--events", "1000", *shares])

    assert result.exit_code == 0, result.output
    table = {cells[0]: cells[1] for cells in rows(result.stdout)}
    assert table["acknowledged"] == "1,000"
    expected = {"malformed": "50", "late, beyond it": "10", "duplicated": "100", **special}
    assert {label: table[label] for label in expected} == expected
    assert ("tombstones" in table) == ("tombstones" in special)
    found = [
        Sample(record.key, record.value, "found", source)
        for source, name in enumerate(topics)
        for record in read_topic(services.kafka, own[name])
    ]
    latest_ms = round(time.time() * 1000)
    assert len(found) == 1000
    assert sum(CONTRACTS[stream].breach(sample, latest_ms) is not None for sample in found) == 50
    assert {sample.source for sample in found} == set(range(len(topics)))


def test_records_of_a_file_are_sent_in_their_order_as_envelopes_say(
    services: Endpoints, command_topic: str, tmp_path: Path
) -> None:
    file, other = tmp_path / "records.jsonl", f"other-{uuid.uuid4().hex}"
    create_topics(services.access, {other: 1})
    lines = [
        {"key": "k", "value": {"n": 1}, "headers": {"trace": "7f"}, "timestamp_ms": NOW_MS},
        {"key": "k", "value": None},
        {"key": "k", "value": [2], "topic": other},
        {"key_base64": "/w==", "value": "x", "partition": 0},
    ]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    result = CliRunner().invoke(app, ["file", str(file), "--topic", "metrics-events", "--envelope"])

    assert result.exit_code == 0, result.output
    table = {cells[0]: cells[1] for cells in rows(result.stdout)}
    assert table.keys() == {"sent", "acknowledged", "failed", "duration", "actual rate", "tombstones"}
    assert (table["acknowledged"], table["tombstones"]) == ("4", "1")
    found = sorted(read_topic(services.kafka, command_topic), key=lambda one: one.key == b"\xff")
    assert [(one.key, one.value) for one in found] == [
        (b"k", b'{"n": 1}'),
        (b"k", None),
        (b"\xff", b'"x"'),
    ]
    assert (found[0].timestamp, list(found[0].headers)) == (NOW_MS, [("trace", b"7f")])
    assert found[2].partition == 0
    assert [one.value for one in read_topic(services.kafka, other)] == [b"[2]"]


def test_lines_of_standard_input_are_values_as_they_are(services: Endpoints, command_topic: str) -> None:
    text = '{"a": 1.0}\n\nnot JSON\n'

    result = CliRunner().invoke(app, ["file", "-", "--topic", command_topic], input=text)

    assert result.exit_code == 0, result.output
    found = read_topic(services.kafka, command_topic)
    assert sorted(one.value for one in found) == [b"not JSON", b'{"a": 1.0}']


@pytest.mark.usefixtures("command_topic")
@pytest.mark.parametrize(
    ("line", "options", "error", "why"),
    [
        (
            '{"value": 1}',
            [],
            SettingsError,
            "f:1 names no topic; expected --topic, or a topic in the envelope",
        ),
        ('{"value": 1}', ["--topic", "nowhere"], ProduceError, "cannot produce to topic nowhere"),
        ('{"value": 1, "timestamp_ms": 0}', ["--topic", "t", "--envelope"], SettingsError, "f:1: a time"),
        ("\n", ["--topic", "t"], SettingsError, "f has no records"),
    ],
)
def test_a_file_that_cannot_be_sent_is_refused_before_anything_is(
    in_directory: Path, line: str, options: list[str], error: type[LakehouseError], why: str
) -> None:
    (in_directory / "f").write_text(line)

    result = CliRunner().invoke(app, ["file", "f", *options])

    assert isinstance(result.exception, error)
    assert why in str(result.exception)


def test_an_option_of_another_stream_is_refused() -> None:
    given = ["--one-sided", "0.5", "--hot-user", "0.5"]

    result = CliRunner().invoke(app, ["sales", "--events", "5", *given])

    assert isinstance(result.exception, SettingsError)
    assert str(result.exception) == "--one-sided and --hot-user cannot be used with samples of sales"


def test_tombstones_count_among_the_shares() -> None:
    result = CliRunner().invoke(app, ["sales", "--events", "5", "--tombstones", "0.5", "--late", "0.6"])

    assert isinstance(result.exception, SettingsError)
    assert "tombstones 0.5" in str(result.exception)


def test_ctrl_c_ends_the_command_with_its_summary_and_130(
    services: Endpoints, command_topic: str, tmp_path: Path
) -> None:
    create_topics(services.access, {command_topic: 1})
    command = [sys.executable, "-c", "from lakehouse.cli.commands.produce import app; app()"]
    process = subprocess.Popen(
        [*command, "metrics", "--rate", "200", "--seconds", "3600"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=os.environ,
    )
    try:
        consumer = KafkaConsumer(
            command_topic, bootstrap_servers=services.kafka, auto_offset_reset="earliest"
        )
        next(consumer)
        consumer.close()
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=300)
    finally:
        process.kill()

    assert process.returncode == 130
    table = {cells[0]: cells[1] for cells in rows(output)}
    assert table["sent"] == table["acknowledged"] == f"{len(read_topic(services.kafka, command_topic)):,}"


def rows(table: str) -> Iterator[list[str]]:
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.replace("│", "|").split("|") if cell.strip()]
        if len(cells) == 2:
            yield cells
