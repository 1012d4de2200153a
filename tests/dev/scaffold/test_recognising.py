"""What `lakehouse new stream` recognises in samples, and how it names columns with long paths."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from lakehouse.cli.main import app
from lakehouse.common.errors import SettingsError
from lakehouse.common.record_lines import Line, Record
from lakehouse.dev.scaffold.code import Columns
from lakehouse.dev.scaffold.reading import Sample
from lakehouse.dev.scaffold.recognising import identity_of, parts_of_key
from lakehouse.dev.scaffold.samples import Seen, fields_of
from lakehouse.testing import declared

Make = Callable[..., Result]
Records = Sequence[Mapping[str, Any]]

UUID = "6f1c2a34-0b1d-4c55-9a51-00000000000{}"
PAYMENTS = [
    {
        "id": UUID.format(number),
        "customer": f"c{number % 2}",
        "amount": 12.5,
        "currency": ("EUR", "USD")[number % 2],
        "version": 1,
        "paidAt": f"2026-03-01 10:0{number}:00",
    }
    for number in range(4)
]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Return a function that runs the command in `tmp_path`, with samples in the file s."""
    monkeypatch.chdir(tmp_path)

    def make(samples: Records, *options: str, kind: str = "windowed-sums") -> Result:
        Path("s").write_text("".join(f"{json.dumps(record)}\n" for record in samples))
        given = ["new", "stream", "shop", "--kind", kind, "--sample", "s", *options]
        return CliRunner().invoke(app, given, catch_exceptions=True)

    return make


def table() -> str:
    text = Path("lakehouse.toml").read_text(encoding="utf-8")
    assert declared(text).keys() == {"shop"}
    return text


def seen(records: Records) -> list[Seen]:
    lines = (Line(Record(b""), "s", number) for number in range(1, len(records) + 1))
    return fields_of([Sample(line, record) for line, record in zip(lines, records, strict=True)])


def test_each_guess_and_each_proposal_is_in_the_table_and_in_the_output_with_its_reason(make: Make) -> None:
    ended = make(PAYMENTS)

    assert ended.exit_code == 0, ended.output
    assert (
        table()
        == """\
[streams.shop]
kind = "windowed_sums"
topic = "shop-events"  # guess: default topic
# guess: id: a different UUID in all 4 samples: to count a repeated record once, set unique_by
# unique_by = "id"
# guess: version: a whole number with the name of a sequence: if a record with the same id and a greater \
version is a correction, set sequence_by as well
# sequence_by = "version"
event_time = "paidAt"  # guess: in all 4 samples, ISO 8601 without an offset
event_time_zone = "UTC"  # guess: the times have no offset: they are read as UTC; if they are local, name \
their zone
fields = [
    { name = "id", column = "id", type = "string" },  # guess: in all 4 samples
    { name = "version", column = "version", type = "long" },  # guess: in all 4 samples
]
# guess: customer: a string or whole number in all 4 samples
# guess: currency: 2 values (EUR, USD), all ISO 4217 codes: amounts in different currencies are not added \
up, so it is part of the key
by = ["customer", "currency"]
# guess: a number in all 4 samples; others: version
value = "amount"
length = "5m"  # guess: five minutes of event time
"""
    )
    assert (
        ended.output
        == """\
lakehouse.toml: [streams.shop]
  event time: paidAt: in all 4 samples, ISO 8601 without an offset
  event time: the times have no offset: they are read as UTC; if they are local, name their zone with \
event_time_zone
  value: amount: a number in all 4 samples; others: version
  key: customer: a string or whole number in all 4 samples
  key: currency: 2 values (EUR, USD), all ISO 4217 codes: amounts in different currencies are not added up, \
so it is part of the key
  proposal: id: a different UUID in all 4 samples: to count a repeated record once, set unique_by
  proposal: version: a whole number with the name of a sequence: if a record with the same id and a greater \
version is a correction, set sequence_by as well

Review the guesses, then try the stream: lakehouse try shop s
"""
    )


def test_the_proposals_in_a_table_are_keys_once_they_are_uncommented(make: Make) -> None:
    make(PAYMENTS)

    text = table().replace("# unique_by", "unique_by").replace("# sequence_by", "sequence_by")

    (source,) = declared(text)["shop"].sources
    assert (source.unique_by, source.sequence_by) == ("id", "version")


@pytest.mark.parametrize(
    ("field", "values", "found"),
    [
        ("currency", ("EUR",), "1 value (EUR), an ISO 4217 code"),
        ("ccy", ("eur", "usd"), "2 values (eur, usd), all ISO 4217 codes"),
        ("currencyCode", ("BTC", "EUR", "ETH", "XRP"), "4 values (BTC, ETH, EUR and 1 more)"),
        ("base", ("EUR", "USD"), "2 values (EUR, USD), all ISO 4217 codes"),
        ("base", ("EUR",), None),
        ("base", ("eur", "usd"), None),
        ("country", ("AUT", "USA"), None),
        ("currency", ("x" * 41,), None),
        ("currency", (978, 840), None),
        ("unit", ("C", "F"), "2 values (C, F)"),
        ("temperatureUnit", ("C",), "1 value (C)"),
        ("uom", tuple(map(str, range(21))), None),
        ("unit_name_of_shop", ("C", "F"), None),
        ("metricName", ("cpu", "memory"), "2 values (cpu, memory)"),
        ("parameter", ("pm25", "pm10"), "2 values (pm10, pm25)"),
        ("metricId", ("a", "b"), None),
        ("name", ("http.duration", "cpu_usage"), "2 values (cpu_usage, http.duration)"),
        ("name", ("Ann", "Bob"), None),
        ("name", ("http.duration", "Bob"), None),
    ],
)
def test_a_part_of_the_key_is_recognised_by_its_name_and_its_values(
    field: str, values: tuple[Any, ...], found: str | None
) -> None:
    *fields, value = seen([{field: one, "v": 1} for one in values])

    assert [part.seen for part in parts_of_key(fields, value)] == ([] if found is None else [found])


def test_the_currency_beside_the_value_is_its_currency() -> None:
    record = {"paid": {"value": 1, "currency": "EUR"}, "fee": {"value": 2, "currency": "USD"}}
    fields = {field.path: field for field in seen([record])}

    def found(value: str) -> list[str]:
        return [part.field.path for part in parts_of_key(list(fields.values()), fields[value])]

    assert found("paid.value") == ["paid.currency"]
    assert found("fee.value") == ["fee.currency"]


@pytest.mark.parametrize(
    ("records", "found"),
    [
        ([{"id": one} for one in (1, 2, 3)], [("unique_by", "id", "a different value in all 3 samples")]),
        ([{"x": UUID.format(one)} for one in (1, 2, 3)], [("unique_by", "x", "a different UUID in all 3")]),
        ([{"id": one} for one in (1, 2)], []),
        ([{"id": one} for one in (1, 2, "")], []),
        ([{"id": one} for one in (1, 1, 1)], []),
        ([{"id": one} for one in (1.5, 2, 3)], []),
        ([{"name": one} for one in "abc"], []),
        ([{"customerId": one} for one in "abc"], []),
        ([{"traceId": UUID.format(one)} for one in (1, 2, 3)], []),
        ([{"lineId": one, "orderId": -one} for one in (1, 2, 3)], [("unique_by", "orderId", "a different")]),
        ([{"orderNumber": one} for one in "abc"], [("unique_by", "orderNumber", "a different value")]),
        ([{"houseNumber": one} for one in "abc"], []),
        (
            [{"id": one, "a": one} for one in (1, 2, 3, 3)],
            [("unique_by", "id", "3 values in 4 samples, and the other one repeats a record: to count")],
        ),
        ([{"id": one, "a": at} for at, one in enumerate((1, 2, 3, 3))], []),
        (
            [{"id": one, "version": at} for at, one in enumerate((1, 2, 1, 2))],
            [
                ("unique_by", "id", "2 values in 4 samples, and version tells their records apart: if these"),
                ("sequence_by", "version", "different in all records with the same id"),
            ],
        ),
        ([{"id": one, "version": 1, "a": at} for at, one in enumerate((1, 2, 1, 2))], []),
        ([{"id": at % 2, "seq": at} for at in range(9)], []),
        (
            [{"id": one, "updated_at": 1} for one in (1, 2, 3)],
            [("unique_by", "id", "a different"), ("sequence_by", "updated_at", "a whole number with the")],
        ),
        ([{"id": one, "version": "v1"} for one in (1, 2, 3)], [("unique_by", "id", "a different")]),
    ],
)
def test_an_id_and_a_sequence_are_recognised_by_their_values_in_the_samples(
    records: Records, found: list[tuple[str, str, str]]
) -> None:
    identity = identity_of(seen(records), ())

    proposals = [] if identity is None else identity.proposals
    assert [(argument, field.path) for argument, field, _ in proposals] == [one[:2] for one in found]
    for (_, _, why), (*_, begins) in zip(proposals, found, strict=True):
        assert why.startswith(begins)


def test_a_currency_that_cannot_be_in_the_key_is_a_warning_and_a_comment(make: Make) -> None:
    ended = make(PAYMENTS, kind="running-totals")

    warning = (
        "currency has 2 values (EUR, USD), all ISO 4217 codes, but the key of running-totals is a single "
        "field: amounts in different currencies are added up; the key of windowed-sums can have several"
    )
    assert ended.stderr == f"{warning}\n"
    assert f'# guess: {warning}\nby = "customer"\n' in table()


def test_a_named_key_is_kept_and_the_currency_is_a_warning(make: Make) -> None:
    ended = make(PAYMENTS, "--by", "customer")

    assert ended.stderr == (
        "currency has 2 values (EUR, USD), all ISO 4217 codes, but it is not in the key: amounts in "
        "different currencies are added up; to keep them apart, add --by currency\n"
    )
    assert 'by = "customer"\n' in table()


POINTS = [
    {"service": "s", "name": "cpu.load", "value": 0.5 + number, "at": 1_774_746_300} for number in range(9)
]


def test_names_of_metrics_and_units_are_in_the_key_of_statistics_with_a_default(make: Make) -> None:
    ended = make([*POINTS, POINTS[0] | {"name": "cpu.heat", "unit": "C"}], kind="windowed-statistics")

    assert ended.exit_code == 0, ended.output
    assert (
        """\
# guess: service: a string or whole number in all 10 samples
# guess: name: 2 values (cpu.heat, cpu.load): values of different metrics are not added up, so it is part of \
the key
# guess: unit: 1 value (C): values in different units are not added up, so it is part of the key
by = ["service", "name", "unit"]
absent = { "unit" = "none" }  # guess: not in all samples
"""
    ) in table()


def test_a_unit_that_many_samples_lack_is_not_in_the_key_of_sums(make: Make) -> None:
    ended = make([*POINTS, POINTS[0] | {"unit": "C"}])

    assert ended.stderr == (
        "unit has 1 value (C), but 9 of 10 samples lack it: values in different units are added up; with "
        "--by unit, they are kept apart, and records without it become dead letters\n"
    )
    assert 'by = ["service", "name"]\n' in table()


def test_the_few_samples_without_a_part_of_the_key_are_dead_letters(make: Make) -> None:
    samples = [one | {"unit": "C"} for one in POINTS]

    ended = make([*samples, POINTS[0]], "--python")

    assert ended.exit_code == 0, ended.output
    assert "\n  dead letters: 1 of 10 samples, such as s:10\n" in ended.output
    tests = Path("shop/tests/test_shop.py").read_text(encoding="utf-8")
    assert 'dead=[{"record": 0, "column": "unit"}],' in tests
    lines = Path("shop/tests/samples.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == samples


def test_without_another_field_the_parts_alone_are_the_key(make: Make) -> None:
    make([{"id": number, "currency": "EUR", "amount": 1} for number in range(3)])

    assert 'by = "currency"\n' in table()


@pytest.mark.parametrize(
    ("record", "options", "why"),
    [
        (
            {"price": "12.50"},
            (),
            (
                'price is a number written as text, such as "12.50", which a stream reads as a number only '
                "with accepts_text = true: name another field with --value for now, and then set, in the "
                'table, value = { name = "price", accepts_text = true }'
            ),
        ),
        ({"price": "12.50", "version": 1}, (), 'price is a number written as text, such as "12.50"'),
        ({"x": "-1e3", "y": 1}, ("--value", "x"), '--value: x is a number written as text, such as "-1e3"'),
        (
            {"x": "1.5.2"},
            (),
            "no field is a number in every sample: specify one with --value; fields: shop, x",
        ),
    ],
)
def test_numbers_written_as_text_are_explained(
    make: Make, record: Mapping[str, Any], options: tuple[str, ...], why: str
) -> None:
    ended = make([{"shop": "a", **record}] * 3, *options)

    assert isinstance(ended.exception, SettingsError)
    assert str(ended.exception).startswith(why)


OF_TWO_FIELDS = [
    {"host": "a", "asInt": "7", "flags": 0},
    {"host": "a", "asDouble": 1.5, "flags": 0},
    {"host": "a", "asDouble": 2.5, "flags": 0},
]


def test_a_value_in_one_of_two_fields_is_not_guessed(make: Make) -> None:
    ended = make(OF_TWO_FIELDS, kind="windowed-statistics")

    assert str(ended.exception) == (
        "each sample has either asDouble or asInt, and a stream reads its value from one field: with --value "
        "asDouble, samples without it become dead letters (1 of 3)"
    )


def test_samples_without_the_named_value_are_dead_letters(make: Make) -> None:
    ended = make(OF_TWO_FIELDS, "--value", "asDouble", "--python", kind="windowed-statistics")

    assert ended.exit_code == 0, ended.output
    assert "\n  dead letters: 1 of 3 samples, such as s:1\n" in ended.output
    tests = Path("shop/tests/test_shop.py").read_text(encoding="utf-8")
    assert 'dead=[{"record": 0, "column": "as_double"}],' in tests


@pytest.mark.parametrize(
    ("paths", "columns"),
    [
        ((("card", "id"),), ["card_id"]),
        ((("resource", "attributes", "service.name"),), ["service_name"]),
        (
            (("resource", "attributes", "host"), ("scope", "attributes", "host")),
            ["attributes_host", "scope_attributes_host"],
        ),
        ((("averageSpeedOfTheVehicleInKilometresPerHour",),), ["average_speed_of_the_vehicle_in"]),
        ((("x" * 50,),), ["x" * 40]),
        ((("payload", "of", "the", "outermost", "count"),), ["of_the_outermost_count"]),
        ((("a", "b"), ("a_b",), ("aB",)), ["a_b", "a_b_2", "a_b_3"]),
        ((("數",),), ["record"]),
    ],
)
def test_columns_are_short_and_differ(paths: Sequence[tuple[str, ...]], columns: list[str]) -> None:
    taken = Columns()

    assert [taken.take(Seen(names, (1,), (0,), ())) for names in paths] == columns
