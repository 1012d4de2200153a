"""Both sinks keep the promises of a sink, with a real endpoint and real files."""

from __future__ import annotations

import json
import shutil
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakehouse.sinks import (
    Change,
    Position,
    Sending,
    Settings,
    SettingsError,
    SinkKind,
    SinkTroubleError,
    Span,
)
from lakehouse.testing import PROMISES, AssertKept, StoreUnderTest
from shop_sinks import files, http
from shop_sinks.endpoint import Endpoint
from shop_sinks.reading import current_rows, read_state

TABLE = "proof_1h"
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def totals(messages: Iterable[str]) -> dict[str, int]:
    """Return each user's total in the messages of the rows."""
    rows = map(json.loads, messages)
    return {row["userId"]: int(Decimal(row["totalAmount"])) for row in rows}


@dataclass
class Server:
    """An endpoint in a thread, which can be away for a while, and its file."""

    file: Path
    token: str | None = None
    endpoint: Endpoint | None = None
    port: int = 0

    def start(self) -> None:
        self.endpoint = Endpoint(self.port, self.file, self.token)
        self.port = self.endpoint.server_port
        threading.Thread(target=self.endpoint.serve_forever, args=[0.01], daemon=True).start()

    def stop(self) -> None:
        if self.endpoint is not None:
            self.endpoint.shutdown()
            self.endpoint.server_close()

    @contextmanager
    def away(self) -> Iterator[None]:
        self.stop()
        yield
        self.start()

    def settings(self, **keys: str) -> Settings:
        return Settings().changed({"sinks": {"http": {"url": f"http://127.0.0.1:{self.port}", **keys}}})

    def run(self, statements: str) -> list[Any]:
        with closing(sqlite3.connect(self.file)) as database, database:
            return [row for one in statements.split(";") for row in database.execute(one).fetchall()]

    def messages(self) -> list[str]:
        return [message for (message,) in self.run("SELECT message FROM rows WHERE message IS NOT NULL")]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path / "rows.sqlite")
    made.start()
    yield made
    made.stop()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "gold"
    made.mkdir()
    return made


@pytest.mark.parametrize("promise", PROMISES)
def test_http_keeps_its_promises(promise: str, assert_kept: AssertKept, server: Server) -> None:
    store = StoreUnderTest(
        http.KIND,
        server.settings(),
        there=lambda: totals(server.messages()),
        lose=lambda: server.run("DELETE FROM rows; DELETE FROM tables"),
        damage=lambda user: server.run(f"UPDATE rows SET message = '{{}}' WHERE key LIKE '{user}:%'"),
        outage=server.away,
    )
    assert_kept(promise, store)


@pytest.mark.parametrize("promise", PROMISES)
def test_files_keep_their_promises(promise: str, assert_kept: AssertKept, directory: Path) -> None:
    folder = directory / TABLE

    def damage(user: str) -> None:
        for file in folder.glob("day=*/*.parquet"):
            rows = pq.ParquetFile(file).read().to_pylist()
            for row in rows:
                row["message"] = "{}" if row["key"].startswith(f"{user}:") else row["message"]
            pq.write_table(pa.Table.from_pylist(rows), file)

    @contextmanager
    def outage() -> Iterator[None]:
        hidden = directory.with_name("hidden")
        directory.rename(hidden)
        directory.touch()
        yield
        directory.unlink()
        hidden.rename(directory)

    store = StoreUnderTest(
        files.KIND,
        Settings().changed({"sinks": {"files": {"directory": str(directory)}}}),
        there=lambda: totals(current_rows(directory, TABLE).values()),
        lose=lambda: shutil.rmtree(folder),
        damage=damage,
        outage=outage,
    )
    assert_kept(promise, store)


# Without Spark: micro-batches of a table that exists only by name.


def change(key: str, version: int, value: str | None = "{}") -> Change:
    return Change(key, value, version, row_key=key, group="g", member=key, order=1)


def sink_of(kind: SinkKind, settings: Settings, *, id_: str = "a table", generation: int = 1) -> Any:
    """Return a sink as a new process makes it. It cannot be filled, as there is no gold."""
    table: Any = SimpleNamespace(table=SimpleNamespace(name=TABLE), settings=settings)
    table.sent_as, table.generation = id_, generation
    return kind.make(table)


def sending(before: int, after: int, now: datetime = NOON, *, begins_anew: bool = False) -> Sending:
    span = Span("a table", Position(before), Position(after))
    return Sending(span, now, is_first=before == 0, begins_anew=begins_anew)


def send(sink: Any, micro_batch: Sending, changes: Sequence[Change]) -> int:
    sink.begin(micro_batch)
    sink.write(changes)
    written: int = sink.end()
    sink.close()
    return written


def test_a_retry_has_the_idempotency_keys_of_the_first_attempt(server: Server) -> None:
    rows = [change(str(number), 0) for number in range(501)]
    first, retry = (sink_of(http.KIND, server.settings()) for _ in range(2))
    first.begin(sending(0, 1))
    first.write(rows)
    assert server.run("SELECT count(*) FROM rows UNION ALL SELECT count(*) FROM seen") == [(500,), (1,)]
    first.close()

    retry.begin(sending(0, 1))
    for part in (rows[:7], rows[7:]):  # however the rows are handed on
        retry.write(part)

    assert retry.end() == 1
    keys = {http.idempotency_key("a table", "0 to 1", number) for number in range(3)}
    assert {key for (key,) in server.run("SELECT key FROM seen")} == keys
    assert len(keys) == 3


def test_idempotency_keys_differ_by_table_and_span_and_once_rows_differ() -> None:
    later = NOON + timedelta(minutes=1)
    sendings = (
        sending(0, 1),
        sending(0, 2),
        sending(0, 1, begins_anew=True),
        sending(0, 1, later, begins_anew=True),
    )
    keys = {http.idempotency_key(table, http.series_of(one), 0) for one in sendings for table in ("a", "b")}
    assert len(keys) == 8
    assert http.series_of(sending(0, 1, later)) == http.series_of(sending(0, 1))


def test_a_late_request_neither_brings_back_a_deleted_row_nor_an_earlier_position(server: Server) -> None:
    settings = server.settings()
    send(sink_of(http.KIND, settings), sending(0, 1), [change("a", 0), change("b", 0)])
    slow = sink_of(http.KIND, settings)
    slow.begin(sending(1, 2))
    slow.write([change("a", 1, "slow"), change("b", 1, "slow")])
    send(sink_of(http.KIND, settings), sending(1, 4), [change("a", 2, None), change("b", 3, "new")])

    with pytest.raises(
        SinkTroubleError, match=r"answers 409 to POST /position: .*the position is \[4, None\]"
    ):
        slow.end()

    assert server.messages() == ["new"]


def test_the_endpoint_refuses_a_table_that_was_replaced(server: Server) -> None:
    old, new = (
        sink_of(http.KIND, server.settings(), id_=id_, generation=at) for id_, at in (("a", 1), ("b", 2))
    )
    old.begin(sending(0, 1))
    assert send(new, sending(0, 1), [change("b", 0)]) == 1

    old.write([change("a", 0)])
    with pytest.raises(SinkTroubleError, match="there are rows of a newer table"):
        old.end()
    with pytest.raises(SinkTroubleError, match="a lake that is newer than this one"):
        old.require()


def test_an_address_that_is_not_an_endpoint_is_an_error_of_one_line(server: Server) -> None:
    settings = server.settings().changed(
        {"sinks": {"http": {"url": f"http://127.0.0.1:{server.port}/other"}}}
    )
    with pytest.raises(
        SinkTroubleError, match=r"answers 400 to GET /position: .*there is no /other/position"
    ):
        sink_of(http.KIND, settings).require()
    assert not sink_of(http.KIND, settings).lacks_rows()


def test_rows_and_a_micro_batch_behind_a_gap_are_not_sent(server: Server, directory: Path) -> None:
    settings = server.settings().changed(
        {"sinks": {**server.settings().sinks, "files": {"directory": str(directory)}}}
    )
    for kind in (http.KIND, files.KIND):
        with pytest.raises(SinkTroubleError, match="filled"):
            sink_of(kind, settings).begin(sending(1, 2))
        send(sink_of(kind, settings), sending(0, 1), [change("a", 0)])
        with pytest.raises(SinkTroubleError, match="filled"):
            sink_of(kind, settings).begin(sending(2, 3))


def test_the_token_is_sent_and_no_error_contains_it(server: Server, tmp_path: Path) -> None:
    server.token = "s3cret"
    with server.away():
        pass
    file = tmp_path / "token"
    settings = server.settings(token_file=str(file))
    with pytest.raises(SinkTroubleError, match=r"cannot read .*sinks.http.token_file: No such file"):
        http.KIND.require(settings)
    file.write_text("s3cret\n")
    http.KIND.require(settings)
    assert send(sink_of(http.KIND, settings), sending(0, 1), [change("a", 0)]) == 1

    server.token = "another"
    with server.away():
        pass
    for token, message in (("s3cret", "answers 401"), ("s3cret\nX: y", "one token without spaces")):
        file.write_text(token)
        with pytest.raises(SinkTroubleError, match=message) as caught:
            http.KIND.require(settings)
        assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, r"sinks\.http\.url is not set"),
        ({"url": 8099}, r"sinks\.http\.url must be a text"),
        ({"url": "ftp://shop.example/rows"}, r"sinks\.http\.url must be http:// or https://"),
        ({"url": "https://shop.example/rows?a=b"}, r"sinks\.http\.url must be http:// or https://"),
        ({"url": "http://shop.example/rows"}, "use https://, or add shop.example to http_hosts"),
        ({"url": "https://shop.example", "tokenfile": "x"}, r"sinks\.http\.tokenfile: there is no such key"),
    ],
)
def test_a_wrong_key_is_named(keys: dict[str, Any], message: str) -> None:
    settings = Settings().changed({"sinks": {"http": keys}})
    for act in (lambda: http.KIND.require(settings), lambda: sink_of(http.KIND, settings)):
        with pytest.raises(SettingsError, match=message):
            act()


def test_a_missing_directory_is_named() -> None:
    with pytest.raises(SettingsError, match=r"sinks\.files\.directory is not set"):
        files.KIND.require(Settings().changed({"sinks": {"files": {}}}))
    with pytest.raises(SinkTroubleError, match=r"/nowhere \(sinks.files.directory\) is missing"):
        files.KIND.require(Settings().changed({"sinks": {"files": {"directory": "/nowhere"}}}))


@pytest.fixture
def in_files(directory: Path) -> Settings:
    return Settings().changed({"sinks": {"files": {"directory": str(directory)}}})


def names(directory: Path) -> list[str]:
    """Return all Parquet files of the table, without the random parts of their names."""
    found = (directory / TABLE).rglob("*.parquet")
    return sorted(f"{one.parent.name}/{one.name.rpartition('-')[0]}" for one in found)


def test_a_file_contains_a_micro_batch_and_lies_in_the_day_of_its_time_in_utc(
    in_files: Settings, directory: Path
) -> None:
    evening = datetime.fromisoformat("2026-03-01T22:30:00-05:00")
    assert send(sink_of(files.KIND, in_files), sending(0, 1), [change("a", 0), change("b", 0)]) == 2
    assert send(sink_of(files.KIND, in_files), sending(1, 3, evening), [change("a", 2, None)]) == 1
    assert send(sink_of(files.KIND, in_files), sending(3, 4), []) == 0

    assert names(directory) == ["day=2026-03-01/0-1", "day=2026-03-02/1-3"]
    (file,) = directory.glob("*/day=2026-03-02/*.parquet")
    row = {"key": "a", "message": None, "version": 2, "is_deleted": True}
    assert pq.ParquetFile(file).read().to_pylist() == [row]
    assert current_rows(directory, TABLE) == {"b": "{}"}
    assert read_state(directory / TABLE).position == (4, None)


def test_a_micro_batch_sent_again_is_there_once(in_files: Settings, directory: Path) -> None:
    rows = [change("a", 1), change("b", 1)]
    send(sink_of(files.KIND, in_files), sending(0, 1), [change("a", 0)])
    killed = sink_of(files.KIND, in_files)
    killed.begin(sending(1, 2))
    killed.write(rows)
    assert names(directory) == ["day=2026-03-01/0-1", "day=2026-03-01/_1-2"]

    tomorrow = NOON + timedelta(days=1)
    assert [send(sink_of(files.KIND, in_files), sending(1, 2, tomorrow), rows) for _ in range(2)] == [2, 0]
    assert names(directory) == ["day=2026-03-01/0-1", "day=2026-03-02/1-2"]
    with pytest.raises(SinkTroubleError):  # it was not killed, only slow
        killed.end()
    send(sink_of(files.KIND, in_files), sending(1, 3, tomorrow), [*rows, change("c", 2)])
    assert names(directory) == ["day=2026-03-01/0-1", "day=2026-03-02/1-3"]
    assert sorted(current_rows(directory, TABLE)) == ["a", "b", "c"]


def test_a_reader_whose_files_are_replaced_reads_the_new_ones(
    in_files: Settings, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(sink_of(files.KIND, in_files), sending(0, 1), [change("a", 0)])
    before = read_state(directory / TABLE)
    send(sink_of(files.KIND, in_files), sending(0, 2), [change("a", 0), change("b", 1)])
    states = [before, read_state(directory / TABLE)]
    monkeypatch.setattr("shop_sinks.reading.read_state", lambda _folder: states.pop(0))

    assert sorted(current_rows(directory, TABLE)) == ["a", "b"]


@pytest.mark.parametrize("damage", ["no position", "a damaged position", "a missing file"])
def test_lost_files_are_noticed(in_files: Settings, directory: Path, damage: str) -> None:
    send(sink_of(files.KIND, in_files), sending(0, 1), [change("a", 0)])
    assert not sink_of(files.KIND, in_files).lacks_rows()
    position = directory / TABLE / "_position.json"
    if damage == "no position":
        position.unlink()
    elif damage == "a damaged position":
        position.write_text('{"table":')
    else:
        next(directory.glob("*/*/*.parquet")).unlink()
    assert sink_of(files.KIND, in_files).lacks_rows()
