"""`lakehouse find` on a lake that nobody runs, without a broker."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from lakehouse.cli.main import app
from lakehouse.common.errors import LakehouseError, QueryError, SettingsError
from lakehouse.engine.layers import bronze, silver
from lakehouse.engine.records.dead_letters import DEAD_LETTERS
from lakehouse.settings import load_settings
from tests.support.served_lakes import NOON_MS, ServedLake, at, letter, transactions
from tests.support.streams import TRANSACTIONS, USER_TRANSACTIONS_5M

TOPIC = "transactions-topic"
(SOURCE,) = TRANSACTIONS.sources


def id_of(table: DeltaTable) -> str:
    return str(table.metadata().id)


@pytest.fixture(autouse=True)
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServedLake:
    """Return a lake in which bronze has read up to offset 9: 7 is in gold, and 8 is a letter."""
    settings = load_settings().changed({"lake": str(tmp_path / "lake"), "home": tmp_path / "home"})
    monkeypatch.setenv("LAKEHOUSE_HOME", str(settings.home))
    monkeypatch.setenv("LAKEHOUSE_LAKE", settings.lake)
    monkeypatch.setenv("LAKEHOUSE_KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setenv("COLUMNS", "400")
    made = ServedLake(settings)
    times = {"timestamp": at(NOON_MS), "ingested_at": at(NOON_MS + 1500)}
    places = [{"topic": TOPIC, "partition": 0, "offset": offset} for offset in (7, 8)]
    raw = [{**place, **times, "value": b"secret"} for place in places]
    landed = made.write_spec(bronze.spec(SOURCE), raw, noted={f"bronze.transactions reads {TOPIC}:9Zc/0": 9})
    row = {**places[0], "event_time": at(NOON_MS), "user_id": "u1", "amount": Decimal(3)}
    judged = made.write_spec(
        silver.spec(SOURCE), [row], noted={f"silver.transactions reads {id_of(landed)}": 1}
    )
    merged = {f"gold.user_transactions_5m reads {id_of(judged)}": 1}
    gold = USER_TRANSACTIONS_5M
    made.write_to("gold", gold.name, gold.schema, [transactions("u1", NOON_MS, "3")], noted=merged)
    made.write_spec(DEAD_LETTERS, [letter(1, "not_positive", stream="transactions", topic=TOPIC, offset=8)])
    return made


def told(*arguments: str) -> list[str]:
    """Return the lines that the command prints, with single spaces."""
    result = CliRunner().invoke(app, ["find", *arguments])
    assert result.exit_code == 0, result.output
    return [" ".join(line.split()) for line in result.stdout.splitlines()]


def test_a_merged_record_is_told_layer_by_layer() -> None:
    assert told("transactions-topic/0/7") == [
        "transactions-topic/0/7 in transactions",
        "bronze.transactions landed 2026-05-04 12:00:01.500 UTC; Kafka's time is 2026-05-04 12:00:00 UTC",
        "silver.transactions event time 2026-05-04 12:00:00 UTC",
        "gold.user_transactions_5m there: user_id=u1, window_start=2026-05-04 12:00:00 UTC",
        "sent nothing has been sent yet",
    ]


def test_a_refused_record_is_found_by_its_place_and_by_its_letter() -> None:
    lines = told("transactions-topic/0/8")
    first = "2026-05-04 12:00:01 UTC"
    assert lines[2:4] == [
        "silver.transactions not there: it is a dead letter",
        (
            f"silver.dead_letters open dead letter {1:064x}, first refused {first}: "
            "not_positive: it is not_positive"
        ),
    ]
    assert told("--letter", f"{1:064x}"[:20]) == lines


def test_a_record_that_has_not_landed_is_told_as_json() -> None:
    result = CliRunner().invoke(app, ["find", "transactions-topic/0/9", "--format", "json"])
    ((record,),) = [json.loads(result.stdout)]
    assert (record["topic"], record["partition"], record["offset"]) == (TOPIC, 0, 9)
    (stream,) = record["streams"]
    assert stream["bronze"] == {
        "table": "bronze.transactions",
        "is_there": False,
        "kafka_timestamp": None,
        "ingested_at": None,
        "reason": "not landed yet: bronze reads partition 0 from offset 9 on",
    }
    assert stream["silver"]["reason"] == "bronze does not contain it"
    assert stream["gold"][0]["sent"]["version"] == 0


def test_nothing_of_a_records_content_is_printed_but_keys_and_reasons() -> None:
    result = CliRunner().invoke(app, ["find", "transactions-topic/0/7", "--format", "json"])
    key = {"user_id": "u1", "window_start": "2026-05-04T12:00:00Z"}
    assert json.loads(result.stdout)[0]["streams"][0]["gold"][0]["key"] == key
    assert "secret" not in result.stdout
    assert "amount" not in result.stdout.replace("total_amount", "")


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ([], SettingsError, "specify exactly one of TOPIC/PARTITION/OFFSET, --id and --letter"),
        (["a/0/1", "--id", "x"], SettingsError, "specify exactly one of"),
        (["a/0"], SettingsError, "a/0: expected TOPIC/PARTITION/OFFSET, such as transactions-topic/0/17"),
        (["a/2147483648/1"], SettingsError, "expected TOPIC/PARTITION/OFFSET"),
        (["transaction-topic/0/1"], SettingsError, "no stream reads topic 'transaction-topic', only "),
        (["--id", "x"], SettingsError, "--id: no stream's records have ids; set unique_by"),
        (["--letter", "ff"], QueryError, "there is no dead letter whose id begins with 'ff'"),
    ],
)
def test_a_record_that_cannot_be_looked_for_is_refused_in_a_line(
    arguments: list[str], error: type[LakehouseError], said: str
) -> None:
    refused = CliRunner().invoke(app, ["find", *arguments]).exception
    assert isinstance(refused, error)
    assert said in str(refused)
