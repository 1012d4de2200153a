"""/api/v1/dead-letters, gates and expectations: counts, lists, and one record as hex, text and JSON."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from lakehouse.engine.records.dead_letters import DEAD_LETTERS
from lakehouse.operations.quality.results import GATES, RESULTS
from lakehouse.serving.reading.dead_letters import Letters
from lakehouse.serving.security.access import Access
from lakehouse.serving.security.tokens import Scope, Tokens
from tests.support.served_lakes import NOON_MS, MakeClient, Row, ServedLake, at, letter

PATH = "/api/v1/dead-letters"


def offsets(client: TestClient, query: str = "") -> list[int]:
    found = client.get(f"{PATH}?{query}")
    assert found.status_code == 200, found.text
    return [one["offset"] for one in found.json()["letters"]]


def test_letters_are_counted_by_rule_and_under_every_rule_of_theirs(
    client: TestClient, lake: ServedLake
) -> None:
    lake.write_spec(DEAD_LETTERS, [letter(1, "late"), letter(2, "late", "wrong_type", "wrong_type")])
    lake.write_spec(DEAD_LETTERS, [letter(3, "late", status="replayed", stream="sales")])
    counts = client.get(f"{PATH}/counts").json()["counts"]
    assert [tuple(one.values()) for one in counts] == [
        ("metrics", "late", "open", 2),
        ("metrics", "wrong_type", "open", 1),
        ("sales", "late", "replayed", 1),
    ]
    some = client.get(f"{PATH}/counts?rule=wrong_type").json()["counts"]
    assert [(one["rule"], one["count"]) for one in some] == [("late", 1), ("wrong_type", 1)]


def test_the_largest_counts_come_first_and_equal_ones_by_stream_rule_and_status(
    client: TestClient, lake: ServedLake
) -> None:
    lake.write_spec(DEAD_LETTERS, [letter(n, "wrong_type", stream="sales") for n in range(3)])
    lake.write_spec(DEAD_LETTERS, [letter(3, "not_json"), letter(4, "late", status="replayed")])
    lake.write_spec(DEAD_LETTERS, [letter(5, "late"), letter(6, "late", stream="calls")])
    counts = client.get(f"{PATH}/counts").json()["counts"]
    assert [tuple(one.values()) for one in counts] == [
        ("sales", "wrong_type", "open", 3),
        ("calls", "late", "open", 1),
        ("metrics", "late", "open", 1),
        ("metrics", "late", "replayed", 1),
        ("metrics", "not_json", "open", 1),
    ]


def test_letters_are_listed_newest_first_by_what_is_asked(client: TestClient, lake: ServedLake) -> None:
    letters = [letter(n, "late" if n % 2 else "not_json") for n in range(7)]
    lake.write_spec(DEAD_LETTERS, letters[:4])
    lake.write_spec(DEAD_LETTERS, [*letters[4:], letter(9, "late", status="discarded", stream="sales")])
    assert offsets(client) == [9, 6, 5, 4, 3, 2, 1, 0]
    assert offsets(client, "rule=late&status=open") == [5, 3, 1]
    assert offsets(client, "stream=sales") == [9]
    assert offsets(client, "since=2026-05-04T12:00:02Z&until=2026-05-04T12:00:04Z") == [3, 2]
    first = client.get(f"{PATH}?limit=3&rule=late").json()
    lake.write_spec(DEAD_LETTERS, [letter(10, "late")])
    rest = client.get(f"{PATH}?limit=3&rule=late&cursor={first['next']}").json()
    assert [one["offset"] for one in first["letters"] + rest["letters"]] == [9, 5, 3, 1]
    assert rest["next"] is None
    assert "value" not in first["letters"][0]
    assert first["letters"][1]["reasons"] == [{"rule": "late", "column": None, "message": "it is late"}]


def test_letters_of_one_topic_are_listed_and_counted_alone(client: TestClient, lake: ServedLake) -> None:
    other: dict[str, Any] = {"stream": "metrics", "topic": "metricsTopic"}
    lake.write_spec(DEAD_LETTERS, [letter(1, "late"), letter(2, "late", **other)])
    lake.write_spec(
        DEAD_LETTERS, [letter(3, "not_json", **other), letter(4, "late", status="replayed", **other)]
    )
    assert offsets(client, "topic=metricsTopic") == [4, 3, 2]
    assert offsets(client, "topic=metricsTopic&status=open&rule=late") == [2]
    assert offsets(client, "topic=metrics-events") == [1]
    assert offsets(client, "topic=sales-events-v1") == []
    counts = client.get(f"{PATH}/counts?topic=metricsTopic&status=open").json()["counts"]
    assert [(one["rule"], one["count"]) for one in counts] == [("late", 1), ("not_json", 1)]
    for url in (PATH, f"{PATH}/counts"):
        assert client.get(f"{url}?topic={'a' * 249}").status_code == 400  # no such topic
        for topic in ("", "a" * 250):
            assert client.get(f"{url}?topic={topic}").status_code == 422


def test_letters_are_found_by_a_text_in_one_of_their_messages(client: TestClient, lake: ServedLake) -> None:
    def reasons(*said: tuple[str, str | None]) -> dict[str, Any]:
        return {"reasons": [{"rule": rule, "column": None, "message": message} for rule, message in said]}

    rows = [
        letter(1, **reasons(("wrong_type", 'value must be a number, not a string: "12.5 (EUR)"'))),
        letter(2, **reasons(("late", "an hour late"), ("wrong_type", "amount is Größe .*"))),
        letter(3, **reasons(("skipped", None))),
        letter(4),
    ]
    lake.write_spec(DEAD_LETTERS, rows)
    found = {
        text: offsets(client, f"text={text}") for text in ("(eur)", "GRÖSSE", "größe", ".*", "late", "\\d")
    }
    assert found == {"(eur)": [1], "GRÖSSE": [], "größe": [2], ".*": [2], "late": [2], "\\d": []}
    assert offsets(client, "text=GRÖßE&rule=late") == [2]
    assert offsets(client, "text=late&rule=skipped") == []
    counts = client.get(f"{PATH}/counts?text=an hour").json()["counts"]
    assert [(one["rule"], one["count"]) for one in counts] == [("late", 1), ("wrong_type", 1)]


def test_a_replayed_letter_says_when_it_was_admitted_and_all_its_times(
    client: TestClient, lake: ServedLake
) -> None:
    admitted = {"after": at(NOON_MS), "at": at(NOON_MS + 1)}
    times = dict.fromkeys(("ingested_at", "event_time", "own_time"), at(NOON_MS))
    lake.write_spec(DEAD_LETTERS, [{**letter(1, "late", status="replayed", admitted=admitted), **times}])

    one = client.get(f"{PATH}/{1:064x}").json()
    (listed,) = client.get(PATH).json()["letters"]

    noon = "2026-05-04T12:00:00Z"
    assert one["admitted"] == {"after": noon, "at": "2026-05-04T12:00:00.001Z"}
    names = ("ingestedAt", "eventTime", "ownTime", "kafkaTimestamp")
    assert {name: one[name] for name in names} == dict.fromkeys(names, noon)
    assert listed == {name: value for name, value in one.items() if name in listed}


def test_a_record_is_shown_as_hex_text_and_json(client: TestClient, lake: ServedLake) -> None:
    rows = [
        letter(1, "late", value=b'{"a": 1.50, "b": 1e999, "big": 123456789012345678901234567890}'),
        letter(2, "not_json", value="ü{".encode()),
        letter(3, "not_utf8", value=b"\xff\x00"),
        letter(4, "no_value", value=None),
        letter(5, "deep", value=b"[" * 50_000),
        letter(6, "nan", value=b"NaN"),
    ]
    lake.write_spec(DEAD_LETTERS, rows)
    paths = [f"{PATH}/{row['id']}/record" for row in rows]
    found = client.get(paths[0])
    assert '"json":{"a": 1.50, "b": 1e999, "big": 123456789012345678901234567890}}' in found.text
    records = [client.get(path).json() for path in paths]
    one = {"offset": 0, "next": None}
    assert records[1]["bytes"] == {"length": 3, "hex": "c3bc7b", "text": "ü{", "json": None} | one
    assert records[2]["bytes"] == {"length": 2, "hex": "ff00", "text": None, "json": None} | one
    assert records[3]["bytes"] is None
    assert [found["bytes"]["json"] for found in records[4:]] == [None, None]
    key = client.get(f"{paths[0]}?part=key").json()
    assert key["bytes"] == {"length": 1, "hex": "ff", "text": None, "json": None} | one
    outline = ("id", "part", "valueLength", "keyLength", "headers", "headerCount")
    assert {name: key[name] for name in outline} == {
        "id": rows[0]["id"],
        "part": "key",
        "valueLength": 62,
        "keyLength": 1,
        "headers": [{"key": "h", "length": 1}, {"key": "n", "length": None}],
        "headerCount": 2,
    }
    headers = [client.get(f"{paths[0]}?part=header&header={n}") for n in range(3)]
    assert [one.json()["bytes"] and one.json()["bytes"]["text"] for one in headers[:2]] == ["v", None]
    assert (headers[2].status_code, headers[2].json()["detail"]) == (422, "header: the record has 2 headers")
    for path in (f"{PATH}/nothing", f"{PATH}/nothing/record"):
        assert client.get(path).status_code == 404


def test_a_large_record_comes_in_pieces_between_two_characters(client: TestClient, lake: ServedLake) -> None:
    text = "x" + "ü" * 200_000 + "€"  # the 256th KiB ends within a character
    row = letter(1, "late", value=text.encode())
    lake.write_spec(DEAD_LETTERS, [letter(0, "late"), row, letter(2, "late")])
    path, found = f"{PATH}/{row['id']}/record", list[Any]()
    while not found or found[-1]["next"] is not None:
        found.append(client.get(f"{path}?offset={found[-1]['next'] if found else 0}").json()["bytes"])
    assert [(one["offset"], one["next"], len(one["hex"]) // 2) for one in found] == [
        (0, 262_143, 262_143),
        (262_143, None, 137_861),
    ]
    assert "".join(one["text"] for one in found) == text
    assert client.get(f"{path}?offset=999999").json()["bytes"]["hex"] == ""


def test_raw_bytes_are_only_for_who_may_see_payloads_and_nobody_keeps_them(
    make_client: MakeClient,
    lake: ServedLake,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lake.write_spec(DEAD_LETTERS, [letter(1, "late")])
    tokens, read = Tokens(lake.settings.home), list[str]()
    headers = [
        {"Authorization": f"Bearer {tokens.add(one.value, [Scope.READ, one])}"}
        for one in (Scope.READ, Scope.PAYLOAD)
    ]
    client, path = make_client(Access(tokens)), f"{PATH}/{1:064x}"
    record = Letters.record

    def noted(letters: Letters, id_: str) -> Any:
        read.append(id_)
        return record(letters, id_)

    monkeypatch.setattr(Letters, "record", noted)
    for one in headers:
        assert "record" not in client.get(path, headers=one).json()
    assert client.get(f"{path}/record", headers=headers[0]).status_code == 403
    assert read == []
    with caplog.at_level("INFO", logger="lakehouse"):
        found = client.get(f"{path}/record", headers=headers[1])
    assert (found.status_code, found.json()["bytes"]["text"], read) == (200, "{}", [f"{1:064x}"])
    kept = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
    assert {name: found.headers[name] for name in kept} == kept
    assert "etag" not in found.headers
    assert f"payload reads the value of the dead letter {1:064x}" in caplog.text


def test_a_list_has_the_beginning_of_each_value_if_the_caller_may_see_it(
    make_client: MakeClient, lake: ServedLake, caplog: pytest.LogCaptureFixture
) -> None:
    values = [b'{"a":\n1}', b"\xff\x00", None, "ü".encode() * 200]
    lake.write_spec(DEAD_LETTERS, [letter(n, "late", value=value) for n, value in enumerate(values)])
    tokens = Tokens(lake.settings.home)
    reader, payload = (
        {"Authorization": f"Bearer {tokens.add(one.value, [Scope.READ, one])}"}
        for one in (Scope.READ, Scope.PAYLOAD)
    )
    client = make_client(Access(tokens))
    assert client.get(f"{PATH}?values=true", headers=reader).status_code == 403
    assert "value" not in client.get(f"{PATH}?values=false", headers=reader).json()["letters"][0]
    with caplog.at_level("INFO", logger="lakehouse"):
        found = client.get(f"{PATH}?values=true&limit=3", headers=payload)
    assert [one["value"] for one in found.json()["letters"]] == [
        f"{'ü' * 60}… (400 bytes)",
        None,
        "0xff00",
    ]
    assert found.headers["cache-control"] == "no-store"
    assert "payload reads the values of 3 dead letters" in caplog.text
    (last,) = client.get(f"{PATH}?values=true&limit=3&cursor={found.json()['next']}", headers=payload).json()[
        "letters"
    ]
    assert last["value"] == '{"a":\\n1}'
    none = client.get(f"{PATH}?values=true&status=replayed", headers=payload).json()
    assert none["letters"] == []


def test_nothing_was_ever_refused_or_checked(client: TestClient) -> None:
    assert client.get(PATH).json()["letters"] == []
    assert client.get(f"{PATH}/counts").json()["counts"] == []
    assert client.get("/api/v1/gates").json()["gates"] == []
    assert client.get("/api/v1/expectations").json()["expectations"] == []


def test_a_gate_is_as_it_was_left(client: TestClient, lake: ServedLake) -> None:
    changes = [("metrics", 0, True, []), ("metrics", 2, False, ["keys are unique"]), ("sales", 1, True, [])]
    lake.write_spec(
        GATES,
        [
            {"stream": stream, "changed_at": at(NOON_MS + s * 1000), "is_open": is_open, "reasons": reasons}
            for stream, s, is_open, reasons in changes
        ],
    )
    assert client.get("/api/v1/gates").json()["gates"] == [
        {
            "stream": "metrics",
            "isOpen": False,
            "changedAt": "2026-05-04T12:00:02Z",
            "reasons": ["keys are unique"],
        },
        {"stream": "sales", "isOpen": True, "changedAt": "2026-05-04T12:00:01Z", "reasons": []},
    ]


def test_the_last_run_of_each_table_is_shown(client: TestClient, lake: ServedLake) -> None:
    def result(table: str, second: int, expectation: str) -> Row:
        row = {"run_id": str(second), "checked_at": at(NOON_MS + second * 1000), "table": table, "rows": 3}
        return row | {"expectation": expectation, "severity": "error", "success": False, "examples": '["k"]'}

    rows = [("gold.a", 1, "old"), ("gold.a", 5, "one"), ("gold.a", 5, "two"), ("gold.b", 3, "three")]
    lake.write_spec(RESULTS, [result(*row) for row in rows])
    found = client.get("/api/v1/expectations").json()["expectations"]
    assert [(one["table"], one["expectation"]) for one in found] == [
        ("gold.a", "one"),
        ("gold.a", "two"),
        ("gold.b", "three"),
    ]
    assert found[0]["examples"] == ["k"]
    assert len(client.get("/api/v1/expectations?table=gold.b").json()["expectations"]) == 1


def test_letters_are_grouped_by_the_shape_of_their_value(client: TestClient, lake: ServedLake) -> None:
    values = {
        1: b'{"id": "a", "amount": "12.5", "at": 1}',
        2: b'{"at": 2.5, "amount": "", "id": "b"}',
        3: b'{"id": "a", "amount": 1e999, "at": null, "in": {"deep": 1}, "of": [1], "is": true}',
        4: b'{"a b": 1, "' + b"n" * 70 + b'": 2}',
        5: b"{" + b", ".join(b'"f%02d": 1' % number for number in range(50)) + b"}",
        6: b"[1]",
        7: b'"x"',
        8: b"{",
        9: b"NaN",
        10: b"[" * 50_000,
        11: None,
        12: b'"' + b"x" * 70_000 + b'"',
        13: b"\xff",
    }
    rows = [letter(number, "wrong_type", value=value) for number, value in values.items()]
    rows[1] = letter(2, "late", "late", "wrong_type", value=values[2], topic="metricsTopic")
    lake.write_spec(DEAD_LETTERS, rows[:6])
    lake.write_spec(DEAD_LETTERS, rows[6:])

    found = client.get(f"{PATH}/shapes").json()

    assert (found["letters"], found["isAll"], found["next"]) == (13, True, None)
    first, *others = found["shapes"]
    assert (first["shape"], first["count"]) == ("not JSON", 4)
    assert others[0] == {
        "shape": "{amount: string, at: number, id: string}",
        "count": 2,
        "rules": {"wrong_type": 2, "late": 1},
        "topics": ["metrics-events", "metricsTopic"],
        "newest": {
            "id": f"{2:064x}",
            "topic": "metricsTopic",
            "partition": 0,
            "offset": 2,
            "firstSeen": "2026-05-04T12:00:02Z",
        },
    }
    assert [one["count"] for one in others[1:]] == [1] * 7
    assert {one["shape"] for one in others[1:]} == {
        "array",
        "string",
        "no value",
        "more than 64 KiB",
        "{amount: number, at: null, id: string, in: object, is: boolean, of: array}",
        '{"a b": number, "' + "n" * 59 + '…": number}',
        "{" + ", ".join(f"f{number:02d}: number" for number in range(40)) + ", 10 more}",
    }
    some = client.get(f"{PATH}/shapes?topic=metricsTopic&rule=late").json()
    assert [(one["shape"], one["count"]) for one in some["shapes"]] == [(others[0]["shape"], 1)]


def test_only_the_newest_letters_are_grouped_and_the_answer_says_so(
    client: TestClient, lake: ServedLake
) -> None:
    lake.write_spec(DEAD_LETTERS, [letter(n, "late", value=b'{"old": 1}') for n in range(10)])
    lake.write_spec(DEAD_LETTERS, [letter(n, "late", value=b'{"new": 1}') for n in range(10, 505)])
    found = client.get(f"{PATH}/shapes").json()
    assert (found["letters"], found["isAll"]) == (500, False)
    assert [(one["shape"], one["count"]) for one in found["shapes"]] == [
        ("{new: number}", 495),
        ("{old: number}", 5),
    ]


def test_shapes_need_the_scope_payload(make_client: MakeClient, lake: ServedLake) -> None:
    lake.write_spec(DEAD_LETTERS, [letter(1, "late")])
    tokens = Tokens(lake.settings.home)
    headers = [
        {"Authorization": f"Bearer {tokens.add(one.value, [Scope.READ, one])}"}
        for one in (Scope.READ, Scope.PAYLOAD)
    ]
    client = make_client(Access(tokens))
    assert client.get(f"{PATH}/shapes", headers=headers[0]).status_code == 403
    found = client.get(f"{PATH}/shapes", headers=headers[1])
    assert (found.json()["shapes"][0]["shape"], found.headers["cache-control"]) == ("{}", "no-store")
