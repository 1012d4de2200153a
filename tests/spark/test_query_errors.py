"""What a failure is called in a line, above all that a disk is full."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakehouse.errors import TableError
from lakehouse.spark.query_errors import what_of


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_that_a_disk_is_full_comes_first_with_the_file(number: int) -> None:
    why = os.strerror(number)
    error = OSError(number, why, "/lake/note.json")
    assert what_of(error) == f"the disk is full ({why}): [Errno {number}] {why}: '/lake/note.json'"


def test_a_task_that_failed_is_told_with_its_cause(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.range(1).select(F.expr("java_method('java.lang.Long', 'parseLong', id || 'x')"))
    with pytest.raises(Py4JJavaError) as failed:
        rows.write.parquet(str(tmp_path / "rows"))
    assert what_of(failed.value).endswith(': java.lang.NumberFormatException: For input string: "0x"')


def test_other_errors_have_their_class_and_those_for_users_only_their_message() -> None:
    assert what_of(ValueError("no such thing\nand its stack trace")) == "ValueError: no such thing"
    said = "the disk is full (File too large): it was said before"
    assert what_of(TableError(said)) == said
