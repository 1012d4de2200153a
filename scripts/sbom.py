"""Write CycloneDX 1.6 bills of materials for the wheel and the image: python scripts/sbom.py DIRECTORY.

They are generated from the lock files: requirements/runtime.txt, lakehouse/storage/spark/jars.sha256, the
page's vendor.sha256 and docker/Dockerfile. The jars' licences come from requirements/jars.licences. If a
jar's POM names none, the bill contains NOASSERTION. Two things are read from the installed packages: the
licences of Python packages, and the jars inside the pyspark wheel, which are identified by their own
metadata. Neither the clock nor the network is used, so the same sources always give the same files.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import sys
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import pyspark
from packaging.markers import Marker

from lakehouse.common.extras import DISTRIBUTION, code_version

ROOT = Path(__file__).parents[1]
DOCKERFILE = ROOT / "docker" / "Dockerfile"
# The environment of the image. A package is left out if its marker does not hold there.
IMAGE = {
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_machine": "x86_64",
    "platform_python_implementation": "CPython",
    "platform_system": "Linux",
    "sys_platform": "linux",
}

Component = dict[str, Any]


def packages(lock: str) -> Iterator[tuple[Component, str]]:
    """Yield the packages in a lock file, each with its marker, which may be empty."""
    for entry in lock.replace("\\\n", " ").splitlines():
        head, *digests = entry.split("--hash=sha256:")
        requirement, _, marker = head.partition(";")
        name, _, version = requirement.strip().partition("==")
        if not version:
            continue
        component = _library(
            f"pkg:pypi/{name.partition('[')[0].lower()}@{version}",
            name.partition("[")[0],
            version,
            *map(str.strip, digests),
        )
        yield component, marker.strip()


def runtime_jars(configurations: Sequence[str] = ("spark", "kafka", "s3")) -> Iterator[Component]:
    """Yield the jars for these configurations, by default all that `lakehouse setup --s3` fetches."""
    lock = (ROOT / "lakehouse" / "storage" / "spark" / "jars.sha256").read_text(encoding="utf-8")
    for digest, path, coordinates, _size in map(str.split, lock.splitlines()):
        if Path(path).parts[0] not in configurations:
            continue
        group, name, version = coordinates.split(":")
        component = _library(f"pkg:maven/{group}/{name}@{version}", name, version, digest)
        yield component | {"group": group} | _named(_jar_licences()[coordinates] or ["NOASSERTION"])


@functools.cache
def spark_jars() -> list[Component]:
    """Return the jars inside the pyspark wheel."""
    found = []
    for jar in sorted((Path(pyspark.__file__).parent / "jars").rglob("*.jar")):
        digest = hashlib.sha256(jar.read_bytes()).hexdigest()
        group, name, version = _says_of_itself(jar)
        purl = f"pkg:maven/{group}/{name}@{version}" if group else None
        found.append(_library(purl, name, version, digest) | ({"group": group} if group else {}))
    return found


def vendored() -> Iterator[Component]:
    """Yield the third-party script and style that the page includes."""
    page = ROOT / "lakehouse" / "serving" / "page"
    for digest, name in map(str.split, (page / "vendor.sha256").read_text(encoding="utf-8").splitlines()):
        if name.endswith(".js"):
            said = (page / "vendor" / name).read_text(encoding="utf-8")[:200]
            library, version = re.findall(r"/(\w+) \(v([\d.]+)\)", said)[0]
            yield _library(f"pkg:npm/{library.lower()}@{version}", library, version, digest)


def base_image() -> Iterator[Component]:
    """Yield the base image with its digest, and Debian packages without versions, which a build decides."""
    text = DOCKERFILE.read_text(encoding="utf-8").replace("\\\n", " ")
    final = text[text.rindex("\nFROM ") :]
    name, version, digest = re.findall(r"\nFROM ([\w/.-]+):(\S+)@sha256:([0-9a-f]{64})", final)[0]
    base = _library(f"pkg:docker/{name}@{version}?digest=sha256:{digest}", name, version, digest)
    yield base | {"type": "container"}
    for installed in re.findall(r"--no-install-recommends ([a-z0-9 -]+?) +&&", final):
        for package in installed.split():
            yield {"type": "library", "name": package, "purl": f"pkg:deb/debian/{package}"}


def wheel() -> dict[str, Any]:
    """Return the bill for the wheel: the packages that may be installed with it, and its contents."""
    named = (name for names in _project()["optional-dependencies"].values() for name in names)
    extras = {re.match(r"[\w.-]+", name)[0] for name in named}  # type: ignore[index]
    lock = (ROOT / "requirements" / "sandbox.txt").read_text(encoding="utf-8")
    optional = {
        one["name"]: one | {"scope": "optional"} for one, _ in packages(lock) if one["name"] in extras
    }
    always = [component for component, _ in _python() if component["name"] not in optional]
    return _bill("library", [*always, *optional.values(), *runtime_jars()])


def image() -> dict[str, Any]:
    """Return the bill for the image: the packages whose markers hold there, the base image and the jars."""
    text = DOCKERFILE.read_text(encoding="utf-8")
    version = re.findall(r"FROM python:([\d.]+)", text)[0]
    fetched = re.findall(r"-m lakehouse\.storage\.spark\.installing ([a-z0-9 ]*)&&", text)[0].split()
    jars = runtime_jars(fetched) if fetched else runtime_jars()
    there = IMAGE | {"python_full_version": version, "python_version": ".".join(version.split(".")[:2])}
    kept = [component for component, marker in _python() if not marker or Marker(marker).evaluate(there)]
    return _bill("container", [*base_image(), *kept, *jars])


def _python() -> Iterator[tuple[Component, str]]:
    lock = (ROOT / "requirements" / "runtime.txt").read_text(encoding="utf-8")
    for component, marker in packages(lock):
        bundled = {"components": spark_jars()} if component["name"] == "pyspark" else {}
        yield component | _licences(component["name"]) | bundled, marker


def _licences(package: str) -> dict[str, Any]:
    """Return the licence that a package states, or nothing if the package is not installed here."""
    try:
        said = metadata.metadata(package)
    except metadata.PackageNotFoundError:
        return {}
    if "License-Expression" in said:
        return {"licenses": [{"expression": said["License-Expression"]}]}
    text = said["License"].strip() if "License" in said else ""
    classified = [one for one in said.get_all("Classifier", []) if one.startswith("License :: ")]
    # Some packages put the whole licence text in this field.
    names = [text] if text and "\n" not in text else [one.split(" :: ")[-1] for one in classified]
    return _named(names) if names else {}


def _named(licences: Sequence[str]) -> dict[str, Any]:
    return {"licenses": [{"license": {"name": name}} for name in licences]}


@functools.cache
def _jar_licences() -> dict[str, list[str]]:
    """Return the names of each jar's licences, by its coordinates."""
    text = (ROOT / "requirements" / "jars.licences").read_text(encoding="utf-8")
    lines = (line.partition("\t") for line in text.splitlines())
    return {coordinates: [one for one in named.split("; ") if one] for coordinates, _, named in lines}


def _project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found


def _bill(kind: str, parts: list[Component]) -> dict[str, Any]:
    name, version = DISTRIBUTION, code_version()
    purl = f"pkg:pypi/{name}@{version}"
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {"type": kind, "bom-ref": purl, "name": name, "version": version, "purl": purl}
        },
        "components": [*parts, *vendored()],
    }


def _library(purl: str | None, name: str, version: str, *digests: str) -> Component:
    hashes = [{"alg": "SHA-256", "content": digest} for digest in digests]
    named = {"purl": purl} if purl else {}
    return {"type": "library", "name": name, "version": version, "hashes": hashes} | named


def _says_of_itself(jar: Path) -> tuple[str | None, str, str]:
    """Return a jar's group, name and version, from its Maven properties or else from its file name."""
    with zipfile.ZipFile(jar) as archive:
        found = [
            name
            for name in archive.namelist()
            if re.fullmatch(r"META-INF/maven/[^/]+/[^/]+/pom\.properties", name)
        ]
        for name in found:
            text = archive.read(name).decode()
            said = dict(re.findall(r"^(groupId|artifactId|version)=(\S+)", text, re.MULTILINE))
            if jar.stem.startswith(f"{said.get('artifactId')}-{said.get('version')}"):
                return said["groupId"], said["artifactId"], said["version"]
    return None, *_name_and_version(jar)


def _name_and_version(jar: Path) -> tuple[str, str]:
    name, version = re.findall(r"(.+?)-(\d.*)", jar.stem)[0]
    return name, version


def write(directory: Path) -> None:
    """Write both bills to a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, bill in (("wheel", wheel()), ("image", image())):
        path = directory / f"lakehouse-{name}.cdx.json"
        path.write_text(json.dumps(bill, indent=1) + "\n", encoding="utf-8")
        sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
