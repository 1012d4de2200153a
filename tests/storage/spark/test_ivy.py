"""Runtime jars are fetched by their locked coordinates."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from lakehouse.storage.spark import ivy
from lakehouse.storage.spark.jars import locked_jars

MODULE = Path(ivy.__file__).with_name("ivy.xml")


def test_every_dependency_is_locked_under_its_own_coordinates() -> None:
    named = {
        (one.attrib["org"], one.attrib["name"], one.attrib["rev"])
        for one in ElementTree.parse(MODULE).iter("dependency")  # noqa: S314 - our own file
    }
    jars = locked_jars()
    assert ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0") in named
    assert named <= {jar.coordinates for jar in jars}
    files = {f"{jar.configuration}/{jar.coordinates[1]}-{jar.coordinates[2]}.jar" for jar in jars}
    assert files == {jar.path for jar in jars}


@pytest.mark.soak
def test_an_empty_cache_is_filled_and_what_is_left_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEHOUSE_CACHE", str(tmp_path))
    said: list[str] = []
    with ivy.fetched(said.append, ["spark"]) as found:
        sizes = {path.name: path.stat().st_size for path in (found / "spark").iterdir()}
    assert sizes == {Path(jar.path).name: jar.size for jar in locked_jars(["spark"])}
    assert said[-1] == f"  {len(sizes)} of {len(sizes)} jars, 0 MB left"
