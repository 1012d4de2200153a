"""What counts as a find of an id, and as a certain one."""

from __future__ import annotations

import unicodedata
import uuid
from typing import Literal

import pytest

from lakehouse.common.errors import SettingsError
from lakehouse.operations.erasure.searching import Search, Values, chunked
from lakehouse.operations.erasure.subjects import subjects_in

UUID = "550e8400-e29b-41d4-a716-446655440000"


def found(ids: str, *values: bytes) -> list[tuple[int, int, bool]]:
    """Return each find as the number of the value, the line of the id, and whether it is certain."""
    search = Search(subjects_in(ids.encode()))
    return sorted((at, line, sure) for (at, line), sure in search.in_values(Values.of(values)).items())


@pytest.mark.parametrize(
    ("value", "verdict"),
    [
        (b"anna", True),
        (b'{"userId":"anna","n":1}', True),
        (b"lakehouse:sums:row:anna:17", True),
        (b"susanna", False),
        ("ännanna".encode(), False),
        (b"ann", None),
        (b"\x00\x01\x08anna", False),  # few bytes in what is no text
        (b'{"userId":"\\u0061nna"}', True),
        (b"userId=%61nna/part-0.parquet", True),
    ],
)
def test_a_name_that_stands_alone_is_certain(value: bytes, verdict: bool | None) -> None:
    assert found("anna\n", value) == ([] if verdict is None else [(0, 1, verdict)])


@pytest.mark.parametrize(
    ("value", "verdict"),
    [
        (b'{"userId":47110}', None),  # another number
        (b'{"userId":4711}', True),
        (b'{"userId":"4711"}', True),
        (b'{"numClient":4711}', True),
        (b'{"amount":1.4711}', False),
        (b'{"amount":4711.50}', False),
        (b"user4711", False),
        (b'{"path":"part-00000-a32ec399-b69d-4711-9d6c-ac74f06eb529-c000.snappy.parquet"}', None),
        (b"ids of 64 digits: " + b"ab4711cd" * 8, None),
        (b"4711-b69d-4a43", True),
        (b'{"numRecords":4711,"size":4711,"timestamp":4711}', None),
        (b'{"stats":"{\\"numRecords\\":4711}"}', None),
        (b'{"total":"1","_generation":1,"_version":4711}', None),
        ((4711).to_bytes(8, "big"), True),
        ((4711).to_bytes(4, "big"), True),
        (b"\x00" + (4711).to_bytes(8, "big"), None),
    ],
)
def test_a_whole_number_is_found_as_text_and_as_a_whole_key(value: bytes, verdict: bool | None) -> None:
    assert found("4711\n", value) == ([] if verdict is None else [(0, 1, verdict)])


@pytest.mark.parametrize(
    ("value", "verdict"),
    [
        (b"call to 00447700900123", False),
        (b"00000000-0000-0000-0000-447700900123", False),
        (b"+447700900123", True),
    ],
)
def test_a_long_number_inside_another_is_shown_to_a_person(value: bytes, verdict: bool) -> None:
    assert found("447700900123\n", value) == [(0, 1, verdict)]


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_accents_are_found_in_both_forms_of_unicode(form: Literal["NFC", "NFD"]) -> None:
    values = [unicodedata.normalize(one, "café-4712").encode() for one in ("NFC", "NFD")]

    assert found(unicodedata.normalize(form, "café-4712") + "\n", *values) == [(0, 1, True), (1, 1, True)]


@pytest.mark.parametrize(
    "value",
    [
        b'{"predicate":"[\\"(user = \'O\\\\\\\\\'Brien-1\')\\"]"}',  # Spark
        b"{\"predicate\":\"user = 'O''Brien-1'\"}",  # deltalake
    ],
)
def test_an_apostrophe_is_found_in_predicates_of_sql(value: bytes) -> None:
    assert found("O'Brien-1\n", value) == [(0, 1, True)]


@pytest.mark.parametrize(
    ("ids", "value"),
    [
        ("47130001\n", b'{"minValues":{"user":4.7130001E7}}'),  # statistics of a column of doubles
        ("10000000\n", b"1.0E7"),
        ("-4713000000000000\n", b"-4.713e+15"),  # PostgreSQL
    ],
)
def test_a_number_is_found_as_a_double_with_an_exponent(ids: str, value: bytes) -> None:
    assert found(ids, value) == [(0, 1, True)]


def test_an_exponent_of_another_number_is_not_a_find() -> None:
    assert found("10000000\n", b"11.0E7", b"1.0E71") == []


def test_a_long_number_is_found_packed_in_what_is_no_text_but_only_perhaps() -> None:
    packed = b"\x01\x02" + bytes([0x80, 0xD0, 0xAC, 0xF3, 0x0E]) + b"\x02"  # 4,000,000,000 as a varint

    assert found("4000000000\n", packed) == [(0, 1, False)]


@pytest.mark.parametrize(
    "value",
    [
        UUID.encode(),
        UUID.upper().encode(),
        UUID.replace("-", "").encode(),
        b"\x01\x02" + uuid.UUID(UUID).bytes + b"\x03",
        b'{"minValues":{"user":"550e8400-e29b-41d4-a716-44665544"}}',  # Delta keeps 32 characters
        '{"maxValues":{"user":"550e8400-e29b-41d4-a716-44665544\U0010ffff"}}'.encode(),
    ],
)
def test_a_uuid_is_found_in_every_form(value: bytes) -> None:
    assert found(f"{UUID}\n", value) == [(0, 1, True)]


def test_the_beginning_of_another_long_id_is_only_perhaps_a_find() -> None:
    ids = "https://example.org/people/000001\n"

    assert found(
        ids, b'{"user":"https://example.org/people/00000"}', b"https://example.org/people/000002"
    ) == [(0, 1, False)]


def test_a_short_id_is_only_compared_with_whole_values() -> None:
    assert found("nobody\nbob\n", b"bob", b'{"userId":"bob"}') == [(0, 2, True)]


def test_what_is_searched_at_once_fits_in_memory() -> None:
    sizes = [3_000_000, 3_000_000, 1, 9_000_000, 1]

    assert list(chunked(sizes, lambda size: size)) == [[3_000_000, 3_000_000], [1, 9_000_000], [1]]
    assert [len(one) for one in chunked([0] * 25_000, lambda size: size)] == [10_000, 10_000, 5_000]


def test_an_id_is_not_found_across_two_values() -> None:
    assert found("anna-4711\n", b"anna-", b"4711") == []


def test_lines_are_counted_with_the_blank_ones_and_an_id_that_repeats_has_its_first_line() -> None:
    assert found("\ufeff\r\n\nanna-1\r\nanna-1\nanna-2", b"anna-2", b"anna-1") == [(0, 5, True), (1, 3, True)]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "there is no id"),
        (b"\n  \n", "there is no id"),
        (b"anna-1\nb\xff\n", "line 2 is not UTF-8"),
        (b"anna-1 \n", "line 1 begins or ends with a space"),
        (b"a" * 1001, "line 1 is longer than 1,000 bytes"),
        ("anna-1\n".encode("utf-16-le"), "line 1 contains a tab, another control character"),
        (b"anna-1\t42\n", "line 1 contains a tab"),
        (b"anna-1\ranna-2\r", "line 1 contains a tab, another control character"),
        (b"x\n\xef\xbb\xbfanna-1\n", "line 2 contains .* a byte order mark"),
        (b'"anna-1"\n', "line 1 is in quotation marks"),
    ],
)
def test_a_file_that_would_not_be_searched_as_meant_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(SettingsError, match=said) as refused:
        subjects_in(data)

    assert "anna" not in str(refused.value)


def test_names_are_masked_in_all_their_readings() -> None:
    subjects = subjects_in("anna-1\ncafé-2\nbob\n4711\n".encode())

    assert subjects.masked("gold/t/user=anna-1/x.parquet") == "gold/t/user=<line 1>/x.parquet"
    assert subjects.masked("gold/t/user=caf%C3%A9-2/x") == "gold/t/user=<line 2>/x"
    assert subjects.masked("lakehouse:t:row:bob:7") == "lakehouse:t:row:<line 3>:7"
    assert subjects.masked("sums:47110 of 4711") == "sums:<line 4>0 of <line 4>"
    assert subjects.masked("user=anna-1/friend=caf%C3%A9-2/anna-1bob") == (
        "user=<line 1>/friend=<line 2>/<line 1><line 3>"
    )
    assert subjects.masked("caf\\u00e9-2\udcff") == "<line 2>\\xff"
    assert subjects.masked("nothing") == "nothing"
    assert "anna" not in repr(subjects)
