"""What samples have in common, without Spark."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from lakehouse.dev.scaffold.samples import Time, fields_of, time_of
from lakehouse.streams.contract import FieldType


def types(*values: Any) -> list[tuple[str, str, bool]]:
    records = [{"a": value} if value is not ... else {} for value in values]
    return [(field.path, field.type.name, field.is_required) for field in fields_of(records)]


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
    ],
)
def test_a_field_has_the_narrowest_type_that_takes_all_its_values(
    values: tuple[Any, ...], found: list[tuple[str, str, bool]]
) -> None:
    assert types(*values) == found


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
        ("29.3.2026", None),
        ("2026-13-29T01:05:00Z", None),
        (Decimal("1e9999999"), None),
        (12, None),
        (True, None),
    ],
)
def test_a_time_is_known_by_its_size_or_its_form(value: Any, time: Time | None) -> None:
    (field,) = fields_of([{"at": value}])

    assert time_of(field) == time
    if time is not None:
        assert time.of(value).isoformat()[:16] == "2026-03-29T01:05"


def test_objects_are_not_looked_into_where_they_are_payloads() -> None:
    (field,) = fields_of([{"payload": {"x": 1}}], deep=False)

    assert (field.path, field.type) == ("payload", FieldType.JSON)
