"""What DELETE and VACUUM leave of a person in the files that Spark writes."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F

from lakehouse.engine.layers import gold
from lakehouse.operations.erasure.subjects import subjects_in
from lakehouse.operations.erasure.verifying import verify
from lakehouse.settings import Settings
from lakehouse.storage import tables
from lakehouse.storage.spark.collecting import local_frame
from lakehouse.storage.tables import Lake, upkeep
from lakehouse.streams.registry import load
from tests.support.streams import USER_TRANSACTIONS_5M as TABLE

START = datetime(2026, 11, 1, tzinfo=UTC)


@pytest.mark.soak
def test_the_log_keeps_what_delete_and_vacuum_have_removed(lake: Lake, lake_settings: Settings) -> None:
    path = lake.ensure(gold.spec(TABLE))

    def put(*users: str) -> None:
        rows = [
            {
                "user_id": user,
                "window_start": START,
                "window_end": START + timedelta(minutes=5),
                "total_amount": Decimal(1),
                "count": 1,
            }
            for user in users
        ]
        frame = local_frame(lake.spark, rows, TABLE.schema).coalesce(1)
        tables.replace(frame, path, TABLE.keys, within=F.lit(True))

    def kinds() -> Counter[str]:
        subjects = subjects_in(b"anna-4711\n")
        report = verify(subjects, lake_settings, load(lake_settings), lambda _: None, only=["lake"])
        assert report.unread == ()
        assert report.is_clean == (not report.places)
        return Counter(place.kind for place in report.places)

    put("anna-4711", "berta-1")
    DeltaTable(path).create_checkpoint()
    assert kinds() == {"newest version": 1, "log": 1, "checksum": 1, "checkpoint": 1}

    tables.delete(lake.spark, path, F.col("user_id") == "anna-4711")
    after_delete = kinds()
    assert after_delete["newest version"] == 0
    assert (after_delete["old version"], after_delete["change feed"], after_delete["checkpoint"]) == (1, 1, 1)

    upkeep.vacuum(lake.spark, path, timedelta(0), dry_run=False)
    assert kinds() == {kind: after_delete[kind] for kind in ("log", "checksum", "checkpoint")}

    for file in Path(path, "_delta_log").glob("0*"):
        if "anna-4711" in file.read_text(encoding="utf-8", errors="replace"):
            file.unlink()
    assert kinds() == {}
