"""A time before which retention has cleared a table never moves back, although more days are kept later."""

from __future__ import annotations

from datetime import datetime, timedelta

from pyspark.sql import functions as F

from lakehouse.engine.layers import gold
from lakehouse.engine.ops_tables import retained
from lakehouse.operations.maintenance import retention
from lakehouse.operations.maintenance.retention import Cut, CutMaker
from lakehouse.storage import tables
from lakehouse.storage.spark.collecting import local_frame
from lakehouse.storage.tables import Lake
from tests.operations.catalog.rows import NOON, TRANSACTIONS
from tests.support.streams import USER_TRANSACTIONS_5M

CLEARED, EARLIER = NOON - timedelta(days=30), NOON - timedelta(days=90)


def test_a_time_that_was_cleared_stays_cleared_when_more_days_are_kept(lake: Lake) -> None:
    spec = gold.spec(USER_TRANSACTIONS_5M)
    tables.append(local_frame(lake.spark, TRANSACTIONS, spec.schema), lake.ensure(spec))
    one, other = (row[0] for row in TRANSACTIONS)

    for user, before in ((one, CLEARED), (other, EARLIER)):
        assert retention.take(lake, spec, _of(user, before), NOON, dry_run=False) == 1

    assert retained.taken_of(lake, spec.layer, spec.name).before == CLEARED


def _of(user: str, before: datetime) -> CutMaker:
    return lambda _lake, _now: Cut(F.col("user_id") == user, retained.TakenRows(before))
