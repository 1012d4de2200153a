"""How a failure is described in one line, above all that of a full disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, PythonException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakehouse.common.errors import TableError, first_line
from lakehouse.storage.spark.query_errors import what_of


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


def test_of_a_python_worker_the_error_is_told_and_not_where_it_was(
    spark: SparkSession, tmp_path: Path
) -> None:
    number = F.udf(lambda text: 1 + int(text), "long")
    rows = spark.sql("SELECT 'x' AS text").select(number("text"))
    with pytest.raises(PythonException) as collected:
        rows.collect()
    with pytest.raises((PySparkException, Py4JJavaError)) as written:
        rows.write.parquet(str(tmp_path / "rows"))
    why = "a Python worker failed: ValueError: invalid literal for int() with base 10: 'x'"
    for failed in (collected, written):
        assert what_of(failed.value).endswith(f": {why}")


def test_of_exceptions_of_a_worker_in_a_chain_the_last_one_is_told() -> None:
    first = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    g()\nKeyError: 1'
    last = first.replace("KeyError: 1", "LookupError: none\nof them\n\tat org.apache.spark")
    said = f"An exception was thrown.\n{first}\n\nDuring handling of the above:\n\n{last}"
    assert what_of(PythonException(said)) == "PythonException: a Python worker failed: LookupError: none"
    assert what_of(TableError(said)) == "An exception was thrown."


def test_other_errors_have_their_class_and_those_for_users_only_their_message() -> None:
    assert what_of(ValueError("no such thing\nand its stack trace")) == "ValueError: no such thing"
    said = "the disk is full (File too large): it was said before"
    assert what_of(TableError(said)) == said


def test_a_line_that_announces_a_list_has_it_up_to_the_stack_trace() -> None:
    said = "CHECK small (n < 5) violated by row with values:\n - n : 7\n - name : Ada\n\tat org.apache"
    assert first_line(f"\n{said}") == "CHECK small (n < 5) violated by row with values: n : 7, name : Ada"
    assert first_line("it failed:\n\tat org.apache") == "it failed"
    assert len(first_line(f"values:\n - {'x' * 10_000}")) < 1_100
    assert first_line("one\u2028line\nanother") == "one\u2028line"
    assert first_line("") == "no message"
