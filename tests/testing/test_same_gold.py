"""`lakehouse.testing.SameGold`: it passes streams that keep the promise, and fails those that do not."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse.streams.definition import EventTimeProgress
from lakehouse.testing import Record, SameGold
from tests.support.spending import NOW, spent
from tests.support.streams import (
    PRODUCT_SALES,
    SALES,
    SALES_NOTIFICATIONS,
    TRANSACTIONS,
    USER_TRANSACTIONS_5M,
)

SPENT = [spent("ann", amount, minute) for amount, minute in ((1, 0), (2, 1), (4, 9), (8, 9), (16, 1))]
SOLD = [
    Record(f'{{"product":"pen","value":{value}}}'.encode(), key=b"pen", partition=partition)
    for value, partition in ((1500, 0), (600, 0), (5, 1), (-2000, 0), (3000, 1))
]


def last_wins(partials: DataFrame, current: DataFrame, progress: EventTimeProgress) -> DataFrame:
    """Fold as if the table had no rows."""
    return USER_TRANSACTIONS_5M.fold(partials, current.limit(0), progress)


def test_sums_pass_in_any_order(assert_same_gold: SameGold) -> None:
    assert_same_gold(TRANSACTIONS, SPENT, now=NOW, seed=1, ways=3)


@pytest.mark.soak
def test_a_stream_whose_records_are_ordered_passes_because_it_makes_rows_anew(
    assert_same_gold: SameGold,
) -> None:
    assert_same_gold(SALES, SOLD, now=NOW)
    assert_same_gold(SALES, SOLD, now=NOW, keep_order=True)


def test_a_fold_that_forgets_is_found_with_the_seed_that_draws_it_again(assert_same_gold: SameGold) -> None:
    forgetful = replace(TRANSACTIONS, gold=(replace(USER_TRANSACTIONS_5M, fold=last_wins),))

    with pytest.raises(AssertionError) as first:
        assert_same_gold(forgetful, SPENT, now=NOW, ways=40)  # a few ways might all miss it

    said = str(first.value).split("\n")
    seed = re.fullmatch(
        r"transactions: gold differs from that of a single batch \(seed=(\d+), way \d+\)", said[0]
    )
    assert seed is not None
    assert "micro-batch 0" in said[1]
    assert any(re.search(r'"user_id": "ann".*total_amount is .*, but should be ', line) for line in said)
    with pytest.raises(AssertionError) as again:
        assert_same_gold(forgetful, SPENT, now=NOW, seed=int(seed[1]), ways=40)
    assert str(again.value) == str(first.value)


@pytest.mark.soak
def test_a_side_table_whose_retry_has_other_keys_is_found(assert_same_gold: SameGold) -> None:
    """The key is random, so the retry cannot find the first attempt's row."""

    def drawn(folded: DataFrame) -> DataFrame:
        rows = SALES_NOTIFICATIONS.rows(folded)
        return rows.withColumn("partition", (F.rand() * 1e9).cast("int"))

    side = replace(SALES_NOTIFICATIONS, keys=("product", "partition"), rows=drawn)
    stream = replace(SALES, gold=(replace(PRODUCT_SALES, needs_recompute=None, sides=(side,)),))

    with pytest.raises(AssertionError, match=r"gold\.sales_notifications: \d+ rows? differ"):
        assert_same_gold(stream, SOLD, now=NOW, seed=1)


def test_records_of_which_none_is_clean_prove_nothing(assert_same_gold: SameGold) -> None:
    with pytest.raises(
        AssertionError, match=r"none of the records of transactions are clean.*amount must be above 0"
    ):
        assert_same_gold(TRANSACTIONS, [spent("ann", 0)], now=NOW)


@pytest.mark.soak
def test_on_a_lake_every_write_is_killed_and_the_audit_finds_what_is_wrong(
    assert_same_gold: SameGold, tmp_path: Path
) -> None:
    assert_same_gold(SALES, SOLD, now=NOW, lake=tmp_path / "sales")
    forgetful = replace(TRANSACTIONS, gold=(replace(USER_TRANSACTIONS_5M, fold=last_wins),))
    with pytest.raises(AssertionError, match="transactions: gold differs after crashes"):
        assert_same_gold(forgetful, SPENT, now=NOW, lake=tmp_path / "forgetful", seed=2)
