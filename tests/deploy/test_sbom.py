"""The bills of materials list everything that is locked; the image's omits what the image lacks."""

from __future__ import annotations

import functools
import hashlib
import json
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pyspark
import pytest

ROOT = Path(__file__).parents[2]
Bill = dict[str, Any]


def locked(name: str) -> dict[str, str]:
    """Return a lock file's packages, each as `name==version`, with their markers."""
    lines = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    heads = (line.removesuffix("\\").strip() for line in lines if re.match(r"[a-z0-9]", line))
    return {re.sub(r"\[.*\]", "", head.split(" ;")[0]): head.partition(" ; ")[2] for head in heads}


@pytest.fixture(scope="module")
def bills(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bill]:
    directory = tmp_path_factory.mktemp("sbom")
    subprocess.run([sys.executable, ROOT / "scripts" / "sbom.py", directory], check=True, capture_output=True)
    return {
        name: json.loads((directory / f"lakehouse-{name}.cdx.json").read_text(encoding="utf-8"))
        for name in ("wheel", "image")
    }


def named(bill: Bill, kind: str) -> set[str]:
    """Return the components of a kind as `name==version`."""
    return {
        f"{one['name']}=={one['version']}"
        for one in bill["components"]
        if one.get("purl", "").startswith(f"pkg:{kind}/")
    }


def test_the_wheels_bill_names_every_locked_package(bills: dict[str, Bill]) -> None:
    optional = {one["name"] for one in bills["wheel"]["components"] if one.get("scope") == "optional"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project.get("optional-dependencies", {}).values()
    assert optional == {re.split(r"[\[;=]", name)[0] for names in extras for name in names}
    required = {one for one in named(bills["wheel"], "pypi") if one.partition("==")[0] not in optional}
    assert required == {one for one in locked("runtime") if one.partition("==")[0] not in optional}


def test_the_images_bill_leaves_out_packages_of_other_systems(bills: dict[str, Bill]) -> None:
    missing = locked("runtime").keys() - named(bills["image"], "pypi")
    markers = {locked("runtime")[name] for name in missing}
    assert "sys_platform == 'win32'" in markers
    assert "python_full_version >= '3.12'" in markers
    assert "" not in markers


@functools.cache
def inside_pyspark() -> set[str]:
    jars = (Path(pyspark.__file__).parent / "jars").rglob("*.jar")
    return {hashlib.sha256(jar.read_bytes()).hexdigest() for jar in jars}


@pytest.mark.parametrize("name", ["wheel", "image"])
def test_every_bill_names_every_jar_by_its_checksum(bills: dict[str, Bill], name: str) -> None:
    text = (ROOT / "lakehouse" / "storage" / "spark" / "jars.sha256").read_text(encoding="utf-8")
    # The image has no broker.
    chosen = (line.split() for line in text.splitlines() if name == "wheel" or "./kafka/" not in line)
    expected = {digest for digest, *_ in chosen}
    jars = [one for one in bills[name]["components"] if one.get("purl", "").startswith("pkg:maven/")]
    assert {one["hashes"][0]["content"] for one in jars} == expected
    assert "pkg:maven/io.delta/delta-spark_4.2_2.13@4.4.0" in {one["purl"] for one in jars}
    (spark,) = (one for one in bills[name]["components"] if one["name"] == "pyspark")
    assert {one["hashes"][0]["content"] for one in spark["components"]} == inside_pyspark()


def test_every_runtime_jar_has_the_licences_of_its_pom(bills: dict[str, Bill]) -> None:
    jars = [one for one in bills["wheel"]["components"] if one.get("purl", "").startswith("pkg:maven/")]
    named = {one["name"]: [of["license"]["name"] for of in one["licenses"]] for one in jars}
    assert named["delta-storage"] == ["Apache-2.0"]
    assert named["HdrHistogram"] == ["Public Domain, per Creative Commons CC0", "BSD-2-Clause"]
    assert [name for name, said in named.items() if "" in said or not said] == []
    locked_jars = (
        (ROOT / "lakehouse" / "storage" / "spark" / "jars.sha256").read_text(encoding="utf-8").splitlines()
    )
    lines = (ROOT / "requirements" / "jars.licences").read_text(encoding="utf-8").splitlines()
    assert {line.partition("\t")[0] for line in lines} == {line.split()[2] for line in locked_jars}


@pytest.mark.parametrize("parent", ["<licenses><license><name>MIT</name></license></licenses>", ""])
def test_a_jar_has_the_licence_of_its_nearest_parent_or_none(tmp_path: Path, parent: str) -> None:
    child = "<parent><groupId>g</groupId><artifactId>p</artifactId><version>1</version></parent>"
    for name, text in (("a", child), ("p", parent)):
        pom = tmp_path / "g" / name / "ivy-1.xml.original"
        pom.parent.mkdir(parents=True)
        pom.write_text(
            f'<project xmlns="http://maven.apache.org/POM/4.0.0">{text}</project>', encoding="utf-8"
        )
    licences = runpy.run_path(str(ROOT / "scripts" / "jar_licences.py"))["licences"]
    assert licences(("g", "a", "1"), tmp_path) == (["MIT"] if parent else [])


def test_the_images_bill_names_its_base_by_digest_and_what_the_page_ships(bills: dict[str, Bill]) -> None:
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
    (base,) = (one for one in bills["image"]["components"] if one["type"] == "container")
    assert f"FROM {base['name']}:{base['version']}@sha256:{base['hashes'][0]['content']}" in dockerfile
    assert named(bills["image"], "npm") == {"uPlot==1.6.32"}
    parts = {one["name"] for one in bills["image"]["components"]}
    assert {"openjdk-17-jre-headless", "procps", "tini"} <= parts


@pytest.mark.parametrize("name", ["lock", "build", "runtime", "sandbox", "dev"])
def test_every_lock_has_hashes_and_no_other_tool_resolves_it(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    entries = [entry for entry in text.replace("\\\n", " ").splitlines() if re.match(r"[a-z0-9]", entry)]
    assert entries != []
    assert [entry for entry in entries if "--hash=sha256:" not in entry] == []
    script = (ROOT / "scripts" / "lock.sh").read_text(encoding="utf-8").replace("\\\n", " ")
    (installed,) = re.findall(r"pip install (.*)", script)
    assert "--require-hashes" in installed
    assert installed.endswith("--requirement requirements/lock.txt")
    assert f" {name}" in re.findall(r"^for name in(.*); do$", script, re.MULTILINE)[0]
