"""Write the licences of the runtime jars to requirements/jars.licences: python scripts/jar_licences.py.

`make lock` runs this script. The licences come from the POMs that Ivy has cached: from the jar's POM or, if
it names none, from its parents' POMs. A line consists of a jar's coordinates, a tab and the names of its
licences. There are no names if no POM contains any.
"""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

from lakehouse.storage.spark import ivy
from lakehouse.storage.spark.jars import locked_jars

LICENCES = Path(__file__).parents[1] / "requirements" / "jars.licences"
Coordinates = tuple[str, str, str]


def licences(coordinates: Coordinates, cache: Path) -> list[str]:
    """Return the licences in a jar's POM, or else in its nearest parent that names any.

    Raises FileNotFoundError if a POM is not in the cache.
    """
    group, name, version = coordinates
    pom = ElementTree.parse(cache / group / name / f"ivy-{version}.xml.original").getroot()  # noqa: S314 - cached by the lock
    named = [_text(one, "{*}name") for one in pom.findall("{*}licenses/{*}license")]
    parent = pom.find("{*}parent")
    if any(named) or parent is None:
        return [one for one in named if one]
    above = (_text(parent, "{*}groupId"), _text(parent, "{*}artifactId"), _text(parent, "{*}version"))
    return licences(above, cache)


def _text(node: ElementTree.Element, path: str) -> str:
    return " ".join((node.findtext(path) or "").split())


def write(target: Path) -> None:
    """Write a line for each locked jar."""
    found = {":".join(jar.coordinates): licences(jar.coordinates, ivy.cache()) for jar in locked_jars()}
    lines = [f"{name}\t{'; '.join(named)}\n" for name, named in sorted(found.items())]
    target.write_text("".join(lines), encoding="utf-8")
    sys.stdout.write(
        f"{target}: {len(found)} jars, {sum(not named for named in found.values())} without a licence\n"
    )


if __name__ == "__main__":
    write(LICENCES)
