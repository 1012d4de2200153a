import json
from collections import Counter
from decimal import Decimal

import pytest

from lakehouse.common.errors import SettingsError
from lakehouse.dev.samples import spread_times
from lakehouse.dev.samples.sales import HOT_PRODUCT, PRODUCTS
from tests.support.sampling import CONTRACTS, NOW_MS, class_of, decoded

CONTRACT = CONTRACTS["sales"]


def test_every_product_is_sold_under_its_name_as_the_key() -> None:
    produced = CONTRACT.generate(20_000, late=0.1, duplicates=0.1)

    assert {decoded(sample)["product"] for sample in produced} == set(PRODUCTS)
    assert [(s.key or b"").decode() for s in produced] == [decoded(s)["product"] for s in produced]


def test_values_have_two_decimals_at_most_and_some_are_returns() -> None:
    values = [
        json.loads(sample.value or b"", parse_float=Decimal)["value"] for sample in CONTRACT.generate(10_000)
    ]

    assert {type(value) for value in values} == {int, Decimal}
    assert all(Decimal(value) == round(Decimal(value), 2) for value in values)
    assert 200 < sum(value < 0 for value in values) < 400


def test_a_product_goes_beyond_two_thousand() -> None:
    totals: Counter[str] = Counter()
    for sample in CONTRACT.generate(10_000):
        totals[decoded(sample)["product"]] += decoded(sample)["value"]

    assert sum(total > 2000 for total in totals.values()) > 10


def test_tombstones_are_null_values_of_products_at_their_time() -> None:
    produced = CONTRACT.generate(10_000, tombstones=0.02, malformed=0.05, duplicates=0.1)

    times = spread_times(10_000, end_ms=NOW_MS, span_s=600)
    tombstones = [
        (sample, due) for sample, due in zip(produced, times, strict=True) if sample.kind == "tombstone"
    ]
    assert len(tombstones) == 200
    assert {(sample.key or b"").decode() for sample, _ in tombstones} <= set(PRODUCTS)
    assert all(sample.value is None and sample.timestamp_ms == due for sample, due in tombstones)
    assert [sample for sample, _ in tombstones if CONTRACT.breach(sample) is not None] == []
    assert {sample.timestamp_ms for sample in produced if sample.kind != "tombstone"} == {0}


def test_tombstones_take_their_part_of_the_whole() -> None:
    kinds = Counter(
        class_of(s) for s in CONTRACT.generate(1000, tombstones=0.2, malformed=0.2, duplicates=0.3)
    )

    assert kinds == {"tombstone": 200, "malformed": 200, "duplicate": 300, "valid": 300}
    with pytest.raises(SettingsError, match=r"tombstones 0.2 and duplicates 0.4.* \+ tombstones \+ 2 × "):
        CONTRACT.generate(1000, tombstones=0.2, late=0.1, duplicates=0.4)


def test_without_a_value_only_the_key_can_be_malformed() -> None:
    nulls = {s.kind: s.key for s in CONTRACT.generate(100, malformed=1.0) if s.value is None}

    assert nulls == {
        "malformed:tombstone_key_null": None,
        "malformed:tombstone_key_not_utf8": b"caf\xe9",
        "malformed:tombstone_key_empty": b"",
    }


@pytest.mark.parametrize("field", ["product", "value", "timestamp"])
def test_a_malformed_field_is_the_one_that_its_kind_names(field: str) -> None:
    unreadable = {"malformed:value_nan", "malformed:value_infinity", "malformed:value_minus_infinity"}
    malformed = CONTRACT.generate(100, malformed=1.0)
    named = [sample for sample in malformed if sample.kind.startswith(f"malformed:{field}_")]

    assert len(named) >= 4
    for sample in named:
        assert CONTRACT.breach(sample) == ("not UTF-8 JSON" if sample.kind in unreadable else field), sample


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_hot_product_has_the_share_asked_for(share: float) -> None:
    produced = CONTRACT.generate(10_000, hot_product=share, late=0.1, duplicates=0.1, tombstones=0.05)

    hot = sum(sample.key == HOT_PRODUCT.encode() for sample in produced)
    assert hot / 10_000 == pytest.approx(share, abs=0.02)
    with pytest.raises(SettingsError, match=r"hot product is 2, but a share of all sales must be between 0"):
        CONTRACT.generate(10, hot_product=2)


def test_many_products_take_turns() -> None:
    produced = CONTRACT.generate(6000, products=2000)

    assert set(Counter(sample.key for sample in produced).values()) == {3}
    assert [(s.key or b"").decode() for s in produced] == [decoded(s)["product"] for s in produced]
