"""What must hold of a lake at rest, whatever was done to it; each difference is a line of text.

books    each record that was sent is a row of silver or one letter, never both, unless retention took it
gold     is the sum of silver's rows, and of those that retention has taken, in plain Python
topic    a read-committed consumer ends with gold's rows, and PostgreSQL has them
audit    finds nothing, unless another writer changed silver or gold: then it finds that
rebuild  of silver changes nothing
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from decimal import Decimal
from typing import Any
from unittest.mock import patch

import psycopg
from psycopg import sql

from lakehouse.audit import audit
from lakehouse.errors import LakehouseError
from lakehouse.repair.rebuild_silver import Landed, rebuild_silver
from tests import pipeline
from tests.pipeline import DEAD_LETTERS, Row, coordinates_of
from tests.simulation.world import StuckError, World

_WINDOW_US = {"windows": 60_000_000}
_SHOWN = 3


def differences(world: World, *, deeply: bool = True) -> list[str]:
    """Bring the lake to rest and return what is wrong; `deeply`: also what a rebuild would change."""
    with world.shared.timed("rest"):
        try:
            world.rest()
        except StuckError as error:
            return [str(error)]
    with world.shared.timed("check: plain"):
        found = [*_books(world), *_gold(world), *_topic(world), *_postgres(world)]
    with world.shared.timed("check: audit"):
        found += _audit(world)
    if deeply and not world.foreign and not found:
        with world.shared.timed("check: rebuild"):
            found += _rebuild(world)
    return found


def _books(world: World) -> Iterator[str]:
    sent = {one.place for one in world.told}
    silver = Counter(map(coordinates_of, pipeline.rows_of(world.settings, f"silver.{world.source.table}")))
    letters = Counter(map(coordinates_of, _open_or_closed(world)))
    taken = world.taken_rows.keys()
    gone = world.life.taken[world.source.table]
    ends = dict(gone[-1].gone) if gone else {}
    for place in sorted(sent | silver.keys() | letters.keys()):
        count = silver[place] + letters[place]
        is_gone = place[2] <= ends.get(place[:2], -1) or place in taken
        if count > 1 or (count == 0 and not is_gone):
            yield f"books: {place[1:]} is {silver[place]} rows of silver and {letters[place]} letters"


def _open_or_closed(world: World) -> list[Row]:
    """Return the letters; one that was replayed stands for its row of silver."""
    return [row for row in pipeline.rows_of(world.settings, DEAD_LETTERS) if row["status"] != "replayed"]


Gold = dict[tuple[Any, ...], tuple[Any, int]]
"""Totals and counts of gold's rows, by their keys."""


def expected_gold(world: World) -> Gold:
    """Return gold's totals and counts by key, of silver's rows and of those that retention has taken."""
    length_us = _WINDOW_US.get(world.form, 300_000_000)
    groups: dict[tuple[Any, ...], list[Decimal]] = defaultdict(list)
    rows = {
        coordinates_of(row): row for row in pipeline.rows_of(world.settings, f"silver.{world.source.table}")
    }
    for row in (world.taken_rows | rows).values():
        user = (row["service_id"], row["metric_name"]) if world.form == "windows" else (row["user_id"],)
        value = row["value"] if world.form == "windows" else row["amount"]
        groups[(*user, row["event_time"] // length_us * length_us)].append(Decimal(value))
    before = world.life.gold_us.get(world.stream.gold[0].name)
    return {
        key: (sum(values), len(values))
        for key, values in groups.items()
        if before is None or key[-1] + length_us >= before
    }


def found_gold(world: World) -> Gold:
    """Return the same of the table."""
    rows = pipeline.rows_of(world.settings, f"gold.{world.stream.gold[0].name}")
    if world.form == "windows":
        return {
            (row["service_id"], row["metric_name"], row["window_start"]): (Decimal(row["sum"]), row["count"])
            for row in rows
        }
    return {(row["user_id"], row["window_start"]): (row["total_amount"], row["count"]) for row in rows}


def _gold(world: World) -> Iterator[str]:
    if world.foreign:
        return
    found, wanted = found_gold(world), expected_gold(world)
    for key in sorted(found.keys() | wanted.keys()):
        if found.get(key) != wanted.get(key):
            yield f"gold: {key} is {_said(found.get(key))}, and should be {_said(wanted.get(key))}"


def _said(row: tuple[Any, ...] | None) -> str:
    return "no row" if row is None else f"{row[0]} of {row[1]}"


def _topic(world: World) -> Iterator[str]:
    """Compare the newest message of each row with it; of windows, only what is final is sent."""
    newest, found = _messages(world), found_gold(world)
    if world.form == "windows":
        name = f"gold.{world.stream.gold[0].name}"
        rows = pipeline.rows_of(world.settings, name)
        final = {
            (row["service_id"], row["metric_name"], row["window_start"]) for row in rows if row["is_final"]
        }
        for key in sorted(newest.keys() & found.keys() - final):
            yield f"final: {key} was sent as final, and is provisional"
        found = {key: row for key, row in found.items() if key in final}
    for key in sorted(newest.keys() | found.keys()):
        if newest.get(key) != found.get(key):
            yield f"topic: {key} is {_said(newest.get(key))}, and gold has {_said(found.get(key))}"


def _messages(world: World) -> Gold:
    """Return what a read-committed consumer knows at the end."""
    is_windows = world.form == "windows"
    names, value = (("serviceId", "metricName"), "sum") if is_windows else (("userId",), "totalAmount")
    topic = world.settings.topic(world.stream.gold[0].export.topic or "")
    newest: Gold = {}
    for one in pipeline.read_topic(world.settings.kafka_bootstrap_servers, topic):
        if one.value is None:
            *series, start = one.key.decode().split(":")
            newest.pop((*series, int(start) * 1000), None)
        else:
            said = json.loads(one.value, parse_float=Decimal, parse_int=Decimal)
            key = (*(said[name] for name in names), int(said["windowStart"]) * 1000)
            newest[key] = said[value], int(said["count"])
    return newest


def _postgres(world: World) -> Iterator[str]:
    name = world.stream.gold[0].name
    with psycopg.connect(world.shared.postgres, autocommit=True) as connection:
        (there,) = connection.execute("SELECT to_regclass(%s)", [f"gold.{name}"]).fetchone() or (None,)
        table = sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier("gold", name))
        (count,) = (0,) if there is None else connection.execute(table).fetchone() or (0,)
    if world.form != "windows" and count != len(found_gold(world)):
        yield f"postgres: {count} rows, and gold has {len(found_gold(world))}"


def _audit(world: World) -> Iterator[str]:
    with patch("lakehouse.audit._PAUSE_S", 0.0):  # nothing is on its way here
        report = audit(world.lake, [world.stream], world.settings, world.now)
    found = [check for check in report.checks if check.differences]
    if world.foreign:
        if not found:
            yield "audit: clean, though another writer has changed rows"
        return
    for check in found:
        for one in check.examples[:_SHOWN]:
            yield f"audit: {check.name} {check.subject}: {one.key} {one.what}"


def _rebuild(world: World) -> Iterator[str]:
    before = found_gold(world)
    try:
        done = rebuild_silver(world.lake, world.stream, Landed(), world.tick())
    except LakehouseError as error:
        yield f"rebuild: refused: {str(error)[:300]}"
        return
    changed = {
        name: count
        for name, count in vars(done).items()
        if name in {"inserted", "changed", "removed", "newly_refused", "newly_accepted"} and count
    }
    if changed:
        yield f"rebuild: silver was not what a rebuild makes it: {changed}"
        return
    try:
        world.rest()
    except StuckError as error:
        yield f"after a rebuild: {error}"
        return
    if found_gold(world) != before:
        yield "rebuild: gold is another one after a rebuild of silver that changed nothing"
