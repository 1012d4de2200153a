"""Build a new package with one stream: the stream, its suites, tests and project files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lakehouse.common.extras import DISTRIBUTION
from lakehouse.common.record_lines import Line
from lakehouse.dev.scaffold.streams import Made, sample_files
from lakehouse.dev.scaffold.texts import filled

_MOST_SAMPLES = 100


@dataclass(frozen=True)
class Sampled:
    """The sample records of a topic: their lines, and their values as JSON objects."""

    topic: str
    lines: Sequence[Line]
    objects: Sequence[Mapping[str, Any]]


def files_of(name: str, made: Made, samples: Sequence[Sampled]) -> dict[str, str]:
    """Return the package's files, keyed by their paths in the package directory."""
    files = {
        "pyproject.toml": _project(name),
        "README.md": _readme(name, made, samples),
        f"{name}/__init__.py": "",
        f"{name}/streams.py": made.stream,
        f"{name}/suites/__init__.py": "",
        f"{name}/suites/gold/__init__.py": "",
        **{f"{name}/suites/gold/{table}.py": code for table, code in made.suites.items()},
        f"tests/test_{name}.py": made.tests,
    }
    names = sample_files([one.topic for one in samples])
    return files | {f"tests/{names[one.topic]}": _as_lines(one) for one in samples}


def _as_lines(samples: Sampled) -> str:
    """Return the first sample values as JSON lines, with all digits. Line breaks become spaces."""
    values = (line.record.value for line in samples.lines if line.record.value is not None)
    kept = [value.decode().replace("\r", " ").replace("\n", " ") for value in values][:_MOST_SAMPLES]
    return "".join(f"{value}\n" for value in kept)


def _project(name: str) -> str:
    project = name.replace("_", "-")
    return filled("pyproject.toml", name, project=project, distribution=DISTRIBUTION)


def _readme(name: str, made: Made, samples: Sequence[Sampled]) -> str:
    files = sample_files([one.topic for one in samples])
    tried = " ".join(
        f"tests/{file}" if len(files) == 1 else f"{topic}=tests/{file}" for topic, file in files.items()
    )
    sent = "\n".join(
        f"    lakehouse produce file tests/{file} --topic {topic}" for topic, file in files.items()
    )
    about, table = made.about.in_markdown, next(iter(made.suites))
    return filled("README.md", name, about=about, tried=tried, sent=sent, table=table)
