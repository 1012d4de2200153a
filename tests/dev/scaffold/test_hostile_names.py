"""What `lakehouse new stream` writes from samples with arbitrary names: declarations, and nothing else."""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
import tomllib
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from lakehouse.common.record_lines import Line, Record
from lakehouse.dev.scaffold import Kind
from lakehouse.dev.scaffold.package import files_of
from lakehouse.dev.scaffold.parts import Wanted
from lakehouse.dev.scaffold.reading import Samples, samples_of
from lakehouse.dev.scaffold.streams import KINDS
from lakehouse.dev.scaffold.toml import table_text
from lakehouse.settings import Settings
from lakehouse.sinks.registry import require_fit
from lakehouse.streams.checks import check_names
from lakehouse.streams.definition import Stream

COMMENT = re.compile(r'# (guess: .*|(unique_by|sequence_by)=".*",)')
RUN = 'raise SystemExit("it has run")'
PIECES = [
    *('"""', "'''", '"', "'", "\\", "\n", "\r", "\r\n", "\t", "\x00", "\x0b", "\x0c", "\x1c", "\x85"),
    *("\u2028", "\u2029", "\u202e", "\u2066", "\u200b", "\ufeff", "\xa0", "é", "日本", "🦆", "\ud800", " "),
    *("{}", "{0}", "{0.__class__}", "{", "}", "%s", "$(id)", "`id`", "```", "#", "--", "[x]", "[[project]]"),
    *("class", "None", "__import__", "__class__", "amount", "card", "at", "total", "count", "value", "topic"),
    *(
        "<script>",
        "](javascript:x)",
        "<!--",
        "&lt;",
        "*",
        "_",
        "|",
        "!",
        f"\n{RUN}\n#",
        f'"""\n{RUN}\n"""',
        ";",
    ),
    *(".", "?", f'"\n{RUN}', f"\r{RUN}", f"\u2028{RUN}", "total_amount", "view_events", "A" * 70),
]
pieces = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), min_size=1, max_size=4)
names = pieces.map("".join).filter(bool)
sayable = names.filter(lambda name: "\ud800" not in name)
values = st.one_of(st.integers(), names, st.booleans(), st.lists(names, max_size=2), st.none())
others = st.dictionaries(names, st.one_of(values, st.dictionaries(names, values, max_size=3)), max_size=6)
instants = st.sampled_from([1_774_746_300, 1_774_746_300_000, "2026-03-29T01:05:00", "no time", None])

IMPORTS = {
    "dataclasses": {"replace"},
    "decimal": {"Decimal"},
    "pathlib": {"Path"},
    "great_expectations": {"ExpectationSuite"},
    "lakehouse.streams": {
        *("windowed_sums", "windowed_statistics", "running_totals", "joined_calls", "sql"),
        *("Records", "Side", "Windows", "Aggregates", "Field", "FieldType"),
    },
    "lakehouse.streams.suites": {"make_suite", "required", "rows", "unique"},
    "shop.streams": {"SHOP"},
}
CALLED = {"replace", "Decimal", *IMPORTS["lakehouse.streams"]} - {"FieldType"}
DECLARING = (
    *(
        ast.Module,
        ast.Expr,
        ast.Constant,
        ast.ImportFrom,
        ast.alias,
        ast.Assign,
        ast.Name,
        ast.Load,
        ast.Store,
    ),
    *(ast.Call, ast.keyword, ast.Tuple, ast.Dict, ast.Attribute),
)


def sampled(*records: Mapping[str, Any] | bytes, file: str = "s.jsonl") -> Samples:
    values = (one if isinstance(one, bytes) else json.dumps(one).encode() for one in records)
    return samples_of([Line(Record(value), file, number) for number, value in enumerate(values, 1)])


def written(kind: Kind, samples: Mapping[str, Samples], **chosen: Any) -> dict[str, str]:
    return files_of("shop", KINDS[kind](Wanted("shop", samples, **chosen)), samples)


def path_of(*way: str) -> str:
    return ".".join(name.replace("\\", "\\\\").replace(".", "\\.") for name in way)


def is_sayable(way: tuple[str, ...]) -> bool:
    """Return whether UTF-8 can encode the names, and Spark paths can contain those within objects."""
    hard = any(set(".[") & set(one) and ("?" in one or {"'", '"'} <= set(one)) for one in way[1:])
    return not hard and all(way) and "\ud800" not in "".join(way)


def paths(record: Mapping[str, Any]) -> set[str]:
    """Return a record's fields that are not null, as a stream names them."""
    found: list[tuple[str, ...]] = []
    for name, value in record.items():
        if isinstance(value, dict) and value:
            found += [(name, inner) for inner, one in value.items() if one is not None]
        elif value is not None:
            found.append((name,))
    return {path_of(*way) for way in found if is_sayable(way)}


def check(files: Mapping[str, str]) -> Stream:
    """Check every file, and return the stream that the package declares."""
    for path, text in files.items():
        if path.endswith(".jsonl"):
            continue
        assert text.replace("\n", "").isprintable(), path
        if path.endswith(".py") and text:
            check_python(text)
    assert tomllib.loads(files["pyproject.toml"])["project"]["entry-points"] == {
        "lakehouse.streams": {"shop": "shop.streams:SHOP"}
    }
    kinds = {token.type for token in MarkdownIt().parse(files["README.md"])}
    assert kinds == {
        *("heading_open", "heading_close", "inline", "paragraph_open", "paragraph_close", "code_block"),
        *("bullet_list_open", "list_item_open", "list_item_close", "bullet_list_close"),
    }
    inner = [one for token in MarkdownIt().parse(files["README.md"]) for one in token.children or ()]
    assert {one.type for one in inner} == {"text", "code_inline", "softbreak"}
    return declared(files["shop/streams.py"])


def check_python(text: str) -> None:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert {one.name for one in node.names} <= IMPORTS[str(node.module)]
    for statement in tree.body:
        assert isinstance(statement, ast.Expr | ast.ImportFrom | ast.Assign | ast.FunctionDef)
        if isinstance(statement, ast.Expr):
            assert isinstance(statement.value, ast.Constant)
            assert statement is tree.body[0]
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        assert token.type != tokenize.COMMENT or COMMENT.match(token.string)


def declared(text: str) -> Stream:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        assert isinstance(node, DECLARING), ast.dump(node)
        if isinstance(node, ast.Call):
            assert isinstance(node.func, ast.Name)
            assert node.func.id in CALLED
        if isinstance(node, ast.Attribute):
            assert isinstance(node.value, ast.Name)
            assert node.value.id == "FieldType"
    docstring = ast.get_docstring(tree, clean=False)
    assert docstring is not None
    assert docstring.endswith(
        "\n\nGenerated by `lakehouse new stream` from samples; each guess has a comment.\n"
    )
    assert tree.body[0].end_lineno == 4
    space: dict[str, Any] = {}
    exec(compile(tree, "streams.py", "exec"), space)  # noqa: S102 - this is what is tested
    stream = space["SHOP"]
    assert isinstance(stream, Stream)
    check_names([stream])
    require_fit(stream, Settings())
    return stream


def declared_paths(stream: Stream) -> list[set[str]]:
    """Return each source's fields, including the event time's if it is a guess."""
    return [
        {field.name for field in source.contract.fields} | ({source.contract.event_time} - {"timestamp"})
        for source in stream.sources
    ]


@given(
    kind=st.sampled_from([kind for kind in Kind if kind is not Kind.JOINED_CALLS]),
    roles=st.lists(sayable, min_size=3, max_size=3, unique=True),
    at=instants,
    more=others,
)
@settings(max_examples=100)
@example(
    kind=Kind.WINDOWED_SUMS,
    roles=[f'amount"""\n{RUN}\n"""', f"card\n{RUN}", f"at\r{RUN}"],
    at=1_774_746_300,
    more={f'x", RUN\n{RUN}': 1, "\ud800": 1, "数": 2, "量": 3},
)
def test_names_of_fields_are_declared_as_they_are_and_never_run(
    kind: Kind, roles: list[str], at: object, more: dict[str, Any]
) -> None:
    value, key, moment = roles
    first = {**more, value: 2.5, key: "ann", moment: at}
    stream = check(
        written(
            kind,
            {"shop-events": sampled(first, {**first, value: 7})},
            by=(path_of(key),),
            value=path_of(value),
        )
    )
    (found,) = declared_paths(stream)
    assert found - {"timestamp"} == paths(first) - {"timestamp"}


@given(
    spoiler=names,
    file=names,
    bad=st.lists(names.map(lambda name: name.encode(errors="surrogatepass")) | st.binary(max_size=9)),
)
@settings(max_examples=60)
@example(spoiler=f'"""\n{RUN}\n"""', file=f"s\n{RUN}", bad=[f'"]\n{RUN}'.encode(), b"\xff'\n\\", b"[]"])
def test_values_and_lines_that_are_left_out_are_text_and_never_run(
    spoiler: str, file: str, bad: list[bytes]
) -> None:
    good = [{"amount": number, "size": number, "user": "ann", "at": 1_774_746_300} for number in range(1, 12)]
    samples = sampled(*good, {**good[0], "size": spoiler}, *bad, file=file)
    files = written(Kind.WINDOWED_SUMS, {"shop-events": samples}, by=("user",), value="amount")

    check(files)
    assert tomllib.loads(table_text("shop", "windowed_sums", files["shop/streams.py"])).keys() == {"streams"}
    refused = [one.line.record.value for one in samples.left_out if one.rule is not None][:10]
    spoilt = json.dumps({**good[0], "size": spoiler}).encode()
    found = [one.encode() if isinstance(one, str) else one for one in left_out(files["tests/test_shop.py"])]
    assert found == [*refused, spoilt][:10]
    kept = files["tests/samples.jsonl"].splitlines()
    assert [json.loads(line) for line in kept[: len(good)]] == good
    assert spoilt.decode() not in kept


def left_out(tests: str) -> list[str | bytes]:
    """Return the records in the test of those that are left out of the samples."""
    name = "test_a_sample_that_was_left_out_is_a_dead_letter"
    (test,) = (
        node for node in ast.parse(tests).body if isinstance(node, ast.FunctionDef) and node.name == name
    )
    (call,) = (node for node in ast.walk(test) if isinstance(node, ast.Call))
    found: list[str | bytes] = ast.literal_eval(call.args[1])
    return found


@given(roles=st.lists(sayable, min_size=4, max_size=4, unique=True), at=instants, more=others)
@settings(max_examples=60)
@example(
    roles=[f'from"""\n{RUN}', "to{}", "view_events", "view"],
    at=1_774_746_300_000,
    more={"view_events_events": 1, "数": 2, "量": 3},
)
def test_names_of_payloads_are_declared_as_they_are_and_never_run(
    roles: list[str], at: object, more: dict[str, Any]
) -> None:
    one, other, here, there = roles
    ends = {one: "ann", other: "bob"}
    flat = {name: value for name, value in more.items() if not isinstance(value, dict) and name not in roles}
    first, second = {**flat, **ends, here: {"x": at}}, {**ends, there: [at]}
    samples = {"web.clicks": sampled(first), "web-clicks": sampled(second)}
    files = written(Kind.JOINED_CALLS, samples, by=(path_of(one), path_of(other)))

    assert {"tests/web_clicks.jsonl", "tests/2_web_clicks.jsonl"} <= files.keys()
    found = declared_paths(check(files))
    flat_paths = {path_of(name) for name in (*flat, *ends, here) if is_sayable((name,))}
    absent = {path_of(name) for name, value in flat.items() if value is None}
    assert found[0] - {"timestamp"} == flat_paths - absent - {"timestamp"}
    assert found[1] - {"timestamp"} == {path_of(name) for name in (*ends, there)} - {"timestamp"}


HARD_NAMES = [f'x"""\n{RUN}', f"x\n{RUN}", 'x", ', "x\\", "x\u2028", "x{}", "量"]


@pytest.mark.parametrize("name", HARD_NAMES)
def test_names_of_proposed_ids_are_comments_that_can_be_uncommented_and_never_run(name: str) -> None:
    of_id, sequence = f"{name} id", f"{name} version"
    records = [{of_id: number, sequence: 1, "user": "ann", "amount": 2.5} for number in range(3)]

    files = written(Kind.WINDOWED_SUMS, {"shop-events": sampled(*records)})

    check(files)
    code = files["shop/streams.py"]
    table = table_text("shop", "windowed_sums", code)
    for proposal in ("unique_by", "sequence_by"):
        code, table = (text.replace(f"# {proposal}", proposal) for text in (code, table))
    (source,) = declared(code).sources
    assert (source.unique_by, source.sequence_by) == (path_of(of_id), path_of(sequence))
    keys = tomllib.loads(table)["streams"]["shop"]
    assert (keys["unique_by"], keys["sequence_by"]) == (path_of(of_id), path_of(sequence))
