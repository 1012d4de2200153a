"""What gold is by the oracles, key by key, and what an audit has found, as sets that can be compared.

A finding is a check, the table that it is about, and the key of the row concerned.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import Any

from lakehouse.audit import Report
from lakehouse.settings import Settings
from tests.chaos.checks import Verdicts
from tests.fuzz.commands import GOLD, Key, keys_of
from tests.oracles.calls import SIDES, CallEvent, call_records
from tests.oracles.json_text import EXACT
from tests.oracles.metrics import METRICS_1M, METRICS_SUMMARY_10M, Metric, windows
from tests.oracles.sales import Sale, in_order, product_sales, sales_notifications
from tests.oracles.transactions import Transaction, user_transactions_5m
from tests.pipeline import Coordinates, micros
from tests.verdicts import accepted

Finding = tuple[str, str, Key]
Gold = Mapping[str, Mapping[Key, Any]]

_TABLE = re.compile(r"(?:^|→ )(?:bronze|gold)\.(\w+)")


def findings(report: Report) -> set[Finding]:
    """Return all that an audit has found; it has to have named every difference."""
    found: set[Finding] = set()
    for check in report.checks:
        assert len(check.examples) == check.differences, (
            f"{check.name} {check.subject} does not name them all"
        )
        named = _TABLE.search(check.subject)
        table = check.subject if named is None else named[1]
        for example in check.examples:
            key = tuple(_plain(name, value) for name, value in example.key.items())
            found.add((check.name, table, key if check.name != "gold" else _in_order(table, example.key)))
    return found


def what_is_said(report: Report, wanted: Iterable[Finding]) -> list[str]:
    """Return the first findings in words."""
    texts = [
        f"{check.name} {check.subject}: {str(example.key)[:300]} {example.what[:300]}"
        for check in report.checks
        for example in check.examples
    ]
    return texts[:20] if list(wanted) else []


def _in_order(table: str, key: Mapping[str, Any]) -> Key:
    names = keys_of(f"gold.{table}")
    return (
        tuple(_plain(name, key[name]) for name in names) if key.keys() >= set(names) else tuple(key.items())
    )


def _plain(name: str, value: Any) -> Any:
    return micros(datetime.fromisoformat(value)) if name in ("window_start", "ts") else value


def of_gold(table: str, keys: Iterable[Key]) -> set[Finding]:
    """Return what an audit finds where rows of a gold table are not what silver makes them."""
    return {("gold", table.removeprefix("gold."), key) for key in keys}


def of_silver(table: str, records: Iterable[Coordinates]) -> set[Finding]:
    """Return what it finds where records are neither in silver nor dead letters."""
    return {("books", table, record) for record in records}


def of_bronze(table: str, records: Iterable[Coordinates]) -> set[Finding]:
    """Return what it finds where records are gone from bronze, and in silver or the dead letters."""
    return {(check, table, record) for check in ("landed", "books") for record in records}


def differing(one: Gold, other: Gold) -> set[Finding]:
    """Return what an audit finds where gold is as the one, and silver makes it as the other."""
    found: set[Finding] = set()
    for table in GOLD:
        name = table.removeprefix("gold.")
        keys = one[name].keys() | other[name].keys()
        found |= of_gold(
            table, (key for key in keys if not _may_stand(one[name].get(key), other[name].get(key)))
        )
    return found


def _may_stand(row: Any, made: Any) -> bool:
    """Tell whether a row may be as it is; a window may be final by the wall clock, whatever silver says."""
    if isinstance(row, tuple) and isinstance(made, tuple):
        return row[0] == made[0] and (row[1] or not made[1])
    return bool(row == made)


def gold_of(verdicts: Verdicts, settings: Settings) -> Gold:
    """Return all that an audit compares of every gold table, by the oracles, as values to compare."""
    metrics = accepted(verdicts["metrics_events"], Metric)
    sales = accepted(verdicts["sales_events"], Sale)
    calls = [
        call for side in SIDES for call in accepted(verdicts[f"call_{side}"], partial(CallEvent, side=side))
    ]
    front_us = max((one.event_time_us for one in metrics), default=0) - settings.grace_s * 1_000_000
    gold: dict[str, dict[Key, Any]] = {}
    for name, grain in (("metrics_1m", METRICS_1M), ("metrics_summary_10m", METRICS_SUMMARY_10M)):
        gold[name] = {
            key: (row, key[2] + grain.length_us <= front_us) for key, row in windows(metrics, grain).items()
        }
    states = _states(sales, settings)
    every_update = settings.sales_notify == "every_update"
    rows = {
        "call_records": call_records(
            calls, -(10**18), gap_s=settings.call_gap_s, grace_s=settings.call_grace_s
        ),
        "product_sales": [row | {"state": states[row["product"]]} for row in product_sales(sales)],
        "sales_notifications": sales_notifications(
            sales, threshold=settings.sales_threshold, every_update=every_update
        ),
        "user_transactions_5m": user_transactions_5m(accepted(verdicts["transactions"], Transaction)),
    }
    for name, of_table in rows.items():
        gold[name] = {tuple(row[key] for key in keys_of(f"gold.{name}")): row for row in of_table}
    return gold


def _states(sales: Iterable[Sale], settings: Settings) -> dict[str, dict[int, Any]]:
    """Return what product_sales keeps of each product and partition beside the total."""
    states: dict[str, dict[int, Any]] = defaultdict(dict)
    threshold = settings.sales_threshold
    for product, ordered in in_order(sales).items():
        total, crossings, count = EXACT.create_decimal(0), 0, 0
        for sale in ordered:
            if sale.value is None:
                total, count = EXACT.create_decimal(0), 0
            else:
                before, total, count = total, EXACT.add(total, sale.value), count + 1
                crossings += before < threshold <= total
            states[product][sale.partition] = (total, crossings, count, sale.offset)
    return states
