import json
from collections import Counter
from decimal import Decimal

import pytest

from lakehouse.common.errors import SettingsError
from lakehouse.dev.samples.transactions import HOT_USER, USERS
from tests.support.sampling import CONTRACTS, decoded

CONTRACT = CONTRACTS["transactions"]


def test_every_user_pays_under_their_name_as_the_key() -> None:
    produced = CONTRACT.generate(20_000, late=0.1, duplicates=0.1)

    assert {decoded(sample)["userId"] for sample in produced} == set(USERS)
    assert [(s.key or b"").decode() for s in produced] == [decoded(s)["userId"] for s in produced]


def test_amounts_are_positive_with_two_decimals_at_most() -> None:
    amounts = [
        json.loads(sample.value or b"", parse_float=Decimal)["amount"] for sample in CONTRACT.generate(10_000)
    ]

    assert {type(amount) for amount in amounts} == {int, Decimal}
    assert all(amount > 0 and Decimal(amount) == round(Decimal(amount), 2) for amount in amounts)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_hot_user_has_the_share_asked_for(share: float) -> None:
    produced = CONTRACT.generate(10_000, hot_user=share, late=0.1, duplicates=0.1, malformed=0.05)

    hot = sum(sample.key == HOT_USER.encode() for sample in produced)
    assert hot / 10_000 == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_hot_user_with_more_than_everything_is_refused(share: float) -> None:
    with pytest.raises(SettingsError, match=r"hot user .* a share of all events must be between 0 and 1"):
        CONTRACT.generate(10, hot_user=share)


@pytest.mark.parametrize(("prefix", "field"), [("user_id", "userId"), ("amount", "amount")])
def test_a_malformed_field_is_the_one_that_its_kind_names(prefix: str, field: str) -> None:
    unreadable = {"malformed:amount_nan", "malformed:amount_infinity", "malformed:amount_minus_infinity"}
    malformed = CONTRACT.generate(100, malformed=1.0)
    named = [sample for sample in malformed if sample.kind.startswith(f"malformed:{prefix}_")]

    assert len(named) >= 5
    for sample in named:
        assert CONTRACT.breach(sample) == ("not UTF-8 JSON" if sample.kind in unreadable else field), sample


def test_amounts_that_are_no_payment_are_malformed() -> None:
    by_kind = {sample.kind: sample for sample in CONTRACT.generate(100, malformed=1.0)}

    names = ("zero", "minus_zero", "negative")
    assert [decoded(by_kind[f"malformed:amount_{name}"])["amount"] for name in names] == [0, 0, -12.5]


def test_many_users_take_turns() -> None:
    produced = CONTRACT.generate(6000, users=2000, late=0.1)

    assert set(Counter(sample.key for sample in produced).values()) == {3}
    assert [(s.key or b"").decode() for s in produced] == [decoded(s)["userId"] for s in produced]
