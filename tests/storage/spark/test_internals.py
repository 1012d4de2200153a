"""Private members of Spark, py4j and Delta: all exist, and no other module uses them.

After an upgrade, this file says what is missing, which may be why everything else fails.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from lakehouse.storage.spark import internals, members
from lakehouse.storage.spark.members import Member
from lakehouse.storage.tables import delta_members
from tests.support.counting import counted

ROOT = Path(__file__).parents[3]
HOMES = {"lakehouse/storage/spark/internals.py", "lakehouse/storage/tables/delta_internals.py"}
PRIVATE = {"_gateway", "_jc", "_jdf", "_jreader", "_jsc", "_jschema", "_jsession", "_jsparkSession", "_jvm"}
MODULES = ("py4j.java_gateway", "pyspark.java_gateway", "pyspark.sql.classic")
PUBLIC = {"createDataFrame", "fromJson", "getVersion", "modificationTime"}  # other objects have them, too
OF_DELTA = {
    name
    for name in (member.signature.partition("(")[0] for member in delta_members.MEMBERS)
    if not name.islower() and name not in PUBLIC
}


def test_every_listed_member_is_there(spark: SparkSession) -> None:
    assert internals.missing_here() == []
    assert internals.missing(spark, members.MEMBERS) == []
    assert internals.missing(spark, members.COMPILED) == []
    assert internals.missing(spark, delta_members.MEMBERS) == []


@pytest.mark.parametrize(
    ("member", "said"),
    [
        (Member("org.apache.spark.sql.delta.DeltaLogs", "update()"), "org.apache.spark.sql.delta.DeltaLogs"),
        (
            Member("org.apache.spark.sql.delta.DeltaLog", "snapshotLocks()"),
            "org.apache.spark.sql.delta.DeltaLog.snapshotLocks()",
        ),
        (
            Member("org.apache.spark.sql.delta.DeltaLog", "history(int)"),
            "org.apache.spark.sql.delta.DeltaLog.history(int)",
        ),
        (
            Member("org.apache.spark.sql.delta.actions.Format", "new(java.lang.String)"),
            "org.apache.spark.sql.delta.actions.Format.new(java.lang.String)",
        ),
    ],
)
def test_a_class_a_name_a_signature_or_a_constructor_that_is_gone_is_named(
    spark: SparkSession, member: Member, said: str
) -> None:
    assert internals.missing(spark, [member]) == [said]


def test_a_private_name_of_pyspark_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = (("pyspark.sql.classic.columns", "_to_seq"), ("pyspark", "SparkContext._gateways"))
    monkeypatch.setattr(internals, "PRIVATE", gone)
    assert internals.missing_here() == [
        "pyspark.sql.classic.columns._to_seq",
        "pyspark.SparkContext._gateways",
    ]


def test_sessions_and_frames_have_their_objects_of_the_jvm(spark: SparkSession) -> None:
    frame: DataFrame = spark.range(1)
    assert all(hasattr(spark, name) for name in ("_jvm", "_jsparkSession"))
    assert hasattr(frame, "_jdf")
    assert hasattr(spark.sparkContext, "_jsc")


def test_only_the_two_modules_touch_private_members() -> None:
    found = {file for file in _sources() if file not in HOMES and any(_private_in(file))}
    assert found == set()


def _sources() -> Iterator[str]:
    for directory in ("lakehouse", "expectations", "jobs", "benchmarks"):
        yield from (path.relative_to(ROOT).as_posix() for path in (ROOT / directory).rglob("*.py"))


def _private_in(file: str) -> Iterator[str]:
    """Yield a file's uses of the JVM, of PySpark's private modules, and of Delta's members."""
    for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and node.attr in PRIVATE | OF_DELTA:
            yield node.attr
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(MODULES):
            yield str(node.module)
        elif isinstance(node, ast.Import):
            yield from (one.name for one in node.names if one.name.startswith(MODULES))


def test_a_class_is_looked_up_once_and_what_it_stands_for_each_time(spark: SparkSession) -> None:
    def use() -> None:
        assert internals.static(spark, "java.lang.Integer").MAX_VALUE == 2**31 - 1
        internals.none(spark)

    use()
    with counted(spark) as counts:
        use()

    assert counts.calls == 1
