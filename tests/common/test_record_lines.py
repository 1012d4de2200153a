"""Records as lines of JSON: values byte for byte, and envelopes."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakehouse.common.errors import SettingsError
from lakehouse.common.record_lines import Record, envelope_of, opened, read_lines


def read(text: str | bytes, *, envelopes: bool = True) -> list[Record]:
    lines = (text if isinstance(text, bytes) else text.encode()).splitlines(keepends=True)
    return [line.record for line in read_lines(lines, "f.jsonl", envelopes=envelopes)]


def test_a_line_is_a_records_value_byte_for_byte_and_blank_ones_are_none() -> None:
    text = b'{"a": 1.50 }\r\n\n  \n\xff\n{"a":\n'

    found = list(read_lines(text.splitlines(keepends=True), "f.jsonl", envelopes=False))

    assert [(line.number, line.record) for line in found] == [
        (1, Record(b'{"a": 1.50 }')),
        (4, Record(b"\xff")),
        (5, Record(b'{"a":')),
    ]
    assert found[1].place == "f.jsonl:4"


def test_an_envelope_says_all_that_a_record_has() -> None:
    (full, tombstone, binary) = read(
        '{"topic": "t", "key": "größe", "value": {"a":1.10,"a":1e400, "b": [ ]}, "partition": 3, "offset": 7,'
        ' "timestamp_ms": -1, "headers": {"h": "x", "none": null}}\n'
        ' { "value" : null }\n'
        '{"value_base64": "/w==", "key_base64": "AA==", "headers": [["h", "1"], ["h", "2"]]}\n'
    )

    assert full == Record(
        b'{"a":1.10,"a":1e400, "b": [ ]}',
        key="größe".encode(),
        headers=(("h", b"x"), ("none", None)),
        partition=3,
        timestamp_ms=-1,
        offset=7,
        topic="t",
    )
    assert tombstone == Record(None)
    assert binary == Record(b"\xff", key=b"\x00", headers=(("h", b"1"), ("h", b"2")))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("[1]", "expected a JSON object; { is missing at character 1"),
        ('{"value": 1', "expected a JSON object; } is missing at character 12"),
        ('{"value": 1} {}', "expected one JSON object on the line, and nothing after it"),
        ("{}", "expected either value or value_base64; a null value is a tombstone"),
        ('{"value": 1, "value_base64": ""}', "expected either value or value_base64"),
        ('{"value": 1, "key": "", "key_base64": ""}', "expected only one of key and key_base64"),
        ('{"value": 1, "ts": 5, "at": 6}', "unknown field at, ts; known: value, "),
        ('{"value": 1, "key": 5}', "key must be a string or null, not 5"),
        ('{"value": 1, "partition": true}', "partition must be an integer from 0 to 2147483647"),
        ('{"value": 1, "timestamp_ms": 1.5}', "timestamp_ms must be an integer from -92"),
        ('{"value": 1, "headers": [["a"]]}', "headers must be an object of strings or nulls, or a list"),
        ('{"value_base64": "?"}', "value_base64 is not Base64"),
        ("{" + '"value":' + "[" * 100_000, "is not an envelope"),
        ("{1: 2}", "expected a JSON object"),
        (b"\xff", "utf-8"),
    ],
)
def test_what_is_no_envelope_is_refused_with_its_line_and_the_reason(line: str | bytes, why: str) -> None:
    text = line if isinstance(line, bytes) else line.encode()

    with pytest.raises(SettingsError) as error:
        read(b'{"value": 0}\n' + text)

    assert str(error.value).startswith("f.jsonl:2 is not an envelope: ")
    assert why in str(error.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(SettingsError, match=r"nothing\.jsonl cannot be read: No such file"),
        opened(str(tmp_path / "nothing.jsonl")),
    ):
        pass


@pytest.mark.parametrize(
    ("record", "line"),
    [
        (Record(b'{"a":  1.50, "a": 2}'), '{"value": {"a":  1.50, "a": 2}}'),
        (Record(b"17"), '{"value": 17}'),
        (Record(None, b"pen"), '{"key": "pen", "value": null}'),
        (Record(b"null"), '{"value_base64": "bnVsbA=="}'),
        (Record(b"no"), '{"value_base64": "bm8="}'),
        (Record(b""), '{"value_base64": ""}'),
        (Record(b" 1"), '{"value_base64": "IDE="}'),
        (Record(b"[1,\n2]"), '{"value_base64": "WzEsCjJd"}'),
        (Record(b"\xff", b"\xfe"), '{"key_base64": "/g==", "value_base64": "/w=="}'),
        (Record(b"[" * 100_000), None),
        (Record(b"1" * 5_000), None),
        (
            Record(b"1", b"", (("a", b"x"), ("a", None)), 2, 0, 5, "t"),
            (
                '{"topic": "t", "partition": 2, "offset": 5, "timestamp_ms": 0, "key": "", '
                '"headers": [["a", "x"], ["a", null]], "value": 1}'
            ),
        ),
    ],
)
def test_a_record_is_written_as_an_envelope_that_is_read_as_the_same_record(
    record: Record, line: str | None
) -> None:
    written = envelope_of(record)

    assert line is None or written == line
    assert read(written) == [record]


def test_a_header_that_is_not_utf_8_is_left_out_of_an_envelope() -> None:
    assert envelope_of(Record(b"1", headers=(("a", b"\xff"),))) == '{"value": 1}'
