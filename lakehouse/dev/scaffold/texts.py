"""Fill in the templates for a new package's stream, suites and tests. They are stored next to this module."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from lakehouse.dev.scaffold.code import About, literal, text

Record = Mapping[str, Any]

_TEMPLATES = Path(__file__).parent / "templates"


def filled(template: str, name: str, **values: str) -> str:
    """Fill in a template. Placeholders in the values themselves are not replaced."""
    found = Template((_TEMPLATES / f"{template}.txt").read_text(encoding="utf-8"))
    return found.substitute(values, name=name, constant=name.upper())


def stream_text(name: str, kind: str, arguments: Sequence[str], about: About) -> str:
    """Return the code of a stream's module, which calls a kind with one argument per line."""
    call = "\n".join([f"{kind}(", *(f"        {line}" for line in [f"{text(name)},", *arguments]), "    )"])
    used = {node.id for node in ast.walk(ast.parse(call)) if isinstance(node, ast.Name)}
    decimals = "from decimal import Decimal\n" if "Decimal" in used else ""
    said = about.in_docstring
    about_it = f"{said[0].lower()}{said[1:]}"
    imports = ", ".join(sorted(used - {"Decimal"}))
    return filled("streams.py", name, about=about_it, decimals=decimals, imports=imports, call=call)


def suite_text(
    table: str, key: Sequence[str], required: Sequence[str], *, window_s: int | None = None
) -> str:
    """Return the code of a gold table's suite. `window_s` is the length of the table's windows, if any."""
    names, windows = "make_suite, required, unique", ""
    if window_s is not None:
        names = "make_suite, required, rows, unique"
        begins = f"unix_micros(window_start) % {window_s * 1_000_000} = 0"
        windows = (
            f'        rows(KEY, "windows are aligned", "{begins}"),\n'
            '        rows(KEY, "every window has a record", "count >= 1"),\n'
        )
    columns = ", ".join(map(text, key)) + ("," if len(key) == 1 else "")
    also = ", ".join(map(text, required))
    return filled("suite.py", table, imports=names, key=columns, required=also, windows=windows)


@dataclass(frozen=True)
class Refused:
    """A refused record: its value, and the rule or the column of each reason, whichever is known."""

    value: str | bytes
    reasons: Sequence[Mapping[str, str]]


def tests_text(
    name: str,
    records: tuple[Record, Record],
    now: str | None,
    outcome: tuple[Record, Record],
    refused: Sequence[Refused],
) -> str:
    """Return the code of tests for a stream with one topic: two records yield a row and a message.

    `now` is the time of the clock in the tests, or None for the current time.
    """
    (first, second), (row, sent) = map(literal, records), outcome
    values = {"first": first, "second": second, "row": literal(row, 8), "sent": literal(sent)}
    values |= {"now": literal(now), "samples": text("samples.jsonl")}
    dead = _refused_text(name, [one.value for one in refused], refused, "\n        now=NOW,")
    return filled("tests.py", name, refused=dead, **values)


@dataclass(frozen=True)
class Call:
    """A record from a topic, and the row that it yields, which is open at `now` and closed at `later`."""

    topic: str
    record: Record
    row: Record
    now: str | None
    later: str


def call_tests_text(
    name: str, files: Mapping[str, str], call: Call, refused: Mapping[str, Sequence[Refused]]
) -> str:
    """Return the code of tests for a stream that joins calls. `files` and `refused` are keyed by topic."""
    opened, closed = (literal({**call.row, "status": status}, 8) for status in ("open", "closed"))
    values = {"record": literal(call.record), "now": literal(call.now), "later": text(call.later)}
    records = {topic: [one.value for one in found] for topic, found in refused.items() if found}
    return filled(
        "call_tests.py",
        name,
        samples=literal(files),
        topic=text(call.topic),
        opened=opened,
        closed=closed,
        refused=_refused_text(name, records, [one for found in refused.values() for one in found]),
        **values,
    )


def _refused_text(name: str, records: Any, refused: Sequence[Refused], now: str = "") -> str:
    """Return the code of a test that these records become dead letters, or no code if there are none.

    `now` is the code that sets the test's clock.
    """
    if not refused:
        return ""
    dead = [{"record": number, **reason} for number, one in enumerate(refused) for reason in one.reasons]
    return filled("refused.py", name, records=literal(records, 8), now=now, dead=literal(dead, 8))
