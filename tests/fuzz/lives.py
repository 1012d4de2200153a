"""The life of a lake: rounds of hostile records, Delta commands between them, and rows lost at its end.

    an era        event times that are all accepted: the last century but one, the hundred years until now,
                  the next hundred; each begins with the record that moves its table's front there
    a round       records of every stream through all layers, compared with the oracles
    chores        OPTIMIZE, VACUUM, maintenance, a DELETE that is taken back: nothing may come of them
    damage        rows of gold or silver that a user has changed: the audit names them, a rebuild mends them
    the end       rows of bronze, of silver and letters are gone: the audit names them, and after a rebuild
                  those of bronze alone

What was done stands in `history`, and is part of what a failure says.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from random import Random
from typing import Self, TypeVar

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakehouse.audit import Report, audit
from lakehouse.errors import TableError
from lakehouse.kafka.topics import create_topics
from lakehouse.layers.step import LAYERS
from lakehouse.maintenance.fold_state import clear_state
from lakehouse.maintenance.upkeep import Keeper, tasks
from lakehouse.repair.rebuild_gold import WindowSpan, rebuild_gold
from lakehouse.repair.rebuild_silver import Landed, rebuild_silver
from lakehouse.runtime.runner import RunOptions, run, utc_now
from lakehouse.runtime.triggers import AVAILABLE_NOW
from lakehouse.settings import Settings
from lakehouse.stream import Stream
from lakehouse.streams import load
from lakehouse.tables import Lake
from tests import pipeline
from tests.chaos.checks import Verdicts, differences, gold_differences
from tests.fuzz import commands, expected
from tests.fuzz.commands import GOLD, LANDED, SOURCES
from tests.fuzz.expected import Finding
from tests.fuzz.names import NAMES, composed
from tests.fuzz.records import PARTITIONS, Shape, Times, make
from tests.oracles.judging import Judged
from tests.pipeline import Coordinates, Row, coordinates_of, micros, rows_of
from tests.verdicts import judge_batches

_T = TypeVar("_T")
CENTURY_S = 36_525 * 24 * 3600
_CENTURY_US, _HOUR_US, _DAY_US = CENTURY_S * 1_000_000, 3_600_000_000, 86_400_000_000
_FIRST_US = micros(pipeline.utc("1900-01-01T00:00:00"))
_FAR_MORE = 1_000_000  # findings than an audit ever has

CHANGED = {
    "gold.metrics_1m": "count",
    "gold.metrics_summary_10m": "count",
    "gold.call_records": "metrics_events",
    "gold.product_sales": "count",
    "gold.sales_notifications": "crossing",
    "gold.user_transactions_5m": "count",
}
"""A column of every gold table that a user changes."""


def eras(now_us: int) -> tuple[Times, ...]:
    """Return times in the order in which they may come, with a lateness and a tolerance of a century."""
    ends = (micros(pipeline.utc("1999-12-31T23:59:59")), now_us - _HOUR_US, now_us + _CENTURY_US - _DAY_US)
    return tuple(Times(max(_FIRST_US, end - _CENTURY_US), end, now_us) for end in ends)


class Life(AbstractContextManager["Life"]):
    """One lake, filled and maltreated; a failure inside its block says what was done before.

    `settings` are those of a lake of its own, with a lateness and a tolerance of a century.
    """

    def __init__(self, spark: SparkSession, settings: Settings, random: Random) -> None:
        self.history: list[str] = []
        self.sent: Counter[str] = Counter()
        self._spark = spark
        self._settings = settings
        self._streams = load(settings)
        self._lake = Lake(spark, settings.lake)
        self._random = random
        self._rounds: list[int] = []
        self._verdicts: Verdicts = {}
        self._vacuumed: Counter[str] = Counter()
        topics = {settings.topic(source.topic): PARTITIONS for source in SOURCES.values()}
        create_topics(settings.kafka, topics)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, failure: BaseException | None, trace: object) -> None:
        if failure is not None:
            failure.add_note("\n".join(("what was done:", *self.history)))

    def live(self, until: float, *, count: int = 24) -> None:
        """Go through all eras, or through what there is time for before the monotonic clock says so."""
        for number, times in enumerate(eras(micros(utc_now()))):
            for again in range(self._random.randint(1, 3)):
                if self._rounds and time.monotonic() > until:
                    break
                names = self._random.sample(NAMES, 24) + [composed(self._random) for _ in range(8)]
                late = [times.first_us - _DAY_US, _FIRST_US] if number and again else []
                shape = Shape(names, times, count, late_us=late, beyond_totals=True, payload_bytes=300_000)
                self.round(shape)
                self._disturb()
        self.lose()

    def accepted(self) -> dict[str, int]:
        """Return how many records of each table are clean by the oracle."""
        return {
            table: sum(not one.reasons for one in verdicts.values())
            for table, verdicts in self._verdicts.items()
        }

    # A round.

    def round(self, shape: Shape, *, at_once: bool = False) -> None:
        """Send records of every stream, let all layers catch up, and compare everything with the oracles.

        `at_once`: in one micro-batch of each layer, for records whose lateness depends on how they are cut.
        """
        self._note(f"send {shape.count} records of every topic, the last at {shape.times.last_us}")
        self._ingest(shape, at_once=at_once)
        self.compare()

    def compare(self) -> None:
        """Compare everything with the oracles."""
        self._note("compare")
        _, found = differences(self._settings, self._verdicts, now_us=micros(utc_now()))
        assert not found, "\n".join(text[:600] for text in found)

    def _ingest(self, shape: Shape, *, at_once: bool) -> None:
        for table, source in SOURCES.items():
            records = make(table, self._random, shape)
            pipeline.send(self._settings, records, source)
            self.sent[table] += len(records)
        cuts: dict[str, object] = {
            "max_records_per_batch": self._random.choice((shape.count // 2, 10**6, 10**6)),
            "max_bytes_per_batch": self._random.choice(("1", "256m", "256m")),
        }
        self._catch_up(**({} if at_once else cuts))
        self._rounds.append(micros(utc_now()))
        self._verdicts = {table: self._judged(table) for table in SOURCES}

    def _catch_up(self, **batches: object) -> None:
        """Let every layer catch up, in micro-batches of so many records and bytes."""
        self._note(f"run all {batches or ''}")
        settings = self._settings.model_copy(update=batches)
        run(self._lake, self._streams, LAYERS, settings, RunOptions(AVAILABLE_NOW, at_once=2))

    def _judged(self, table: str) -> Mapping[Coordinates, Judged]:
        """Return the verdicts on a topic's records, which no cut of a round into micro-batches changes."""
        rows = sorted(rows_of(self._settings, f"bronze.{table}"), key=lambda row: row["ingested_at"])
        rounds: list[list[Row]] = [[] for _ in self._rounds]
        for row in rows:
            rounds[sum(end < row["ingested_at"] for end in self._rounds)].append(row)
        return judge_batches(rounds, self._settings, SOURCES[table])

    # What a user does between rounds.

    def _disturb(self) -> None:
        for _ in range(self._random.randint(1, 3)):
            chores = (self._optimize, self._vacuum, self._maintain, self._keep_up, self._take_back)
            self._random.choice(chores)()
        if self._random.random() < 0.2:
            self._take_back(LANDED)
            self._catch_up()  # the layer above may read the rows once more
            self._rebuild(silver=True)
        else:
            self._damage()
        self._catch_up()
        self.audit_finds(set())
        self.compare()

    def _damage(self) -> None:
        """Change rows by hand, have the audit find them, and rebuild what they are in."""
        damages: Sequence[Callable[[], set[Finding]]] = (self._damage_gold, self._damage_gold, self._move)
        damage = self._random.choice(damages)
        findings = damage()
        self.audit_finds(findings)
        if self._random.random() < 0.3:
            self._catch_up()  # what was changed by hand leaves, too
            self.audit_finds(findings)
        self._rebuild(silver=damage == self._move or self._random.random() < 0.2)

    def _optimize(self) -> None:
        for table in self._some((*LANDED, "silver.dead_letters", *GOLD)):
            self._note(f"OPTIMIZE {table}")
            commands.optimize(self._spark, self._settings, table)

    def _vacuum(self) -> None:
        """VACUUM, in bronze and silver as if what has been read by all were a week old by now.

        Not in gold, whose changes of the last day Redis may be filled with.
        """
        for table in self._some((*LANDED, *GOLD)):
            self._note(f"VACUUM {table}")
            commands.vacuum(self._spark, self._settings, table, everything=table in LANDED)
            self._vacuumed[table] = pipeline.version_of(self._settings, table)

    def _maintain(self) -> None:
        cleared = clear_state(self._lake, self._streams)
        self._note(f"maintain: {sum(one.rows for one in cleared)} rows cleared")

    def _keep_up(self) -> None:
        for task in self._some(tasks(self._streams, self._settings)):
            kept = Keeper(self._lake, self._settings).keep(task, utc_now())
            self._note(f"upkeep of {kept or task.spec.qualified_name}")

    def _take_back(self, names: Sequence[str] = tuple(GOLD)) -> None:
        """DELETE some rows, or all, and RESTORE the table as it was before."""
        for table in self._some(names):
            version = pipeline.version_of(self._settings, table)
            rows = None if self._random.random() < 0.5 else self._rows(table, 5)
            self._note(f"DELETE {'all rows' if rows is None else len(rows)} of {table}, RESTORE to {version}")
            commands.delete(self._spark, self._settings, table, rows)
            commands.restore(self._spark, self._settings, table, version)

    def _damage_gold(self) -> set[Finding]:
        findings: set[Finding] = set()
        for table in self._some(tuple(GOLD)):
            damage = self._random.choice((self._update, self._delete, self._invent, self._restore))
            keys = damage(table)
            self._note(f"{damage.__name__[1:]} {table}: {len(keys)} rows")
            findings |= expected.of_gold(table, keys)
        return findings

    def _update(self, table: str) -> set[commands.Key]:
        rows, column = self._rows(table, 3), CHANGED[table]
        commands.update(self._spark, self._settings, table, rows, {column: F.col(column) + 7})
        return {commands.key_of(table, row) for row in rows}

    def _delete(self, table: str) -> set[commands.Key]:
        rows = self._rows(table, 5)
        commands.delete(self._spark, self._settings, table, rows)
        return {commands.key_of(table, row) for row in rows}

    def _invent(self, table: str) -> set[commands.Key]:
        name, nobody = commands.keys_of(table)[0], f"nobody:{{{self._random.random()}}}-\0"
        keys: set[commands.Key] = set()
        for row in self._rows(table, 1):
            commands.insert_like(self._spark, self._settings, table, row, {name: F.lit(nobody)})
            keys.add(commands.key_of(table, {**row, name: nobody}))
        return keys

    def _restore(self, table: str) -> set[commands.Key]:
        version = self._random.randint(1, max(1, pipeline.version_of(self._settings, table) - 1))
        self._note(f"RESTORE {table} to {version}")
        return commands.restore(self._spark, self._settings, table, version)

    def _move(self) -> set[Finding]:
        """UPDATE the name in a row of silver, by which it belongs to another row of gold."""
        table = self._random.choice(tuple(SOURCES))
        contract, moved = SOURCES[table].contract.fields[0].column, "moved by hand"
        changed = {name: dict(of_table) for name, of_table in self._verdicts.items()}
        rows = self._rows(f"silver.{table}", 2)
        commands.update(self._spark, self._settings, f"silver.{table}", rows, {contract: F.lit(moved)})
        for row in rows:
            verdict = changed[table][coordinates_of(row)]
            columns = {**verdict.columns, contract: moved}
            changed[table][coordinates_of(row)] = replace(verdict, columns=columns)
        self._note(f"UPDATE silver.{table}: {len(rows)} rows")
        return expected.differing(self._gold(self._verdicts), self._gold(changed))

    # The end.

    def lose(self) -> None:
        """Delete rows of bronze, of silver and letters, and rebuild: what bronze has lost alone is gone."""
        landed = {table: rows_of(self._settings, f"bronze.{table}") for table in SOURCES}
        restored = self._random.choice(tuple(SOURCES))
        silver = {table: self._lose_silver(table, by_restore=table == restored) for table in SOURCES}
        letters = self._lose_letters()
        bronze: dict[str, set[Coordinates]] = {}
        findings: set[Finding] = set()
        for table in SOURCES:
            lost = silver[table] | letters[table]
            rows = [row for row in self._rows(f"bronze.{table}", 3) if coordinates_of(row) not in lost]
            commands.delete(self._spark, self._settings, f"bronze.{table}", rows)
            bronze[table] = set(map(coordinates_of, rows))
            counts = (len(gone[table]) for gone in (bronze, silver, letters))
            self._note("{}: lost {} rows of bronze, {} of silver, {} letters".format(table, *counts))
            findings |= expected.of_bronze(table, bronze[table]) | expected.of_silver(table, lost)
        left = {table: self._standing(table) for table in SOURCES}
        self.audit_finds(findings | expected.differing(self._gold(self._verdicts), self._gold(left)))
        allow_late = self._random.random() < 0.5
        after: dict[str, Mapping[Coordinates, Judged]] = {}
        for table, rows in landed.items():
            there = [row for row in rows if coordinates_of(row) not in bronze[table]]
            lost = silver[table] | letters[table]
            after[table] = self._rejudged(table, there, lost, allow_late=allow_late)
        self._rebuild(silver=True, allow_late=allow_late)
        self._catch_up()
        self.audit_finds({one for table in SOURCES for one in expected.of_bronze(table, bronze[table])})
        found = list(gold_differences(self._settings, after, now_us=micros(utc_now())))
        assert not found, "\n".join(text[:600] for text in found)

    def _standing(self, table: str) -> Mapping[Coordinates, Judged]:
        """Return the clean records that are in silver, by the name that they have there by now."""
        name = SOURCES[table].contract.fields[0].column
        rows = {coordinates_of(row): row[name] for row in rows_of(self._settings, f"silver.{table}")}
        return {
            at: replace(one, columns={**one.columns, name: rows[at]})
            for at, one in self._verdicts[table].items()
            if at in rows
        }

    def _lose_silver(self, table: str, *, by_restore: bool) -> set[Coordinates]:
        """Take rows out of silver and return their records."""
        name = f"silver.{table}"
        before = {coordinates_of(row) for row in rows_of(self._settings, name)}
        first, last = self._vacuumed[name] + 1, pipeline.version_of(self._settings, name) - 1
        if by_restore and first <= last:
            version = self._random.randint(first, last)
            self._note(f"RESTORE {name} to {version}")
            commands.restore(self._spark, self._settings, name, version)
        else:
            commands.delete(self._spark, self._settings, name, self._rows(name, 3))
        return before - {coordinates_of(row) for row in rows_of(self._settings, name)}

    def _lose_letters(self) -> dict[str, set[Coordinates]]:
        """Delete some dead letters and return their records by table."""
        rows = self._rows(pipeline.DEAD_LETTERS, 4)
        commands.delete(self._spark, self._settings, pipeline.DEAD_LETTERS, rows)
        return {
            table: {coordinates_of(row) for row in rows if row["job"] == f"silver.{table}"}
            for table in SOURCES
        }

    def _rejudged(
        self, table: str, landed: Sequence[Row], lost: Collection[Coordinates], *, allow_late: bool
    ) -> Mapping[Coordinates, Judged]:
        """Return the verdicts after a rebuild of silver, which finds `landed` in bronze and has lost some.

        What has been lost is late where it lies before the watermark that is left, unless that is allowed.
        """
        before = self._verdicts[table]
        clean = [one.event_time_us for at, one in before.items() if not one.reasons and at not in lost]
        watermark_us = max(clean, default=_FIRST_US + _CENTURY_US) - _CENTURY_US  # nothing is late in no rows
        late = Judged(frozenset({("late", "event_time")}))
        after = dict(before)
        for at, one in judge_batches([landed], self._settings, SOURCES[table]).items():
            if allow_late:
                after[at] = one
            elif at in lost:
                after[at] = late if not one.reasons and one.event_time_us < watermark_us else one
        return after

    # What all of it needs.

    def audit_finds(self, wanted: set[Finding]) -> None:
        """Audit the lake: these rows are found, and no others."""
        report = self._audit()
        found = expected.findings(report)
        missing, others = wanted - found, found - wanted
        self._note(f"audit: {len(found)} findings")
        said = "\n".join(expected.what_is_said(report, others))
        assert not missing | others, (
            f"not found: {[str(one)[:300] for one in list(missing)[:10]]}\n"
            f"found beside: {[str(one)[:300] for one in list(others)[:10]]}\n{said}"
        )

    def _audit(self) -> Report:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("lakehouse.audit._PAUSE_S", 0.0)  # nothing is on its way here
            patch.setattr("lakehouse.audit.report.EXAMPLES", _FAR_MORE)
            return audit(self._lake, self._streams, self._settings, utc_now())

    def _rebuild(self, *, silver: bool, allow_late: bool = False) -> None:
        """Rebuild gold, after silver where that is asked for, as the command does."""
        self._note(f"rebuild {f'silver, allow late: {allow_late}' if silver else 'gold'}")
        if silver:
            for stream in self._streams:
                rebuild_silver(self._lake, stream, Landed(), utc_now(), allow_late=allow_late)
            self._catch_up()
        for stream in self._streams:
            self._rebuild_gold(stream)

    def _rebuild_gold(self, stream: Stream) -> None:
        for table in stream.gold:
            try:
                rebuild_gold(self._lake, table, WindowSpan())
            except TableError as refusal:
                if "--force" not in str(refusal):
                    raise
                self._note(f"rebuild gold.{table.name} --force")
                rebuild_gold(self._lake, table, WindowSpan(), force=True)

    def _gold(self, verdicts: Verdicts) -> expected.Gold:
        return expected.gold_of(verdicts, self._settings)

    def _rows(self, table: str, most: int) -> list[Row]:
        """Return some rows of a table, at most so many; of silver not the one that moved its front."""
        rows = rows_of(self._settings, table)
        if table.startswith("silver.") and table != pipeline.DEAD_LETTERS:
            front = max(row["event_time"] for row in rows)
            rows = [row for row in rows if row["event_time"] < front]
        return self._random.sample(rows, min(len(rows), self._random.randint(1, most)))

    def _some(self, ones: Sequence[_T]) -> list[_T]:
        return self._random.sample(ones, self._random.randint(1, 3))

    def _note(self, what: str) -> None:
        self.history.append(f"{utc_now():%H:%M:%S} {what}")
