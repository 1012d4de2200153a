"""Terms in a directory of the lake: a holder is alive while it renews its term."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from lakehouse.storage.tables import terms
from lakehouse.storage.tables.terms import Terms


def test_nothing_is_remembered_of_a_holder_that_has_left(spark: SparkSession, tmp_path: Path) -> None:
    directory = str(tmp_path / "terms")
    held = Terms(spark, directory, 60.0)
    held.renew("first")
    held.renew("second")
    assert held.alive() == {"first", "second"}
    held.forget("first")
    assert held.alive() == {"second"}
    assert {holder for where, holder in terms._seen if where == directory} == {"second"}
    assert held.until("first") == 0.0
    held.renew("first")
    assert held.alive() == {"first", "second"}
