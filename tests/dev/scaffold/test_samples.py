"""What samples have in common, without Spark."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from lakehouse.common.errors import SettingsError
from lakehouse.common.record_lines import Line, Record
from lakehouse.dev.scaffold.reading import Sample, samples_of
from lakehouse.dev.scaffold.samples import Seen, Time, fields_of, time_of
from lakehouse.streams.contract import FieldType


def seen(*records: dict[str, Any], deep: bool = True) -> list[Seen]:
    lines = (Line(Record(b""), "s.jsonl", number) for number in range(1, len(records) + 1))
    return fields_of([Sample(line, record) for line, record in zip(lines, records, strict=True)], deep=deep)


def types(*values: Any) -> list[tuple[str, str, bool]]:
    records = [{"a": value} if value is not ... else {} for value in values]
    return [(field.path, field.type.name, field.is_required) for field in seen(*records)]


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ((1, -(2**63)), [("a", "LONG", True)]),
        ((1, 2**63), [("a", "DECIMAL", True)]),
        ((1, Decimal("1.50")), [("a", "DECIMAL", True)]),
        ((1, Decimal("1e-10")), [("a", "DOUBLE", True)]),
        ((1, Decimal("1e9999999")), [("a", "DOUBLE", True)]),
        ((True, False), [("a", "BOOLEAN", True)]),
        ((True, 1), [("a", "JSON", True)]),
        (("x", 1), [("a", "STRING", True)]),
        (("x", ""), [("a", "STRING", False)]),
        (("x", None), [("a", "STRING", False)]),
        (("x", ...), [("a", "STRING", False)]),
        (([1], {}), [("a", "JSON", True)]),
        (({"b": 1}, {"b": 2, "c.d": "x"}), [("a.b", "LONG", True), (r"a.c\.d", "STRING", False)]),
        (({"b": 1}, 5), [("a", "JSON", True)]),
        ((None, None), []),
        ((*range(9), "x"), [("a", "LONG", True)]),
        ((*range(9), "x", ...), [("a", "LONG", False)]),
        ((*range(9), ""), [("a", "LONG", True)]),
        ((Decimal("0.5"), *range(8), "NaN"), [("a", "DECIMAL", True)]),
        ((*range(8), "x"), [("a", "STRING", True)]),
        ((*range(17), "x", "y"), [("a", "STRING", True)]),
        ((*range(9), True, "x"), [("a", "JSON", True)]),
    ],
)
def test_a_field_has_the_narrowest_type_that_takes_all_its_values(
    values: tuple[Any, ...], found: list[tuple[str, str, bool]]
) -> None:
    assert types(*values) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("270.0", ("LONG", False)),
        ("-0.00", ("LONG", False)),
        ("9223372036854775808.0", ("DECIMAL", False)),
        ("270.5", ("DECIMAL", False)),
        ("1e3", ("DECIMAL", False)),
        ('"x"', ("STRING", True)),
    ],
)
def test_a_fraction_of_zeros_makes_no_other_number(text: str, found: tuple[str, bool]) -> None:
    samples = [Line(Record(b'{"a":%b}' % one.encode()), "s", 1) for one in ("17.0", text)]

    (field,) = fields_of(samples_of(samples).kept)

    assert (field.type.name, field.accepts_numbers) == found
    assert str(field.values[0]) == "17"


@pytest.mark.parametrize(
    ("value", "time"),
    [
        (1_774_746_300, Time("s", None)),
        (Decimal("1774746300.25"), Time("s", None)),
        (1_774_746_300_000, Time("ms", None)),
        (1_774_746_300_000_000, Time("us", None)),
        (1_774_746_300_000_000_000, Time("ns", None)),
        ("2026-03-29T01:05:00Z", Time(None, None)),
        ("2026-03-29T01:05", Time(None, "UTC")),
        ("2026-03-29 01:05:00", Time(None, "UTC")),
        ("2026-03-29 03:05:00.5+0200", Time(None, None)),
        ("2026-03-29 01:05:00+00", Time(None, None)),
        ("Sun, 29 Mar 2026 03:05:00 +0200", Time(None, None, is_of_mail=True)),
        ("29 Mar 2026 01:05:00 GMT", Time(None, None, is_of_mail=True)),
        ("Sun, 29 Mar 2026 01:05:00 EST", None),
        ("31 Feb 2026 01:05:00 GMT", None),
        ("2026-03-29_01:05", None),
        ("29.3.2026", None),
        ("2026-13-29T01:05:00Z", None),
        (Decimal("1e9999999"), None),
        (12, None),
        (True, None),
    ],
)
def test_a_time_is_known_by_its_size_or_its_form(value: Any, time: Time | None) -> None:
    (field,) = seen({"at": value})

    assert time_of(field) == time
    if time is not None:
        assert time.of(value).isoformat()[:16] == "2026-03-29T01:05"


def test_objects_are_not_looked_into_where_they_are_payloads() -> None:
    (field,) = seen({"payload": {"x": 1}}, deep=False)

    assert (field.path, field.type) == ("payload", FieldType.JSON)


def test_the_first_spoilers_of_a_number_are_named_with_their_lines() -> None:
    long = "not available today"
    (field,) = seen(*({"a": 1} for _ in range(40)), *({"a": text} for text in ("NaN", "", long, "x")))

    assert field.said == (
        'a number in 40 of 44 samples; not in s.jsonl:41 ("NaN"), s.jsonl:42 (""), '
        's.jsonl:43 ("not available today…) and 1 more'
    )
    assert (field.as_text.type, field.as_text.accepts_numbers) == (FieldType.STRING, True)
    assert not field.as_text.is_required


def test_a_time_may_have_spoilers() -> None:
    (field,) = seen(*({"at": 1_774_746_300 + number} for number in range(9)), {"at": "soon"})

    assert time_of(field) == Time("s", None)


@pytest.mark.parametrize(
    ("value", "why", "rule"),
    [
        (b"no", "is not JSON: Expecting value: line 1 column 1 (char 0)", "not_json"),
        (b'{"x": NaN}', "is not JSON: NaN is not a JSON number", "not_json"),
        (b'{"x": -Infinity}', "is not JSON: -Infinity is not a JSON number", "not_json"),
        (b"{} {}", "is not JSON: Extra data: line 1 column 4 (char 3)", "not_json"),
        (b"[1]", "is not a JSON object", "not_an_object"),
        (b"null", "is not a JSON object", "not_an_object"),
        (
            b'"\xff"',
            "is not UTF-8: invalid start byte at position 1",
            "not_utf8",
        ),
        (b'{"x":' * 50 + b"{}" + b"}" * 50, "nests objects and arrays more than 50 deep", None),
        (b"[" * 100_000, "nests objects and arrays more than 50 deep", None),
        (b'{"x": ' + b"1" * 5_000 + b"}", "has a number with too many digits or too large an exponent", None),
        (b'{"x": 1e9999999999999999999}', "has a number with too many digits or too large an exponent", None),
    ],
)
def test_a_line_that_is_no_sample_is_left_out_with_its_rule(value: bytes, why: str, rule: str | None) -> None:
    read = samples_of([Line(Record(line), "s.jsonl", number) for number, line in ((1, b"{}"), (2, value))])

    (left_out,) = read.left_out
    assert (left_out.why, left_out.rule) == (why, rule)
    assert [sample.line.place for sample in read.kept] == ["s.jsonl:1"]
    assert read.warning == f"1 of 2 samples is left out: s.jsonl:2 {why}"


def test_a_warning_names_the_first_three_lines() -> None:
    values = (b"{}", None, b"1", b"2", b"3", b"4")
    read = samples_of([Line(Record(value), "s", number) for number, value in enumerate(values, 1)])

    assert read.warning == (
        "4 of 5 samples are left out: s:3 is not a JSON object; s:4 is not a JSON object; "
        "s:5 is not a JSON object; and 1 more"
    )
    assert samples_of([Line(Record(b"{}"), "s", 1)]).warning is None


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ((None,), "none of the samples has a value"),
        (
            (b"day,amount",),
            (
                "every sample is left out: s:1 is not JSON: Expecting value: line 1 column 1 (char 0). "
                "Expected a JSON object on each line; docs/tutorial.md shows how to convert a CSV file"
            ),
        ),
    ],
)
def test_samples_of_which_none_is_left_are_refused(values: tuple[bytes | None, ...], why: str) -> None:
    with pytest.raises(SettingsError) as refused:
        samples_of([Line(Record(value), "s", number) for number, value in enumerate(values, 1)])
    assert str(refused.value) == why
