"""The text of a new package's modules: the stream, a suite, the tests."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from lakehouse.scaffold.code import About, literal, text

Record = Mapping[str, Any]

_HEAD = '''\
"""{name}: what its records must be, and what becomes of them."""

from pathlib import Path

from {name}.streams import {constant}

HERE = Path(__file__).parent
SAMPLES = {samples}
{values}

def lines(name):
    return [line for line in (HERE / name).read_text(encoding="utf-8").split("\\n") if line]


'''


def stream_text(name: str, kind: str, arguments: Sequence[str], about: About) -> str:
    """Return the module of a stream: a call of a kind, an argument on each line."""
    call = "\n".join([f"{kind}(", *(f"        {line}" for line in [f"{text(name)},", *arguments]), "    )"])
    used = {node.id for node in ast.walk(ast.parse(call)) if isinstance(node, ast.Name)}
    decimals = "from decimal import Decimal\n" if "Decimal" in used else ""
    about_it = about.in_docstring
    return f'''\
"""{name}: {about_it[0].lower()}{about_it[1:]}

Made by `lakehouse new stream` from samples; each guess has a comment.
"""

from dataclasses import replace
{decimals}
from lakehouse.kinds import {", ".join(sorted(used - {"Decimal"}))}

{name.upper()} = replace(
    {call},
    suites={text(f"{name}.suites")},
)
'''


def suite_text(
    table: str, key: Sequence[str], required: Sequence[str], *, window_s: int | None = None
) -> str:
    """Return the module of a gold table's suite; `window_s` is the length of its windows, if it has any."""
    names = "make_suite, required, unique" if window_s is None else "make_suite, required, rows, unique"
    window = ""
    if window_s is not None:
        begins = f"unix_micros(window_start) % {window_s * 1_000_000} = 0"
        window = f"""\
        rows(KEY, "windows begin where they should", "{begins}"),
        rows(KEY, "every window has a record", "count >= 1"),
"""
    return f'''\
"""What gold.{table} must look like."""

from great_expectations import ExpectationSuite

from lakehouse.quality.expectations import {names}

KEY = ({", ".join(map(text, key))}{"," if len(key) == 1 else ""})


def suite() -> ExpectationSuite:
    """Return the suite of gold.{table}."""
    return make_suite(
        "gold.{table}",
        unique(KEY),
        required(KEY, (*KEY, {", ".join(map(text, required))})),
{window}    )
'''


def tests_text(name: str, records: tuple[Record, Record], table: str, row: Record, sent: Record) -> str:
    """Return the tests of a stream of one topic; two records make this row, of which this much is sent."""
    stream, (first, second) = name.upper(), records
    values = f"FIRST = {literal(first)}\nSECOND = {literal(second)}\n"
    head = _HEAD.format(name=name, constant=stream, samples=text("samples.jsonl"), values=values)
    return f"""\
{head}def test_every_sample_is_clean(case):
    case({stream}, lines(SAMPLES), dead=[])


def test_two_records_of_one_key_are_one_row(case):
    case(
        {stream},
        [FIRST],
        [SECOND],
        gold={{{text(table)}: [{literal(row, 8)}]}},
    )


def test_a_changed_row_is_sent(case):
    outcome = case({stream}, [FIRST])
    outcome.then([SECOND], sent=[{{"value": {literal(sent)}}}])


def test_what_is_no_record_is_a_dead_letter(case):
    case({stream}, ["no JSON", "[]"], dead=[{{"rule": "not_json"}}, {{"rule": "not_an_object"}}])


def test_neither_order_nor_micro_batches_show_in_gold(assert_same_gold):
    assert_same_gold({stream}, lines(SAMPLES)[:12])
"""


def call_tests_text(
    name: str,
    files: Mapping[str, str],
    record: tuple[str, Record],
    row: Record,
    clock: tuple[str | None, str],
) -> str:
    """Return the tests of calls: a record of a topic makes this row, which closes between two times."""
    stream, (topic, value), (now, later) = name.upper(), record, clock
    values = f"RECORD = {literal(value)}\n"
    head = _HEAD.format(name=name, constant=stream, samples=literal(files), values=values)
    opened, closed = (literal({**row, "status": status}, 8) for status in ("open", "closed"))
    return f"""\
{head}def test_every_sample_is_clean(case):
    case({stream}, {{topic: lines(name) for topic, name in SAMPLES.items()}}, dead=[])


def test_a_call_closes_by_the_clock_and_is_sent_then(case):
    outcome = case(
        {stream},
        {{{text(topic)}: [RECORD]}},
        now={literal(now)},
        gold=[{opened}],
        sent=[],
    )
    outcome.then(later={text(later)}, gold=[{closed}], sent=[{{}}])


def test_what_is_no_record_is_a_dead_letter(case):
    case({stream}, {{{text(topic)}: ["no JSON"]}}, dead=[{{"rule": "not_json"}}])


def test_neither_order_nor_micro_batches_show_in_gold(assert_same_gold):
    assert_same_gold({stream}, {{topic: lines(name)[:6] for topic, name in SAMPLES.items()}})
"""
