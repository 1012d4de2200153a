"""Reports on dead letters. Record contents are always escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import Row

from lakehouse.common.printable import printable
from lakehouse.common.readable import readable
from lakehouse.common.terminal import Console, echo_json, table_of
from lakehouse.engine.records.validation import SKIPPED
from lakehouse.operations.repair.replay import Discarded, Replayed
from lakehouse.operations.repair.resolve import Resolved
from lakehouse.serving.reading import shapes

VALUE_BYTES = 400
"""The maximum number of bytes that a list of dead letters reads of each raw value."""

_SHOWN_CHARACTERS = 80
_ID_CHARACTERS = 12


def listed(counts: Sequence[Row], letters: Sequence[Row]) -> dict[str, Any]:
    """Return counts and dead letters as JSON-serializable values."""
    return {"counts": [row.asDict() for row in counts], "letters": [_listed(row) for row in letters]}


def print_list(counts: Sequence[Row], letters: Sequence[Row]) -> None:
    """Print counts and dead letters as two tables. Ids are truncated only if the output is a terminal."""
    console = Console()
    if not counts:
        console.print("no dead letters")
        return
    console.print(
        table_of(["stream", "rule", "status", "letters"], [[*row[:3], f"{row[3]:,}"] for row in counts])
    )
    if letters:
        headings = ["id", "stream", "topic/partition/offset", "rules", "first seen", "attempts", "value"]
        id_characters = _ID_CHARACTERS if console.is_terminal else None
        console.print(table_of(headings, [_cells(row, id_characters) for row in letters]))


def print_shapes(newest: Sequence[Row], *, as_json: bool) -> None:
    """Print the newest 500 dead letters by the shape of their value; a note says if there are more."""
    letters = [row.asDict(recursive=True) for row in newest[: shapes.MOST_LETTERS]]
    groups = shapes.by_shape((shapes.shape_of(one["value"], one["length"]), one) for one in letters)
    is_all = len(newest) <= shapes.MOST_LETTERS
    if as_json:
        told = [shapes.as_json(one, {"id": one.newest["id"]}) for one in groups]
        echo_json({"shapes": told, "letters": len(letters), "is_all": is_all})
        return
    console = Console()
    if not groups:
        console.print("no dead letters")
        return
    rows = [
        [
            f"{one.count:,}",
            printable(one.shape),
            ", ".join(one.rules),
            ", ".join(one.topics),
            one.newest["id"][:_ID_CHARACTERS],
        ]
        for one in groups
    ]
    console.print(table_of(["letters", "shape of the value", "rules", "topics", "newest"], rows))
    if not is_all:
        _say(console, f"only the newest {len(letters):,} are grouped")


def whole(letter: Row) -> dict[str, Any]:
    """Return everything about a dead letter as JSON-serializable values."""
    columns = letter.asDict(recursive=True)
    shown = {name: _timed(value) for name, value in columns.items()}
    return shown | {
        "key": readable(letter.key),
        "value": readable(letter.value),
        "headers": [
            {"key": readable((header.key or "").encode()), "value": readable(header.value)}
            for header in letter.headers or []
        ],
        "reasons": [
            reason | {"message": readable((reason["message"] or "").encode())}
            for reason in columns["reasons"]
        ],
    }


def print_letter(letter: Row) -> None:
    """Print everything about a dead letter, with a line for each column, header and reason."""
    shown = whole(letter)
    headers, reasons = shown.pop("headers"), shown.pop("reasons")
    if (admitted := shown["admitted"]) is not None:
        shown["admitted"] = f"{admitted['at']}, after the records that landed up to {admitted['after']}"
    rows = [[name, value] for name, value in shown.items()]
    rows += [[f"header {header['key']}", header["value"]] for header in headers]
    rows += [
        [f"reason {reason['rule']}", f"{reason['column'] or 'record'}: {reason['message']}"]
        for reason in reasons
    ]
    Console().print(table_of(["", ""], rows, show_header=False))


def print_replayed(done: Replayed, console: Console) -> None:
    """Print how many dead letters a replay accepted, and what became of the others."""
    _say(console, f"{done.passed:,} passed and are now in silver")
    _say(console, f"{done.there_already:,} were already in silver")
    _say(console, f"{done.failed:,} still fail{_by_rule(done.failing)}")
    if done.gone:
        _say(console, f"{done.gone:,} no longer have a row in bronze and remain open")
    _say_left(done, console)


def tried_as_json(tried: Replayed) -> dict[str, Any]:
    """Return the result of a replay's dry run as a JSON-serializable dictionary."""
    names = {"passed": "would_pass", "failed": "would_fail"}
    found = {names.get(name, name): count for name, count in asdict(tried).items()}
    return {"asked": tried.asked, **found}


def print_tried(tried: Replayed, console: Console) -> None:
    """Print the result of a replay's dry run, with the number of failing dead letters for each rule."""
    _say(console, f"{tried.passed:,} of {tried.asked:,} would pass now")
    if tried.there_already:
        _say(console, f"{tried.there_already:,} are already in silver")
    if tried.gone:
        _say(console, f"{tried.gone:,} no longer have a row in bronze")
    _say_left(tried, console)
    if tried.failing:
        rows = [[rule, f"{count:,}"] for rule, count in tried.failing.items()]
        console.print(table_of(["would fail", "letters"], rows))


def print_discarded(done: Discarded, console: Console) -> None:
    """Print how many dead letters were discarded, and why others were not."""
    _say(console, f"{done.count:,} discarded{_by_rule(done.by_rule)}")
    if done.there_already:
        _say(console, f"{done.there_already:,} were already in silver and are now replayed")
    _say_in_flight(done.in_flight, console)


def print_resolved(done: Resolved, console: Console) -> None:
    """Print the result of `resolve`, with the reasons why some dead letters remain open."""
    _say(console, f"{done.resent:,} of {done.asked:,} are now resent")
    if done.unmatched:
        _say(console, f"{done.unmatched:,} match no silver row and remain open")
    if done.ambiguous:
        _say(
            console,
            f"{done.ambiguous:,} match several rows, or share a row with other letters, and remain open",
        )


def _say_left(done: Replayed, console: Console) -> None:
    if done.skipped:
        _say(console, f"{done.skipped:,} skipped with --skip remain open; --rule {SKIPPED} includes them")
    _say_in_flight(done.in_flight, console)


def _say_in_flight(count: int, console: Console) -> None:
    if count:
        _say(
            console,
            f"{count:,} belong to a micro-batch that silver has not finished, and remain open until it has",
        )


def _by_rule(counts: Mapping[str, int]) -> str:
    return ": " + ", ".join(f"{rule} {count:,}" for rule, count in counts.items()) if counts else ""


def _say(console: Console, message: str) -> None:
    console.print(message, soft_wrap=True)


def _cells(letter: Row, id_characters: int | None) -> list[object]:
    listed = _listed(letter)
    place = f"{listed['topic']}/{listed['partition']}/{listed['offset']}"
    rules = ", ".join(dict.fromkeys(listed["rules"]))
    shown = [listed[name] for name in ("first_seen", "attempts", "value")]
    return [listed["id"][:id_characters], listed["stream"], place, rules, *shown]


def _listed(letter: Row) -> dict[str, Any]:
    names = ("id", "stream", "status", "topic", "partition", "offset", "attempts")
    return {name: letter[name] for name in names} | {
        "rules": [reason.rule for reason in letter.reasons],
        "first_seen": _time(letter.first_seen),
        "value": readable(letter.value, _SHOWN_CHARACTERS, length=letter.length),
    }


def _timed(value: Any) -> Any:
    """Return a value in which all times, even those in structs, are text."""
    if isinstance(value, dict):
        return {name: _timed(one) for name, one in value.items()}
    return _time(value) if isinstance(value, datetime) else value


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
