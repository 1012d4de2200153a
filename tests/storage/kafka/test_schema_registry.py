"""What a registry's answers mean for one id and for the whole registry, from servers that give each of them.

A real registry gives only some of them (tests/integration/test_formats.py).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from lakehouse.common.errors import RegistryError
from lakehouse.settings.registry_access import RegistryAccess
from lakehouse.storage.kafka.schema_registry import Missing, Registered, RegistryClient

Answers = Mapping[str, tuple[int, bytes]]
TYPES = (200, b'["JSON","PROTOBUF","AVRO"]')
HERE = {"/schemas/types": TYPES}
NO_SCHEMA = (404, b'{"error_code":40403,"message":"Schema 7 not found"}')
NO_PATH = (
    404,
    b'{"error_code":404,"message":"HTTP 404 Not Found"}',
)  # Confluent's, for an id beyond 32 bits


class Answering:
    """A server with an answer for each path given and one for all others; it counts connections."""

    def __init__(self, answers: Answers, other: tuple[int, bytes]) -> None:
        self.paths: list[str] = []
        self.connections = 0
        answering = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                answering.connections += 1
                super().setup()

            def do_GET(self) -> None:
                answering.paths.append(self.path)
                status, body = answers.get(self.path, other)
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.access = RegistryAccess(f"http://127.0.0.1:{self.server.server_address[1]}")


@contextmanager
def answering(answers: Answers, other: tuple[int, bytes] = NO_PATH) -> Iterator[Answering]:
    made = Answering(answers, other)
    threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield made
    finally:
        made.server.shutdown()
        made.server.server_close()


@pytest.mark.parametrize(
    ("status", "body", "answered"),
    [
        (404, NO_PATH[1], "404, HTTP 404 Not Found"),
        (404, b"", "404, nothing else"),
        (404, b"<html>\x1b[31mno</html>", r"404, <html>\x1b[31mno</html>"),
        (400, b'{"error_code":40001,"message":"bad"}', "400, bad"),
        (401, b"who?\nare you", "401, who?"),
        (
            403,
            b'{"error_code":40301,"message":"User is denied operation Read"}',
            "403, User is denied operation",
        ),
        (410, b"gone", "410, gone"),
        (
            422,
            b'{"error_code":42202,"message":"The specified id is invalid"}',
            "422, The specified id is inval",
        ),
        (422, "é".encode() * 5_000, f"422, {'é' * 200}…"),
        (200, b"", "no schema (AVRO, JSON, PROTOBUF), but 200, nothing else"),
        (200, b"<html>", "no schema (AVRO, JSON, PROTOBUF), but 200, <html>"),
        (200, b"null", "no schema (AVRO, JSON, PROTOBUF), but 200, null"),
        (200, b"[" * 100_000, "no schema (AVRO, JSON, PROTOBUF), but 200, [[["),
        (200, b'{"schema": null}', 'no schema (AVRO, JSON, PROTOBUF), but 200, {"schema": null}'),
        (200, b'{"schema": {"type": "int"}}', "no schema (AVRO, JSON, PROTOBUF), but 200, {"),
        (200, b'{"schema": "x", "schemaType": "XSD"}', "no schema (AVRO, JSON, PROTOBUF), but 200, {"),
        (200, b'{"schema": "x", "schemaType": ["AVRO"]}', "no schema (AVRO, JSON, PROTOBUF), but 200, {"),
        (200, b'{"schema": "\\ud800"}', "no schema (AVRO, JSON, PROTOBUF), but 200, {"),
        (204, b"", "no schema (AVRO, JSON, PROTOBUF), but 204, nothing else"),
    ],
)
def test_an_answer_about_one_id_is_a_verdict_if_the_registry_otherwise_answers(
    status: int, body: bytes, answered: str
) -> None:
    answers = HERE | {"/schemas/ids/7": (status, body)}
    with answering(answers) as server, RegistryClient(server.access) as client:
        found = client.schema(7)
    assert isinstance(found, Missing)
    assert found.answered.startswith(answered)
    assert len(found.answered) < 300
    assert found.answered.isprintable()
    assert server.paths == ["/schemas/ids/7", "/schemas/types"]


@pytest.mark.parametrize(
    ("of_id", "types", "said"),
    [
        (NO_PATH, NO_PATH, "404, HTTP 404 Not Found"),
        ((401, b""), (401, b"who?"), "401, who?"),
        ((403, b""), (403, b""), "403, nothing else"),
        ((200, b"<html>log in</html>"), (200, b"<html>log in</html>"), "200, <html>log in</html>"),
        (NO_PATH, (200, b'{"status": "ok"}'), '200, {"status": "ok"}'),
        (NO_PATH, (200, b"[]"), "200, []"),
    ],
)
def test_the_same_answer_to_everything_is_about_the_registry_and_waited_for(
    of_id: tuple[int, bytes], types: tuple[int, bytes], said: str
) -> None:
    with (
        answering({"/schemas/types": types}, of_id) as server,
        RegistryClient(server.access) as client,
        pytest.raises(RegistryError) as refused,
    ):
        client.schema(7)
    assert f"and {said} when asked for its schema types" in str(refused.value)
    assert "check schema_registry.url, schema_registry.username and schema_registry.password" in str(
        refused.value
    )


@pytest.mark.parametrize("status", [407, 408, 425, 429, 500, 502, 503, 504])
def test_a_registry_in_trouble_is_waited_for_without_another_question(status: int) -> None:
    with (
        answering(HERE | {"/schemas/ids/7": (status, b"\xff later")}) as server,
        RegistryClient(server.access) as client,
        pytest.raises(RegistryError) as refused,
    ):
        client.schema(7)
    assert f"refuses the request for schema 7: {status}, \ufffd later" in str(refused.value)
    assert server.paths == ["/schemas/ids/7"]


def test_a_registry_whose_trouble_begins_with_the_second_question_is_waited_for() -> None:
    answers = {"/schemas/ids/7": NO_PATH, "/schemas/types": (503, b"")}
    with (
        answering(answers) as server,
        RegistryClient(server.access) as client,
        pytest.raises(RegistryError, match="refuses the request for schema 7: 503"),
    ):
        client.schema(7)


def test_schemas_of_every_kind_come_by_one_connection_and_the_registry_is_tried_once() -> None:
    answers = HERE | {
        "/schemas/ids/1": (200, json.dumps({"schema": '"int"'}).encode()),
        "/schemas/ids/2": (200, json.dumps({"schema": "{}", "schemaType": "JSON", "more": 1}).encode()),
        "/schemas/ids/3": (
            200,
            json.dumps({"schema": "p", "schemaType": "PROTOBUF", "references": [{"name": "x"}]}).encode(),
        ),
        "/schemas/ids/4": (200, json.dumps({"schema": "a", "schemaType": None, "references": []}).encode()),
        "/schemas/ids/5": NO_SCHEMA,
    }
    with answering(answers) as server, RegistryClient(server.access) as client:
        found = [client.schema(one) for one in (1, 2, 3, 4, 5, 6, 7)]
        assert client.asked == 8
    assert found == [
        Registered("AVRO", '"int"'),
        Registered("JSON", "{}"),
        Registered("PROTOBUF", "p", has_references=True),
        Registered("AVRO", "a"),
        Missing(),
        Missing("404, HTTP 404 Not Found"),
        Missing("404, HTTP 404 Not Found"),
    ]
    assert (server.connections, len(server.paths), server.paths.count("/schemas/types")) == (1, 8, 1)
