"""Build a new package with one stream: the stream, its suites, tests and project files."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import islice

from lakehouse.common.extras import DISTRIBUTION
from lakehouse.dev.scaffold.parts import sample_files
from lakehouse.dev.scaffold.reading import Samples
from lakehouse.dev.scaffold.streams import Made
from lakehouse.dev.scaffold.texts import filled

_MOST_SAMPLES = 100


def files_of(name: str, made: Made, samples: Mapping[str, Samples]) -> dict[str, str]:
    """Return the contents of the package's files, keyed by path. `samples` is keyed by topic."""
    names = sample_files(samples)
    files = {
        "pyproject.toml": _project(name),
        "README.md": _readme(name, made, names),
        f"{name}/__init__.py": "",
        f"{name}/streams.py": made.stream,
        f"{name}/suites/__init__.py": "",
        f"{name}/suites/gold/__init__.py": "",
        **{f"{name}/suites/gold/{table}.py": code for table, code in made.suites.items()},
        f"tests/test_{name}.py": made.tests,
    }
    return files | {
        f"tests/{names[topic]}": _as_lines(one, made.left_out[topic]) for topic, one in samples.items()
    }


def _as_lines(samples: Samples, left_out: Collection[int]) -> str:
    """Return the first samples that are not left out as JSON lines. Line breaks in them become spaces."""
    values = (one.line.record.value or b"" for at, one in enumerate(samples.kept) if at not in left_out)
    kept = (value.decode().replace("\r", " ").replace("\n", " ") for value in values)
    return "".join(f"{value}\n" for value in islice(kept, _MOST_SAMPLES))


def _project(name: str) -> str:
    project = name.replace("_", "-")
    return filled("pyproject.toml", name, project=project, distribution=DISTRIBUTION)


def _readme(name: str, made: Made, files: Mapping[str, str]) -> str:
    tried = " ".join(
        f"tests/{file}" if len(files) == 1 else f"{topic}=tests/{file}" for topic, file in files.items()
    )
    sent = "\n".join(
        f"    lakehouse produce file tests/{file} --topic {topic}" for topic, file in files.items()
    )
    about, table = made.about.in_markdown, next(iter(made.suites))
    changes = "\n".join(f"- {change}" for change in made.changes)
    return filled("README.md", name, about=about, tried=tried, sent=sent, table=table, changes=changes)
