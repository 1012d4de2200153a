"""Versions of Spark and Delta other than those tested: a warning, or a refusal if a member is missing."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakehouse.common.errors import VersionError
from lakehouse.settings import Settings
from lakehouse.storage.spark.members import Member
from lakehouse.storage.tables import delta_members, lake, open_lake, versions
from lakehouse.storage.tables.versions import TESTED

ROOT = Path(__file__).parents[3]
PACKAGES = {"pyspark": "PySpark", "delta-spark": "Delta", "deltalake": "deltalake"}


def test_the_tested_versions_are_those_that_are_installed(spark: SparkSession) -> None:
    assert versions.check(spark) is None
    assert TESTED["Spark"] == TESTED["PySpark"]


@pytest.mark.parametrize("package", PACKAGES)
def test_the_wheel_asks_for_exactly_the_tested_and_locked_versions(package: str) -> None:
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    pinned = f"{package}=={TESTED[PACKAGES[package]]}"

    assert pinned in asked
    for lock in ("runtime.in", "runtime.txt", "dev.txt"):
        assert re.search(rf"^{re.escape(pinned)}\b", (ROOT / "requirements" / lock).read_text(), re.MULTILINE)


def test_another_version_with_all_members_is_warned_of(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TESTED, "Delta", "4.3.0")
    assert versions.check(spark) == "this is Delta 4.4.0; lakehouse is tested with Delta 4.3.0"

    monkeypatch.setitem(TESTED, "deltalake", "1.5.0")
    assert versions.check(spark) == (
        "this is Delta 4.4.0, deltalake 1.6.6; lakehouse is tested with Delta 4.3.0, deltalake 1.5.0"
    )


def test_another_version_without_a_member_is_refused_by_its_name(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TESTED, "Delta", "4.3.0")
    gone = tuple(
        Member("org.apache.spark.sql.delta.DeltaLog", name) for name in ("gone()", "lost()", "left()")
    )
    monkeypatch.setattr(delta_members, "MEMBERS", gone)

    with pytest.raises(VersionError) as refused:
        versions.check(spark)

    assert str(refused.value) == (
        "lakehouse cannot work with Delta 4.4.0, which lacks "
        "org.apache.spark.sql.delta.DeltaLog.gone() and 2 "
        "more members; install Delta 4.3.0"
    )


def test_a_session_begins_with_one_line_of_warning(
    spark: SparkSession,
    lake_settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    @contextmanager
    def start_session(*_given: object, **_named: object) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(lake, "start_session", start_session)
    with open_lake(lake_settings, "test"):
        assert capsys.readouterr().err == ""

    monkeypatch.setitem(TESTED, "deltalake", "1.5.0")
    with open_lake(lake_settings, "test"):
        assert (
            capsys.readouterr().err == "this is deltalake 1.6.6; lakehouse is tested with deltalake 1.5.0\n"
        )
