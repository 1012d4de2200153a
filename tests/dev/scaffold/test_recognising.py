"""What `lakehouse new stream` recognises in samples, and how it names columns with long paths."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from lakehouse.cli.main import app
from lakehouse.common.record_lines import Line, Record
from lakehouse.dev.scaffold.code import Columns
from lakehouse.dev.scaffold.reading import Sample
from lakehouse.dev.scaffold.recognising import identity_of, parts_of_key
from lakehouse.dev.scaffold.samples import Seen, fields_of
from lakehouse.streams.contract import FieldType
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
# guess: a number in all 4 samples
value = "amount"
length = "5m"  # guess: five minutes, because few samples have the same key
"""
    )
    assert (
        ended.output
        == """\
lakehouse.toml: [streams.shop]
  event time: paidAt: in all 4 samples, ISO 8601 without an offset
  event time: the times have no offset: they are read as UTC; if they are local, name their zone with \
event_time_zone
  value: amount: a number in all 4 samples
  key: customer: a string or whole number in all 4 samples
  key: currency: 2 values (EUR, USD), all ISO 4217 codes: amounts in different currencies are not added up, \
so it is part of the key
  proposal: id: a different UUID in all 4 samples: to count a repeated record once, set unique_by
  proposal: version: a whole number with the name of a sequence: if a record with the same id and a greater \
version is a correction, set sequence_by as well
  length: 5m: five minutes, because few samples have the same key

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
    assert [(argument, value) for argument, value, _ in proposals] == [one[:2] for one in found]
    for (_, _, why), (*_, begins) in zip(proposals, found, strict=True):
        assert why.startswith(begins)


def test_records_that_share_an_id_are_not_compared_with_each_other() -> None:
    class Counted(dict[str, Any]):
        compared = 0

        def __eq__(self, other: object) -> bool:
            Counted.compared += 1
            return super().__eq__(other)

        __hash__ = None

    records = [Counted(ref="none" if number % 2 else f"r{number}", amount=number) for number in range(40)]
    assert identity_of(seen(records), []) is None
    assert Counted.compared == 0


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
absent = { unit = "none" }  # guess: not in all samples
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


PRICED = [
    {"shop": "a", "orderId": str(number), "zip": "10115", "price": f"{number}.50", "qty": str(number)}
    for number in range(10)
]


def test_numbers_that_are_written_as_text_are_read_but_ids_and_codes_stay_text(make: Make) -> None:
    ended = make([*PRICED, PRICED[0] | {"price": "NaN", "qty": 7}])

    assert ended.exit_code == 0, ended.output
    assert (
        """\
fields = [
    { name = "orderId", column = "order_id", type = "string" },  # guess: in all 11 samples, numbers written \
as text
    { name = "zip", column = "zip", type = "string" },  # guess: in all 11 samples, numbers written as text
    { name = "qty", column = "qty", type = "long", accepts_text = true },  # guess: numbers, 10 of them \
written as text, in all 11 samples, so accepts_text = true
]
# guess: a string or whole number in all 11 samples; others: orderId, zip
by = "shop"
# guess: numbers written as text in 10 of 11 samples, so accepts_text = true; not in s:11 ("NaN"); others: qty
value = { name = "price", column = "price", type = "decimal", accepts_text = true }
"""
    ) in table()
    assert (
        "\n  value: price: numbers written as text in 10 of 11 samples, so accepts_text = true;"
        in ended.output
    )
    assert (
        "\n  field: qty: numbers, 10 of them written as text, in all 11 samples, so accepts" in ended.output
    )
    assert "\n  dead letters: 1 of 11 samples, such as s:11\n" in ended.output


@pytest.mark.parametrize(
    ("record", "options", "field"),
    [
        ({"price": "12.50", "version": 1}, (), ("price", FieldType.DECIMAL, True)),
        ({"x": "-1e3", "y": 1}, (), ("x", FieldType.DECIMAL, True)),
        ({"x": "3", "y": 1}, (), ("y", FieldType.DECIMAL, False)),
        ({"x": "3", "y": 1}, ("--value", "x"), ("x", FieldType.DECIMAL, True)),
        ({"zip": "10115"}, ("--value", "zip"), ("zip", FieldType.DECIMAL, True)),
        ({"x": "270.0"}, (), ("x", FieldType.DECIMAL, True)),
    ],
)
def test_a_value_may_be_numbers_that_are_written_as_text(
    make: Make, record: Mapping[str, Any], options: tuple[str, ...], field: tuple[str, FieldType, bool]
) -> None:
    ended = make([{"shop": "a", **record}] * 3, *options)

    assert ended.exit_code == 0, ended.output
    (source,) = declared(table())["shop"].sources
    name, type_, accepts_text = field
    assert [
        (one.type, one.accepts_text) for one in source.contract.fields if one.name == name and one.required
    ] == [(type_, accepts_text)]


@pytest.mark.parametrize("value", ["1.5.2", "007", "+1", "NaN", "1,5", " 1", "1" * 5_000, ""])
def test_other_text_is_no_value(make: Make, value: str) -> None:
    ended = make([{"shop": "a", "x": value}] * 3)

    assert str(ended.exception).startswith("no field is a number in at least nine of ten samples: specify")


def test_a_text_that_is_no_number_as_json_writes_it_is_named_as_text(make: Make) -> None:
    ended = make([{"shop": "a", "x": "1,5"}] * 3, "--value", "x")

    assert str(ended.exception) == "--value x: its values have the type string; expected a number"


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


def test_a_table_of_aggregates_declares_all_fields_and_computes_exact_sums(make: Make) -> None:
    ended = make(PAYMENTS, kind="sql")

    assert ended.exit_code == 0, ended.output
    _, fields = table().split("\nfields = [\n")
    assert (
        fields
        == """\
    { name = "customer", column = "customer", type = "string" },  # guess: in all 4 samples
    { name = "currency", column = "currency", type = "string" },  # guess: in all 4 samples
    { name = "amount", column = "amount", type = "decimal" },  # guess: in all 4 samples
    { name = "id", column = "id", type = "string" },  # guess: in all 4 samples
    { name = "version", column = "version", type = "long" },  # guess: in all 4 samples
]

[[streams.shop.tables]]
# guess: customer: a string or whole number in all 4 samples
# guess: currency: 2 values (EUR, USD), all ISO 4217 codes: amounts in different currencies are not added \
up, so it is part of the key
by = ["customer", "currency"]
length = "5m"  # guess: five minutes, because few samples have the same key
# guess: amount: a number in all 4 samples
aggregates = { count = "count(*)", total = "sum(amount)", least = "min(amount)", greatest = "max(amount)" }
"""
    )


def test_a_table_of_aggregates_of_doubles_has_a_mean_but_no_sum(make: Make) -> None:
    ended = make([point | {"value": 1e-12} for point in POINTS], "--by", "service", kind="sql")

    assert ended.exit_code == 0, ended.output
    assert '{ name = "value", column = "value", type = "double" },' in table()
    assert (
        'count = "count(*)", least = "min(value)", greatest = "max(value)", mean = "avg(value)" }'
    ) in table()


def test_the_proposed_id_of_a_table_of_aggregates_can_be_uncommented(make: Make) -> None:
    make(PRICED, kind="sql")

    (source,) = declared(table().replace("# unique_by", "unique_by"))["shop"].sources
    assert source.unique_by == "orderId"


def test_the_value_is_a_quantity_and_the_key_tells_records_apart(make: Make) -> None:
    records = [
        {
            "agent": "curl",
            "client": {"port": 40_000 + number, "id": 17},
            "status": 200,
            "path": f"/{number % 3}",
            "total": None if number == 7 else "5.00",
        }
        for number in range(20)
    ]

    said = make(records).output

    value = "total: numbers written as text in 19 of 20 samples, so accepts_text = true"
    assert f"  value: {value}\n" in said
    assert "  key: path: a string or whole number in all 20 samples; others: client.port\n" in said
    assert "  dead letters: 1 of 20 samples, such as s:8\n" in said


def test_amounts_with_decimals_in_text_are_no_whole_numbers() -> None:
    (field,) = seen([{"discount": "5.00"}, {"discount": "7.00"}])

    assert field.as_number is not None
    assert field.as_number.type is FieldType.DECIMAL


def test_the_time_is_not_that_at_which_something_began_and_others_are_named(make: Make) -> None:
    at = "2026-03-01T10:00:00Z"

    ended = make([{"shop": "a", "amount": 1, "startedAt": at, "paidAt": at}] * 3)

    assert (
        "  event time: paidAt: in all 3 samples, ISO 8601 with an offset; others: startedAt\n" in ended.output
    )


def test_a_time_that_cannot_be_read_is_named(make: Make) -> None:
    records = [{"shop": "a", "amount": 1, "time": "23.11.2026 10:24:43"}] * 3

    guessed, named = make(records), make(records, "--time", "time")

    assert (
        "event time: time is in neither ISO 8601 nor RFC 2822, but contains text such as "
        '"23.11.2026 10:24:43": '
        "have the producer write times such as 2026-03-01T12:00:00Z\n"
    ) in guessed.output
    assert str(named.exception).endswith('such as 2026-03-01T12:00:00Z, not "23.11.2026 10:24:43"')


@pytest.mark.parametrize(
    ("records", "why"),
    [
        (
            [
                {"name": "cpu", "asDouble": 0.5},
                {"name": "memory", "asInt": "7"},
                {"name": "latency", "sum": 2},
            ],
            (
                "no field is a number in at least nine of ten samples: specify one with --value, and records "
                "without it become dead letters; or read several, in SQL (docs/streams-sql.md); numbers: "
                "asDouble (1 of 3 samples), asInt (1 of 3 samples), sum (1 of 3 samples)"
            ),
        ),
        (
            [{"resourceMetrics": [{"asInt": "7"}]}] * 3,
            (
                "no field is a number in at least nine of ten samples; the elements of resourceMetrics "
                "cannot become records: have the producer send one for each"
            ),
        ),
        (
            [{"isig": "22.5", "glucose": 250}] * 3,
            (
                "no field looks like a key: specify one with --by; for a table without a key, write a stream "
                "of the kind sql whose key is a constant (docs/streams-sql.md)"
            ),
        ),
    ],
)
def test_samples_without_a_value_or_a_key_are_refused_with_what_to_do(
    make: Make, records: Records, why: str
) -> None:
    assert str(make(records).exception) == why


def change(op: str, key: int, lsn: int, balance: str | None) -> dict[str, Any]:
    row = {"id": key, "customer": f"c{key % 2}", "currency": "EUR", "balance": balance, "valid_from": 20_000}
    source = {"ts_ms": 1_795_424_400_000 + lsn, "lsn": lsn, "table": "accounts", "txId": lsn}
    before, after = (row, None) if op == "d" else (None, row)
    return {"before": before, "after": after, "source": source, "op": op, "ts_ms": 1_795_424_400_000}


def test_change_events_are_declared_by_the_rows_after_the_change(make: Make) -> None:
    changes = [change("c", 1, 10, "1.50"), change("c", 2, 20, "2.50"), change("u", 1, 30, "3.50")]

    ended = make([*changes, change("d", 2, 40, None)], kind="sql")

    assert ended.output.startswith("1 of 4 samples is left out: s:4 deletes a row\n")
    assert (
        table()
        == """\
[streams.shop]
kind = "sql"
topic = "shop-events"  # guess: default topic
# guess: after.id: 2 values in 3 samples, and source.lsn tells their records apart: if these are corrections \
of one record, set unique_by and sequence_by
# unique_by = "after.id"
# guess: source.lsn: different in all records with the same after.id: the record with the greatest one is kept
# sequence_by = "source.lsn"
# guess: json:id: a record without a value deletes the row in its key, such as {"id": 17}: set deletion_key
# deletion_key = "json:id"
# guess: op=d: a change event with op=d deletes the row in `before`: set deleted_if
# deleted_if = "op=d"
event_time = "source.ts_ms"  # guess: in all 3 samples, a number of ms since 1970
fields = [
    { name = "after.customer", column = "after_customer", type = "string" },  # guess: in all 3 samples
    { name = "after.currency", column = "after_currency", type = "string" },  # guess: in all 3 samples
    { name = "after.balance", column = "after_balance", type = "decimal", accepts_text = true },  # guess: \
numbers written as text in all 3 samples, so accepts_text = true
    { name = "after.id", column = "after_id", type = "long" },  # guess: in all 3 samples
    { name = "after.valid_from", column = "after_valid_from", type = "long" },  # guess: in all 3 samples
    { name = "source.lsn", column = "source_lsn", type = "long" },  # guess: in all 3 samples
]

[[streams.shop.tables]]
# guess: after.customer: a string or whole number in all 3 samples
# guess: after.currency: 1 value (EUR), an ISO 4217 code: amounts in different currencies are not added up, \
so it is part of the key
by = ["after.customer", "after.currency"]
length = "5m"  # guess: five minutes, because few samples have the same key
# guess: after.balance: numbers written as text in all 3 samples, so accepts_text = true; others: \
after.valid_from
aggregates = { count = "count(*)", total = "sum(after_balance)", least = "min(after_balance)", greatest = \
"max(after_balance)" }
"""
    )
    text = table()
    for key in ("unique_by", "sequence_by", "deletion_key", "deleted_if"):
        text = text.replace(f"# {key} =", f"{key} =")
    (source,) = declared(text)["shop"].sources
    assert (source.unique_by, source.sequence_by) == ("after.id", "source.lsn")
    assert (source.deletion_key, source.deleted_if) == ("json:id", "op=d")
