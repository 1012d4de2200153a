"""Dead letters in a topic: as they came, with headers, once each, and once more when they are settled."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from lakehouse.common.errors import PositionError, TableError
from lakehouse.engine.layers import Allow
from lakehouse.engine.layers.letters_export import filter_told, steps
from lakehouse.engine.layers.step import Permitted
from lakehouse.engine.records.dead_letters import SCHEMA, Selection
from lakehouse.engine.runtime.runner import RunOptions, run
from lakehouse.engine.runtime.triggers import AVAILABLE_NOW
from lakehouse.operations.copies.copying import Copying, note_adoption
from lakehouse.operations.repair.replay import discard
from lakehouse.settings import Settings
from lakehouse.sinks.kafka.letters import Letter, record_of
from lakehouse.storage.spark.collecting import local_frame
from lakehouse.storage.tables import Lake
from lakehouse.streams.definition import Stream
from tests.support import delta_commands, pipeline
from tests.support.damage import as_in_a_new_process
from tests.support.pipeline import Raw
from tests.support.settings import MakeSettings
from tests.support.streams import TRANSACTIONS

SOURCE = TRANSACTIONS.sources[0]
NOON_MS = 1_772_366_400_000
ZERO = Raw(b'{"userId":"ann","amount":0}', b"ann", (("trace", b"\x00\xff"), ("empty", b"")), 0, NOON_MS)
BROKEN = Raw(b"{", None, (), 0, NOON_MS + 1)
NO_OBJECT = Raw(b"[]", None, (), 0, NOON_MS + 3)
FINE = Raw(b'{"userId":"bob","amount":1}', b"bob", (), 0, NOON_MS + 2)
NOW = datetime(2026, 3, 1, 13, tzinfo=UTC)


def send_waiting(lake: Lake, stream: Stream, settings: Settings, permitted: Permitted, now: datetime) -> int:
    """Run the step until no letter is waiting; return how many it has sent."""
    (maker,) = steps(lake, stream, settings, permitted)
    step, count = maker.make(), 0
    try:
        step.end_here(())
        while (batch := step.plan({})) is not None:
            with step.write(batch, now) as passed:
                count += passed.result.rows
    finally:
        step.close()
    return count


@pytest.fixture
def settings(make_settings: MakeSettings) -> Settings:
    first = make_settings({"kafka.topic_partitions": 1})
    name = first.topic(SOURCE.topic).replace(SOURCE.topic, "letters")
    return first.changed({"kafka.dead_letter_topic": name})


def told(settings: Settings) -> list[tuple[bytes | None, bytes | None, dict[str, bytes | None]]]:
    """Return key, value and headers of each message of the topic, read committed."""
    found = pipeline.read_topic(settings.kafka.bootstrap_servers, settings.kafka.dead_letter_topic)
    return [(one.key, one.value, dict(one.headers)) for one in found]


def test_each_letter_is_told_once_as_it_came(spark: SparkSession, settings: Settings) -> None:
    topic = settings.topic(SOURCE.topic)
    pipeline.send(settings, [ZERO, BROKEN, FINE], SOURCE)
    pipeline.run_layers(spark, settings, "bronze", "silver", "export", stream=TRANSACTIONS)

    ids = {row["offset"]: row["id"] for row in pipeline.rows_of(settings, pipeline.DEAD_LETTERS)}
    (first, second) = told(settings)
    assert first[:2] == (b"ann", ZERO.value)
    reasons = first[2].pop("lakehouse.letter.reasons")
    assert reasons is not None
    assert json.loads(reasons) == [
        {"rule": "not_positive", "column": "amount", "message": "amount must be above 0, not 0"}
    ]
    assert first[2] == {
        "trace": b"\x00\xff",
        "empty": b"",
        "__streams.errors.exception": b"not_positive",
        "__streams.errors.message": b"amount must be above 0, not 0",
        "__streams.errors.topic": topic.encode(),
        "__streams.errors.partition": b"0",
        "__streams.errors.offset": b"0",
        "lakehouse.letter.id": ids[0].encode(),
        "lakehouse.letter.stream": b"transactions",
        "lakehouse.letter.status": b"open",
    }
    assert second[:2] == (None, b"{")
    assert second[2]["__streams.errors.exception"] == b"not_json"

    lake, permitted = Lake(spark, settings.lake), Permitted()
    assert send_waiting(lake, TRANSACTIONS, settings, permitted, NOW) == 0
    discard(lake, [TRANSACTIONS], Selection(rule="not_json"), NOW)
    assert send_waiting(lake, TRANSACTIONS, settings, permitted, NOW) == 1
    *_, last = told(settings)
    assert last[:2] == (None, b"{")
    assert (last[2]["lakehouse.letter.id"], last[2]["lakehouse.letter.status"]) == (
        ids[1].encode(),
        b"discarded",
    )
    assert len(told(settings)) == 3

    # Without the lake's note, what Kafka knows is enough.
    (path,) = pipeline.path_of(settings, pipeline.DEAD_LETTERS).glob("_lakehouse_export/*.json")
    path.unlink()
    assert send_waiting(lake, TRANSACTIONS, settings, permitted, NOW) == 0


@pytest.mark.soak
@pytest.mark.parametrize(
    ("since", "sent"),
    [([], []), ([BROKEN], [BROKEN.value, NO_OBJECT.value])],
    ids=["nothing-since-the-copy", "a-letter-that-the-copy-lacks"],
)
def test_an_adopted_copy_tells_the_letters_since_it_was_made(
    spark: SparkSession, settings: Settings, tmp_path: Path, since: list[Raw], sent: list[bytes]
) -> None:
    """The copy gets the lost lake's letter and a new one in one commit, whose version was already sent."""
    lake, copy = Lake(spark, settings.lake), Lake(spark, str(tmp_path / "copy"))
    moved = settings.model_copy(update={"lake": copy.root})
    pipeline.send(settings, [ZERO], SOURCE)
    pipeline.run_layers(spark, settings, "bronze", "silver", "export", stream=TRANSACTIONS)
    Copying(lake, copy, [TRANSACTIONS]).run()
    pipeline.send(settings, since, SOURCE)
    pipeline.run_layers(spark, settings, "bronze", "silver", "export", stream=TRANSACTIONS)
    assert [value for _, value, _ in told(settings)] == [ZERO.value, *(one.value for one in since)]
    as_in_a_new_process(spark)

    note_adoption(copy)
    pipeline.send(settings, [NO_OBJECT for _ in since], SOURCE)
    pipeline.run_layers(spark, moved, "bronze", "silver", "gold", stream=TRANSACTIONS)
    run(copy, [TRANSACTIONS], ["export"], moved, RunOptions(AVAILABLE_NOW, adopts=True))
    pipeline.run_layers(spark, moved, "export", stream=TRANSACTIONS)

    assert [value for _, value, _ in told(settings)][1 + len(since) :] == sent
    with pytest.raises(
        PositionError, match=r"^a copy of silver.dead_letters was adopted at .* on the adopted copy"
    ):
        send_waiting(lake, TRANSACTIONS, settings, Permitted(), NOW)


FEED = """\
1 insert           a open
1 insert           b superseded
2 update_preimage  a open
2 update_postimage a open
3 update_postimage a replayed
3 update_preimage  a open
4 update_preimage  a replayed
4 update_postimage a open
5 update_preimage  b superseded
5 update_postimage b open
6 insert           a discarded
6 delete           a open
7 delete           a discarded
"""


@pytest.mark.parametrize(
    ("is_partial", "told"),
    [
        (False, ["a open", "a replayed", "a open", "b open", "a discarded"]),
        (True, ["a open", "b superseded", "a replayed", "a open", "b open", "a discarded"]),
    ],
)
def test_a_letter_is_told_when_it_is_new_and_open_and_when_its_status_changes(
    spark: SparkSession, is_partial: bool, told: list[str]
) -> None:
    rows = [
        {
            **dict.fromkeys(SCHEMA.names),
            "stream": "s",
            "topic": "t",
            "partition": 0,
            "offset": ord(id_),
            "first_seen": NOW,
            "id": id_,
            "status": status,
            "_change_type": kind,
            "_commit_version": int(version),
        }
        for version, kind, id_, status in map(str.split, FEED.splitlines())
    ]
    rows += [{**row, "stream": "another"} for row in rows]
    schema = StructType(
        [*SCHEMA, StructField("_change_type", StringType()), StructField("_commit_version", LongType())]
    )
    found = filter_told(local_frame(spark, rows, schema), "s", is_partial=is_partial).collect()
    assert [f"{row.id} {row.status}" for row in found] == told


@pytest.mark.soak
def test_letters_whose_changes_vacuum_has_removed_are_sent_if_that_is_allowed(
    spark: SparkSession, settings: Settings
) -> None:
    lake = Lake(spark, settings.lake)
    pipeline.send(settings, [ZERO], SOURCE)
    pipeline.run_layers(spark, settings, "bronze", "silver", "export", stream=TRANSACTIONS)
    pipeline.send(settings, [BROKEN], SOURCE)
    pipeline.run_layers(spark, settings, "bronze", "silver", stream=TRANSACTIONS)
    discard(lake, [TRANSACTIONS], Selection(rule="not_json"), NOW)
    delta_commands.vacuum(spark, settings, pipeline.DEAD_LETTERS, everything=True)

    with pytest.raises(TableError, match=r"silver.dead_letters up to version .* --allow resend"):
        send_waiting(lake, TRANSACTIONS, settings, Permitted(), NOW)
    assert send_waiting(lake, TRANSACTIONS, settings, Permitted(allow=(Allow.RESEND,)), NOW) == 1
    _, (_, value, headers) = told(settings)
    assert (value, headers["lakehouse.letter.status"]) == (b"{", b"discarded")
    assert send_waiting(lake, TRANSACTIONS, settings, Permitted(), NOW) == 0


@pytest.mark.soak
def test_a_lake_without_letters_needs_to_be_allowed_only_once(
    spark: SparkSession, settings: Settings, tmp_path: Path
) -> None:
    pipeline.send(settings, [ZERO], SOURCE)
    pipeline.run_layers(spark, settings, "bronze", "silver", "export", stream=TRANSACTIONS)

    another = Lake(spark, str(tmp_path / "another"))
    with pytest.raises(PositionError, match="--allow resend"):
        send_waiting(another, TRANSACTIONS, settings, Permitted(), NOW)
    assert send_waiting(another, TRANSACTIONS, settings, Permitted(allow=(Allow.RESEND,)), NOW) == 0
    assert send_waiting(another, TRANSACTIONS, settings, Permitted(), NOW) == 0


def test_what_a_topic_would_not_take_is_left_out_and_said() -> None:
    letter = Letter(
        "1", "s", "open", "t", 0, 7, b"k" * 100, b"v" * 2000, (("h", b"x" * 900),), [{"rule": "r"}]
    )
    whole = record_of(letter, "letters", 100_000)
    assert (whole.key, whole.value) == (letter.key, letter.value)
    without_value = record_of(letter, "letters", 2_500)
    assert (without_value.key, without_value.value) == (letter.key, None)
    assert dict(without_value.headers)["lakehouse.letter.left_out"] == b"a value of 2000 bytes"
    bare = record_of(letter, "letters", 1_000)
    assert (bare.key, bare.value) == (None, None)
    assert dict(bare.headers)["lakehouse.letter.left_out"] == b"key, headers, and a value of 2000 bytes"
    assert dict(bare.headers)["lakehouse.letter.id"] == b"1"


@pytest.mark.soak
def test_what_comes_back_does_not_grow_and_is_not_sent_for_ever(
    spark: SparkSession, settings: Settings
) -> None:
    """A mirror copies the dead-letter topic to the input five times."""
    record, said = Raw(b"{", b"ann", (("trace", b"7f"),), 0, NOON_MS), list[str]()
    lake, permitted = Lake(spark, settings.lake), Permitted(on_notice=said.append)
    counts = []
    for _ in range(5):
        pipeline.send(settings, [record], SOURCE)
        pipeline.run_layers(spark, settings, "bronze", "silver", stream=TRANSACTIONS)
        counts.append(send_waiting(lake, TRANSACTIONS, settings, permitted, NOW))
        *_, last = pipeline.read_topic(settings.kafka.bootstrap_servers, settings.kafka.dead_letter_topic)
        record = Raw(last.value, last.key, tuple(last.headers), 0, NOON_MS)

    assert counts == [1, 1, 1, 1, 0]
    assert (last.value, last.key) == (b"{", b"ann")
    names = [name for name, _ in last.headers]
    assert len(names) == len(set(names)) == 11
    assert dict(last.headers)["trace"] == b"7f"
    assert dict(last.headers)["lakehouse.letter.round"] == b"3"
    assert dict(last.headers)["__streams.errors.offset"] == b"3"
    assert len(pipeline.rows_of(settings, pipeline.DEAD_LETTERS)) == 5
    (notice,) = said
    assert notice.startswith(
        f"export.transactions_dead_letters: dead letters not sent to {settings.kafka.dead_letter_topic} "
    )
    assert " times: 1. They remain in " in notice
