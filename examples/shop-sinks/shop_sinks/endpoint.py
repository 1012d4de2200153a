"""An endpoint that `shop_sinks.http` can send rows to, for tests and as a model for a real one.

    python -m shop_sinks.endpoint --port 8099 --file rows.sqlite

Requests and answers are JSON objects. A `position` is opaque; a `message` is text, or null if the row was
deleted; a `version` is compared with those of other rows of the table.

    GET  /                               {}
    GET  /position?table=T&id=I          {generation, position}  null if there are no rows of T, or not of I
    GET  /rows?table=T&after=KEY         {rows: [{key, version, message}]}  the next ones, sorted by key
    POST /rows      {table, id, generation, refill, rows}            {changed}
    POST /position  {table, id, generation, refill, expected, position, last}  {changed}

- The newest version of each row is kept, and deletions are remembered. In one version, a row that exists
  comes after a deletion.
- A table with another `id` replaces the rows of the one before; one with an earlier `generation` is refused
  with 409.
- The position is set if it is `expected` (or set already); otherwise, the answer is 409.
- With a `refill`, setting the position drops the rows that were not sent with the same `refill`, except those
  with a version after `last`.
- A POST whose `Idempotency-Key` was seen within a day does nothing and changes 0 rows.
"""

from __future__ import annotations

import argparse
import hmac
import json
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

_MOST_BYTES = 64 << 20
_PAGE_ROWS = 500
_REMEMBERED_S = 24 * 3600
_TABLES = """
CREATE TABLE IF NOT EXISTS tables (name TEXT PRIMARY KEY, id TEXT, generation INTEGER, position TEXT);
CREATE TABLE IF NOT EXISTS rows (
    name TEXT, key TEXT, version INTEGER, message TEXT, refill TEXT, PRIMARY KEY (name, key)
);
CREATE TABLE IF NOT EXISTS seen (key TEXT PRIMARY KEY, at REAL);
"""
_MESSAGE = "SELECT message FROM rows WHERE name = :table AND key = :key"
_KEEP = """
INSERT INTO rows VALUES (:table, :key, :version, :message, :refill)
ON CONFLICT (name, key) DO UPDATE
SET version = excluded.version, message = excluded.message, refill = coalesce(excluded.refill, refill)
WHERE (excluded.version, excluded.message IS NOT NULL) >= (version, message IS NOT NULL)
"""
_REACH = "UPDATE tables SET position = ? WHERE name = ?"
_DROP = """
DELETE FROM rows WHERE name = :table AND refill IS NOT :refill
AND version <= :last
RETURNING message
"""


class ConflictError(Exception):
    """The endpoint has a newer table, or another position than expected."""


class Store:
    """The rows and positions in a SQLite file. Each request is a transaction."""

    def __init__(self, file: Path) -> None:
        self._file = file
        with closing(sqlite3.connect(file)) as database:
            database.executescript(_TABLES)

    def position(self, table: str, id_: str) -> dict[str, Any]:
        """Return the table's generation and position; the position is None for a table with another id."""
        with self._transaction() as database:
            found = _known(database, table)
        is_its = found is not None and found["id"] == id_
        return {
            "generation": None if found is None else found["generation"],
            "position": json.loads(found["position"]) if found is not None and is_its else None,
        }

    def rows(self, table: str, after: str) -> list[dict[str, Any]]:
        """Return the next rows after a key, including deleted ones."""
        asked = "SELECT key, version, message FROM rows WHERE name = ? AND key > ? ORDER BY key LIMIT ?"
        with self._transaction() as database:
            return [dict(row) for row in database.execute(asked, (table, after, _PAGE_ROWS))]

    def keep(self, value: dict[str, Any], key: str) -> int:
        """Keep the newest version of each row, and return how many rows changed."""
        with self._transaction() as database:
            _begin(database, value)
            of_table = {"table": value["table"], "refill": value["refill"]}
            is_new = _note(database, key)
            return sum(_kept(database, of_table | row) for row in value["rows"]) if is_new else 0

    def reach(self, value: dict[str, Any], key: str) -> int:
        """Set the position, and return how many rows were dropped.

        Raises ConflictError if the position is not the expected one.
        """
        with self._transaction() as database:
            known = _begin(database, value)
            if not _note(database, key):
                return 0
            if known not in (value["expected"], value["position"]):
                raise ConflictError(f"the position is {known}, not {value['expected']}")
            database.execute(_REACH, (json.dumps(value["position"]), value["table"]))
            dropped = [] if value["refill"] is None else database.execute(_DROP, value).fetchall()
            return sum(row["message"] is not None for row in dropped)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._file, timeout=30, isolation_level=None)) as database:
            database.row_factory = sqlite3.Row
            database.execute("BEGIN IMMEDIATE")
            yield database
            database.execute("COMMIT")


def _known(database: sqlite3.Connection, table: str) -> sqlite3.Row | None:
    found: sqlite3.Row | None = database.execute("SELECT * FROM tables WHERE name = ?", (table,)).fetchone()
    return found


def _begin(database: sqlite3.Connection, value: dict[str, Any]) -> Any:
    """Make room for the request's table, and return its position. Raises ConflictError if it is too old."""
    found = _known(database, value["table"])
    if found is not None and found["generation"] > value["generation"]:
        raise ConflictError("there are rows of a newer table")
    if found is not None and found["id"] == value["id"]:
        return json.loads(found["position"])
    database.execute("DELETE FROM rows WHERE name = :table", value)
    database.execute("REPLACE INTO tables VALUES (:table, :id, :generation, 'null')", value)
    return None


def _note(database: sqlite3.Connection, key: str) -> bool:
    """Remember a request, and return whether it is new."""
    database.execute("DELETE FROM seen WHERE at < ?", (time.time() - _REMEMBERED_S,))
    return database.execute("INSERT OR IGNORE INTO seen VALUES (?, ?)", (key, time.time())).rowcount == 1


def _kept(database: sqlite3.Connection, row: dict[str, Any]) -> bool:
    before = database.execute(_MESSAGE, row).fetchone()
    database.execute(_KEEP, row)
    after = database.execute(_MESSAGE, row).fetchone()
    return bool(after["message"] != (None if before is None else before["message"]))


class _Handler(BaseHTTPRequestHandler):
    """Answers with JSON; keeps connections alive."""

    protocol_version = "HTTP/1.1"
    timeout = 60
    server: Endpoint

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        if length > _MOST_BYTES:
            self.close_connection = True
            self._send(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {"error": f"more than {_MOST_BYTES} bytes"})
        else:
            self._answer(self.rfile.read(length))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the base class
        """Log nothing: requests contain keys of rows."""

    def _answer(self, body: bytes | None) -> None:
        if not self.server.is_allowed(self.headers.get("Authorization", "")):
            self._send(HTTPStatus.UNAUTHORIZED, {"error": "the token is missing or wrong"})
            return
        try:
            value = self._read() if body is None else self._write(json.loads(body))
        except ConflictError as error:
            self._send(HTTPStatus.CONFLICT, {"error": str(error)})
        except (KeyError, TypeError, ValueError, sqlite3.Error) as error:
            self._send(HTTPStatus.BAD_REQUEST, {"error": f"{type(error).__name__}: {error}"})
        else:
            self._send(HTTPStatus.OK, value)

    def _read(self) -> dict[str, Any]:
        address = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(address.query).items()}
        if address.path == "/position":
            return self.server.store.position(query["table"], query["id"])
        if address.path == "/rows":
            return {"rows": self.server.store.rows(query["table"], query.get("after", ""))}
        if address.path != "/":
            raise ValueError(f"there is no {address.path}")
        return {}

    def _write(self, value: dict[str, Any]) -> dict[str, Any]:
        acts = {"/rows": self.server.store.keep, "/position": self.server.store.reach}
        return {"changed": acts[self.path](value, self.headers["Idempotency-Key"])}

    def _send(self, status: HTTPStatus, value: dict[str, Any]) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Endpoint(ThreadingHTTPServer):
    """The endpoint, on this machine only. Port 0 is a free port; without a token, everyone is allowed."""

    def __init__(self, port: int, file: Path, token: str | None = None) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.store, self._token = Store(file), token

    @property
    def url(self) -> str:
        """The address for sinks.http.url."""
        return f"http://127.0.0.1:{self.server_port}"

    def is_allowed(self, authorization: str) -> bool:
        """Return whether a request's Authorization header has the token."""
        if self._token is None:
            return True
        return hmac.compare_digest(authorization.encode(), f"Bearer {self._token}".encode())


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m shop_sinks.endpoint", description="Keep gold rows.")
    parser.add_argument("--port", type=int, default=8099)
    parser.add_argument("--file", type=Path, default=Path("rows.sqlite"), help="the SQLite file")
    parser.add_argument("--token-file", type=Path, help="the file with the token that requests must have")
    given = parser.parse_args(arguments)
    token = None if given.token_file is None else given.token_file.read_text(encoding="utf-8").strip()
    with Endpoint(given.port, given.file, token) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
