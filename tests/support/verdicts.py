"""The rows that the oracles expect in silver, the dead letters and gold, and the differences from them.

verdicts = judge_batches(rows of bronze by silver's micro-batches, settings, source)
same_silver(rows, verdicts)   same_dead_letters(rows, verdicts)
row_differences(rows of gold, user_transactions_5m(accepted(verdicts, Transaction)), keys)
window_differences(rows of gold, accepted(verdicts, Metric), settings, METRICS_1M)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from lakehouse.settings import Settings
from lakehouse.streams.definition import Source
from tests.oracles.calls import SIDES
from tests.oracles.json_text import payload_meaning
from tests.oracles.judging import CONTRACTS, Event, Judged, judge_record
from tests.oracles.metrics import METRICS_1M, PERCENTILES, Grain, Metric, Statistics, rank_error, windows
from tests.support.pipeline import SOURCE, Coordinates, Row, coordinates_of, micros
from tests.support.streams import key_of, seconds_of

# For more than k values, KLL's error is only bounded with a probability: at k = 200, the rank of a single
# quantile is within 1.33 % in 99 of 100 cases, and the ranks of both ends of a range are within 1.65 %. An
# error twice as large (more than five sigma) never occurs in practice.
RANK_ERROR_AT_200 = 0.033
RELATIVE = 1e-9
_TINY = 1e-150  # the squares of numbers near or below this lose digits to underflow

E = TypeVar("E", bound=Event)


def judge_batches(
    batches: Iterable[Iterable[Mapping[str, Any]]], settings: Settings, source: Source = SOURCE
) -> dict[Coordinates, Judged]:
    """Return the oracle's verdict on every bronze row; the rows are grouped by silver's micro-batches."""
    verdicts: dict[Coordinates, Judged] = {}
    watermark_us: int | None = None
    for batch in batches:
        verdicts |= {
            coordinates_of(row): judge_record(
                CONTRACTS[source.table],
                row["value"],
                row["raw_timestamp"] if row["timestamp"] is None else row["timestamp"] // 1000,
                row["ingested_at"],
                watermark_us,
                key=row["key"],
                future_tolerance_s=settings.stream_defaults.future_tolerance_s,
                earliest_us=micros(settings.stream_defaults.earliest_event_time),
            )
            for row in batch
        }
        times = [one.own_time_us for one in verdicts.values() if one.own_time_us is not None]
        watermark_us = max(times) - settings.stream_defaults.allowed_lateness_s * 1_000_000 if times else None
    return verdicts


def accepted(verdicts: Mapping[Coordinates, Judged], make: Callable[..., E]) -> list[E]:
    """Return the clean records of some verdicts, each converted from its columns to an event by `make`."""
    return [
        make(**one.columns, event_time_us=one.event_time_us, partition=partition, offset=offset)
        for (_, partition, offset), one in verdicts.items()
        if not one.reasons
    ]


def same_silver(rows: Iterable[Row], verdicts: Mapping[Coordinates, Judged]) -> bool:
    """Return whether silver's rows are the clean records, each once and equal in every field."""
    expected = [
        {**_meanings(one.columns), "event_time": one.event_time_us, "own_time": one.own_time_us, "at": at}
        for at, one in verdicts.items()
        if not one.reasons
    ]
    names = [name for name in expected[0] if name != "at"] if expected else []
    found = [_meanings({name: row[name] for name in names}) | {"at": coordinates_of(row)} for row in rows]
    return sorted(found, key=lambda row: row["at"]) == sorted(expected, key=lambda row: row["at"])


def same_dead_letters(rows: Iterable[Row], verdicts: Mapping[Coordinates, Judged]) -> bool:
    """Return whether the dead letters are the refused records, each once and with the right reasons."""
    found = sorted((coordinates_of(row), sorted(_rules(row["reasons"]))) for row in rows)
    return found == sorted(
        (at, sorted((rule, column or "") for rule, column in one.reasons))
        for at, one in verdicts.items()
        if one.reasons
    )


def row_differences(found: Sequence[Row], expected: Sequence[Row], keys: Sequence[str]) -> list[str]:
    """Return how the rows of a gold table differ from the oracle's, to the last digit, or an empty result.

    Only the oracle's columns are compared. Payloads are compared by their meaning.
    """
    found_by_key, expected_by_key = (
        {tuple(row[key] for key in keys): _meanings(row) for row in rows} for rows in (found, expected)
    )
    return [
        *_key_differences(len(found), found_by_key, expected_by_key),
        *(
            f"{key}: {column} is {found_by_key[key][column]!r}, not {value!r}"
            for key in expected_by_key.keys() & found_by_key.keys()
            for column, value in expected_by_key[key].items()
            if found_by_key[key][column] != value
        ),
    ]


def window_differences(
    rows: Sequence[Row], clean: Iterable[Metric], settings: Settings, grain: Grain = METRICS_1M
) -> list[str]:
    """Return how windows' rows differ from the windows of the clean records, or an empty result."""
    records = list(clean)
    expected = windows(records, grain)
    first, second = grain.columns
    found = {(row[first], row[second], row["window_start"]): row for row in rows}
    front_us = max((record.event_time_us for record in records), default=0)
    final_until_us = front_us - seconds_of(settings, "metrics", "grace") * 1_000_000
    differences = _key_differences(len(rows), found, expected)
    for key in expected.keys() & found.keys():
        row, window_end = found[key], key[2] + grain.length_us
        exact = {"window_end": window_end, "is_final": window_end <= final_until_us}
        exact["last_event_time"] = expected[key]["last_event_time_us"]
        differences += [f"{key}: {text}" for text in _window_differences(row, expected[key], exact, settings)]
    return differences


def _key_differences(rows: int, found: Mapping[Any, object], expected: Mapping[Any, object]) -> list[str]:
    return [
        *([f"{rows - len(found)} keys too many"] if rows > len(found) else []),
        *(f"{key}: no such row" for key in found.keys() - expected.keys()),
        *(f"{key}: missing" for key in expected.keys() - found.keys()),
    ]


def _meanings(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row with each payload's text replaced by its meaning."""
    return {name: payload_meaning(value) if name in SIDES else value for name, value in row.items()}


def _window_differences(
    row: Row, expected: Statistics, exact: Mapping[str, int | bool], settings: Settings
) -> Iterator[str]:
    for name, value in {
        **exact,
        "count": expected["count"],
        "min": expected["min"],
        "max": expected["max"],
    }.items():
        if row[name] != value:
            yield f"{name} is {row[name]}, not {value}"
    # The largest terms limit the precision of a sum of floats, and the largest values that of a deviation.
    values = expected["values"]
    rounding = 8 * len(values) * math.ulp(1.0)
    size, root = (
        math.fsum(map(abs, values)),
        math.sqrt(math.fsum(value * value for value in values) / len(values)),
    )
    least = 8 * len(values) * math.ulp(0.0)  # the distance between the smallest floats
    slack = {
        "sum": rounding * size + least,
        "avg": rounding * size / len(values) + least,
        "stddev": rounding * root + _TINY,
    }
    for name, absolute in slack.items():
        if not _close(row[name], expected[name], absolute):  # type: ignore[literal-required]
            yield f"{name} is {row[name]}, not {expected[name]}"  # type: ignore[literal-required]
    square = None if row["stddev"] is None else row["stddev"] ** 2
    if not _close(row["variance"], square, _TINY**2):
        yield f"variance is {row['variance']}, the square of stddev {square}"
    size = key_of(settings, "metrics", "quantile_k")
    allowed = 0.0 if len(values) <= size else RANK_ERROR_AT_200 * 200 / size
    for name, rank in PERCENTILES.items():
        if row[name] not in values or rank_error(values, rank, row[name]) > allowed:
            yield f"{name} is {row[name]}, not {expected[name]} within {allowed:.3f} of rank"  # type: ignore[literal-required]


def _close(found: float | None, expected: float | None, absolute: float) -> bool:
    if found is None or expected is None:
        return found is expected
    return math.isclose(found, expected, rel_tol=RELATIVE, abs_tol=absolute)


def _rules(reasons: Iterable[Mapping[str, str | None]]) -> list[tuple[str, str]]:
    return [(reason["rule"] or "", reason["column"] or "") for reason in reasons]
