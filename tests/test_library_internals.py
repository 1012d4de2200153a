"""Undocumented members of libraries: all exist, and no other module uses them. Also, the pinned versions.

After an upgrade, this file says what is missing, which may be why everything else fails.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from great_expectations.expectations.registry import _registered_metrics

from lakehouse.storage.spark.members import CLASS, NEW, Member
from tests.support.library_members import LIBRARIES, Library

ROOT = Path(__file__).parents[1]
SPARKS = {"delta-spark", "deltalake", "pyspark"}  # tests/storage/tables/test_versions.py
OTHERS_TOO = {
    *(
        "TABLE",
        "alias",
        "client",
        "isolation_level",
        "last_offset",
        "loop",
        "max_bytes",
        "partition",
        "partitions",
    ),
    *("path", "query_params", "records", "run", "run_id", "send", "spark", "topic", "topics", NEW, CLASS),
}
"""Names of members that our own objects or documented ones also have."""


def all_of(library: Library) -> list[Member]:
    return list(chain.from_iterable(library.members.values()))


def missing(listed: Iterable[Member]) -> list[str]:
    """Return what the libraries lack, as `owner.signature`, or just the owner if that is missing."""
    found = []
    for member in listed:
        owner = named(member.owner)
        if owner is None:
            found.append(member.owner)
        elif not has(owner, member.signature):
            found.append(f"{member.owner}.{member.signature}")
    return list(dict.fromkeys(found))


def named(path: str) -> Any:
    """Return the module, class or nested class of this name, or None if there is none."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: Any = import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            found = getattr(found, part, None)
        return found
    return None


def has(owner: Any, signature: str) -> bool:
    name, is_called, parameters = signature.rstrip(")").partition("(")
    if name == CLASS:
        return True
    if not is_called:
        return hasattr(owner, name) or name in set(of_instances(owner))
    member = owner if name == NEW else getattr(owner, name, None)
    if not callable(member):
        return False
    taken = [one for one in inspect.signature(member).parameters if one != "self"]
    return taken == [one for one in parameters.split(",") if one]


def of_instances(owner: Any) -> Iterator[str]:
    """Yield the attributes that a class declares or its methods set."""
    for kind in owner.__mro__[:-1] if inspect.isclass(owner) else ():
        yield from inspect.get_annotations(kind)
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
        except (OSError, TypeError):  # not written in Python
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                yield node.attr


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda one: one.distribution)
def test_every_listed_member_is_there(library: Library) -> None:
    assert missing(all_of(library)) == []


@pytest.mark.parametrize(
    ("member", "said"),
    [
        (Member("kafka.record.packed_records.Batch", "last_offset"), "kafka.record.packed_records.Batch"),
        (
            Member("kafka.protocol.consumer.FetchRequest.FetchTopics", "topic"),
            "kafka.protocol.consumer.FetchRequest.FetchTopics",
        ),
        (Member("redis.connection", "parse_address(url)"), "redis.connection.parse_address(url)"),
        (Member("redis.connection", "parse_url(url,options)"), "redis.connection.parse_url(url,options)"),
        (Member("uvicorn.server.Server", "new()"), "uvicorn.server.Server.new()"),
        (
            Member("uvicorn.protocols.http.h11_impl.H11Protocol", "connection"),
            "uvicorn.protocols.http.h11_impl.H11Protocol.connection",
        ),
    ],
)
def test_an_owner_a_name_a_parameter_a_constructor_or_an_attribute_that_is_gone_is_named(
    member: Member, said: str
) -> None:
    assert missing([member]) == [said]


def test_metrics_of_great_expectations_are_known_by_these_names() -> None:
    assert {"table.row_count", "unexpected_rows_query.row_count"} <= _registered_metrics.keys()


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda one: one.distribution)
def test_only_its_home_touches_what_a_library_does_not_document(library: Library) -> None:
    listed = {name for one in all_of(library) for name in (one.owner, f"{one.owner}.{name_of(one)}")}
    private = {name_of(one) for one in all_of(library)} - OTHERS_TOO
    touched, imported = set(), set()
    for file, names, attributes_here in sources():
        undocumented = {name for name in names if is_of(name, library) and not is_documented(name, library)}
        if file == library.home:
            imported = undocumented
        else:
            touched |= {(file, name) for name in undocumented | (attributes_here & private)}

    assert touched == set()
    assert imported - listed == set()


def name_of(member: Member) -> str:
    return member.signature.partition("(")[0]


def is_of(name: str, library: Library) -> bool:
    return name.partition(".")[0] == library.package


def is_documented(name: str, library: Library) -> bool:
    return name in library.documented or name.rpartition(".")[0] in library.documented


@cache
def sources() -> list[tuple[str, set[str], set[str]]]:
    """Return the files, each with its imports and the attributes it names."""
    paths = chain.from_iterable(
        (ROOT / directory).rglob("*.py") for directory in ("lakehouse", "expectations", "jobs", "benchmarks")
    )
    found = []
    for path in paths:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found.append((path.relative_to(ROOT).as_posix(), set(imports(tree)), set(attributes(tree))))
    return found


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (f"{node.module}.{one.name}" for one in node.names)


def attributes(tree: ast.AST) -> Iterator[str]:
    return (node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute))


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda one: one.distribution)
def test_the_wheel_asks_for_exactly_the_locked_version(library: Library) -> None:
    version = dict(chain.from_iterable(pinned(one).items() for one in asked()))[library.distribution]
    for lock in ("runtime.in", "runtime.txt", "dev.txt"):
        text = (ROOT / "requirements" / lock).read_text(encoding="utf-8")
        assert re.findall(rf"^{library.distribution}(?:\[.*\])?==([^ ;\n]+)", text, re.MULTILINE) == [version]


def test_the_wheel_pins_nothing_else() -> None:
    private = {one.distribution for one in LIBRARIES}
    assert {name for one in asked() for name in pinned(one)} == SPARKS | private


def asked() -> list[str]:
    """Return the wheel's requirements, including its extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]


def pinned(requirement: str) -> dict[str, str]:
    """Return a requirement's version by its name, if it allows only one."""
    found = re.fullmatch(r"([\w-]+)(?:\[.*\])?==([\w.]+)", requirement)
    return {} if found is None else {found[1]: found[2]}
