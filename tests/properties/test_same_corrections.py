"""Repeated, corrected and deleted records: gold is that of the records that remain in the end.

Records of many cases land in the same commits of bronze, and silver takes them together. The oracle goes
through them one by one, in plain Python.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakehouse.engine.layers import gold, silver
from lakehouse.engine.layers.step import Permitted
from lakehouse.operations.audit.gold import check_gold
from lakehouse.operations.audit.records import check_records
from lakehouse.operations.repair.rebuild_silver import Landed, rebuild_silver
from lakehouse.settings import Settings
from lakehouse.storage.tables import Lake
from lakehouse.streams.definition import Stream
from lakehouse.streams.kinds import Records, running_totals, windowed_sums
from lakehouse.testing.folding import Folding
from lakehouse.testing.kills import take_next
from tests.oracles.judging import Contract, Field, Kind
from tests.oracles.records import Lateness, Place, Record, outcomes
from tests.oracles.records import Settings as OfSource
from tests.properties.copies import generated
from tests.properties.jar import EACH_SHARE
from tests.support import pipeline
from tests.support.chance import chance
from tests.support.pipeline import DEAD_LETTERS, Raw

pytestmark = [pytest.mark.cases, pytest.mark.soak, EACH_SHARE]

LANDED = pipeline.utc("2026-03-29T12:00:00")
START_MS = int(pipeline.utc("2025-03-28T22:55:00").timestamp() * 1000)
COMMITS = 5
OPEN = {"conflicting_id", "nothing_to_delete"}


@dataclass(frozen=True)
class Paid:
    """A payment as written; without an amount, it deletes the id."""

    id: str
    version: int
    user: str
    amount: int | None
    at_ms: int
    partition: int


@dataclass(frozen=True)
class Sent:
    """A payment that has landed, and what it says; None: it deletes the id."""

    record: Record
    says: dict[str, Any] | None

    @property
    def place(self) -> Place:
        return self.record.place


_AT = st.sampled_from([0, 1, 299_999, 300_000, 86_400_000, 31_000_000_000])
_PAID = st.builds(
    Paid,
    st.sampled_from("xyz"),
    st.integers(1, 4),
    st.sampled_from("ab"),
    st.sampled_from([1, 2, 1000, None]),
    _AT,
    st.sampled_from([0, 1]),
)
CASES = st.lists(_PAID, min_size=2, max_size=10)
SUMS = windowed_sums(
    "payments",
    Records("payments", unique_by="id", sequence_by="version"),
    by="user",
    value="amount",
    length="5m",
    gold_table="sums",
)
TOTALS = running_totals(
    "payments",
    Records("payments", unique_by="id", sequence_by="version"),
    by="user",
    value="amount",
    threshold=Decimal(1000),
    gold_table="totals",
    notifications="told",
)


def cases(*, deletes: bool) -> list[list[Paid]]:
    found = generated(CASES, 60)
    if deletes:
        return found
    return [[replace(one, amount=one.amount or 7) for one in case] for case in found]


def commits_of(cases: Sequence[Sequence[Paid]]) -> Iterator[list[tuple[str, Paid]]]:
    """Yield what lands in each commit: some records of each case, in its order."""
    rng = chance(11)
    cut: list[list[tuple[str, Paid]]] = [[] for _ in range(COMMITS)]
    for number, case in enumerate(cases):
        place = 0
        for paid in case:
            place = min(COMMITS - 1, place + rng.choice([0, 0, 1, 2]))
            cut[place].append((f"{number}/", paid))
    yield from cut


def to_raw(case: str, paid: Paid) -> Raw:
    id_ = case + paid.id
    if paid.amount is None:
        return Raw(None, id_.encode(), partition=paid.partition)
    record = {
        "id": id_,
        "version": paid.version,
        "user": case + paid.user,
        "amount": paid.amount,
        "timestamp": START_MS + paid.at_ms,
    }
    return Raw(json.dumps(record).encode(), partition=paid.partition)


def land(
    spark: SparkSession, settings: Settings, stream: Stream, cases: Sequence[Sequence[Paid]]
) -> list[Sent]:
    """Land the cases, and return the records; within a commit, they were sent in landing order."""
    sent: list[Sent] = []
    offset = 0
    for number, cut in enumerate(commits_of(cases)):
        moment = LANDED + timedelta(seconds=number)
        in_order = sorted(range(len(cut)), key=lambda place: (cut[place][1].partition, place))
        sent_ms = {place: int(moment.timestamp() * 1000) + rank for rank, place in enumerate(in_order)}
        raws = [replace(to_raw(*one), timestamp_ms=sent_ms[place]) for place, one in enumerate(cut)]
        pipeline.land(
            spark, settings, [raws], landed_at=moment, first_offset=offset, source=stream.sources[0]
        )
        sent += [
            Sent(
                Record(
                    (stream.sources[0].topic, paid.partition, offset + place),
                    pipeline.micros(moment),
                    raw.value,
                    raw.key,
                    kafka_timestamp_ms=sent_ms[place],
                ),
                None
                if paid.amount is None
                else {"user": case + paid.user, "amount": paid.amount, "at_ms": paid.at_ms},
            )
            for place, ((case, paid), raw) in enumerate(zip(cut, raws, strict=True))
        ]
        offset += len(cut)
    return sent


PAYMENT = Contract(
    (
        Field("user", "user"),
        Field("amount", "amount", Kind.DECIMAL),
        Field("id", "id", Kind.ID),
    )
)
ALWAYS = (Lateness(None),)
CORRECTED = OfSource(
    Contract((*PAYMENT.fields, Field("version", "version", Kind.LONG))), "id", "version", lateness=ALWAYS
)


def oracle(sent: Sequence[Sent], settings: OfSource = CORRECTED) -> tuple[list[Sent], dict[Place, str]]:
    """Return the records that are rows, and for each other one its letter's status, or rule if it is open."""
    found = outcomes([one.record for one in sent], (), settings)
    letters_ = {place: one for place, one in found.items() if one.kind == "letter"}
    return (
        [one for one in sent if one.place not in letters_],
        {place: ",".join(sorted(one.rules)) for place, one in letters_.items()},
    )


@pytest.fixture
def settings(lake_settings: Settings) -> Settings:
    return lake_settings


def run(lake: Lake, stream: Stream) -> None:
    """Run silver and gold; tests/simulation covers kills, cuts and changed settings."""
    cleaning = silver.steps(lake, stream, 1 << 30, Permitted())
    for maker in (*cleaning, *gold.steps(lake, stream, 1 << 30)):
        step = maker.make()
        while take_next(step, now=LANDED) is not None:
            pass


def is_sound(spark: SparkSession, settings: Settings, stream: Stream) -> bool:
    """Tell whether the audit finds nothing and a rebuild of silver would change nothing."""
    lake, (source,) = Lake(spark, settings.lake), stream.sources
    checks = [
        *check_records(lake, stream, source),
        *check_gold(lake, stream, stream.gold[0]),
    ]
    again = rebuild_silver(lake, stream, Landed(), LANDED)
    done = again.inserted + again.changed + again.removed + again.newly_refused + again.newly_accepted
    return not done and not any(check.differences for check in checks)


def letters(settings: Settings) -> dict[Place, str]:
    """Return the status of each letter, or the rule of an open one."""
    return {
        pipeline.coordinates_of(row): row["reasons"][0]["rule"]
        for row in pipeline.rows_of(settings, DEAD_LETTERS)
        if row["status"] == ("open" if row["reasons"][0]["rule"] in OPEN else row["reasons"][0]["rule"])
    }


def sums(records: Iterable[Sent]) -> dict[tuple[str, int], tuple[Decimal, int]]:
    totals: Counter[tuple[str, int]] = Counter()
    counts: Counter[tuple[str, int]] = Counter()
    for one in records:
        assert one.says is not None
        window = (START_MS + one.says["at_ms"]) // 300_000 * 300_000
        totals[one.says["user"], window] += one.says["amount"]
        counts[one.says["user"], window] += 1
    return {key: (Decimal(total), counts[key]) for key, total in totals.items()}


@pytest.mark.soak
def test_totals_and_notifications_have_what_stands_after_all(spark: SparkSession, settings: Settings) -> None:
    stream = lenient(TOTALS)
    sent = land(spark, settings, stream, cases(deletes=False))

    run(Lake(spark, settings.lake), stream)

    kept, fate = oracle(sent)
    assert letters(settings) == fate
    totals: Counter[str] = Counter()
    for one in kept:
        assert one.says is not None
        totals[one.says["user"]] += one.says["amount"]
    rows = pipeline.rows_of(settings, "gold.totals")
    assert {row["user"]: row["total"] for row in rows} == {
        user: Decimal(sum_) for user, sum_ in totals.items()
    }
    told = {(row["partition"], row["offset"]) for row in pipeline.rows_of(settings, "gold.told")}
    assert told <= {one.place[1:] for one in kept}
    assert {row["user"] for row in pipeline.rows_of(settings, "gold.told")} == {
        user for user, total in totals.items() if total >= 1000
    }
    assert is_sound(spark, settings, stream)


@pytest.mark.soak
def test_plain_frames_have_what_stands_after_all(spark: SparkSession, settings: Settings) -> None:
    stream = lenient(SUMS)
    folding, sent = Folding(spark, stream, is_small=True), land(spark, settings, stream, cases(deletes=True))
    bronze = pipeline.frame_of(spark, settings, "bronze.payments").withColumn(
        "sent_ms", (F.col("timestamp") / 1000).cast("long")
    )
    rows = bronze.orderBy("ingested_at").collect()
    for number, (_, cut) in enumerate(itertools.groupby(rows, key=lambda row: row.ingested_at)):
        records = [
            Raw(
                None if row.value is None else bytes(row.value),
                None if row.key is None else bytes(row.key),
                partition=row.partition,
                offset=row["offset"],
                timestamp_ms=row.sent_ms,
            )
            for row in cut
        ]
        folding.take({"payments": records}, landed_at=LANDED + timedelta(seconds=number))

    kept, fate = oracle(sent)
    stands = {(row.topic, row.partition, row["offset"]) for row in folding.frame("silver.payments").collect()}
    assert stands == {one.place for one in kept}
    refused = folding.frame(DEAD_LETTERS).collect()
    assert {pipeline.coordinates_of(row.asDict()): row.reasons[0].rule for row in refused} == fate
    found = pipeline.in_micros(folding.frame("gold.sums")).collect()
    totals = {(row.user, row.window_start // 1000): (row.total_amount, row["count"]) for row in found}
    assert totals == sums(kept)


def lenient(stream: Stream) -> Stream:
    """Return the stream with a lateness that no record of the cases exceeds."""
    (source,) = stream.sources
    return replace(stream, sources=(replace(source, allowed_lateness_s=400 * 86_400),))
