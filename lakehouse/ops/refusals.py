"""How many of the records that silver judges it refuses: counted by runs, noted in ops.events, said by all.

A record is refused if its dead letter is open: invalid, late, or in conflict with another one of its id.
Repeats, corrections and deletions are dead letters that nobody has to look at (`lakehouse.records.identity`),
so they count as judged only. Events have no values of records in them: they have more readers than letters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse.events import Kind, note
from lakehouse.records.dead_letters import place
from lakehouse.records.identity import CLOSED

LEAST_JUDGED = 1_000
"""The share of fewer records says nothing: one of ten may be refused."""
MOST_CAUSES = 3


@dataclass(frozen=True)
class Cause:
    """Refused records that break one rule in one column, null for none: their number and the first of them.

    `place` is topic/partition/offset, `message` the reason against that record.
    """

    rule: str
    column: str | None
    count: int
    place: str
    message: str

    @property
    def name(self) -> str:
        """The rule, and the column where there is one."""
        return self.rule if self.column is None else f"{self.rule} of {self.column}"

    def __str__(self) -> str:
        return f"{self.count:,} {self.name}, such as {self.place}: {self.message}"


@dataclass(frozen=True)
class Refusals:
    """Records of a silver table that were judged, and how many were refused; `limit` is the share allowed."""

    table: str
    judged: int
    refused: int
    limit: float
    causes: tuple[Cause, ...] = ()

    @property
    def share(self) -> float:
        """The share that was refused, from 0 to 1."""
        return self.refused / self.judged if self.judged else 0.0

    @property
    def is_telling(self) -> bool:
        """Whether enough records were judged for a share to mean something."""
        return self.judged >= LEAST_JUDGED

    @property
    def is_over(self) -> bool:
        """Whether more was refused than is allowed."""
        return self.is_telling and self.share > self.limit

    def __str__(self) -> str:
        if not self.refused:
            return f"{self.table}: none of {self.judged:,} records refused"
        return f"{self.table}: {self.refused:,} of {self.judged:,} records refused ({percent(self.share)})"


def percent(share: float) -> str:
    """Return a share in percent; one that is nearly all or nothing never reads as that."""
    rounded = f"{100 * share:.1f}"
    if rounded == "100.0" and share < 1:
        return "more than 99.9 %"
    return "less than 0.1 %" if rounded == "0.0" and share > 0 else f"{rounded.removesuffix('.0')} %"


def commonest(letters: DataFrame) -> tuple[Cause, ...]:
    """Return the commonest reasons of dead letters, in one query; a letter counts under each of its own."""
    refused = letters.where(~F.col("status").isin(*CLOSED))
    at = F.struct("topic", "partition", "offset")
    reasons = refused.select(place().alias("place"), at.alias("at"), F.explode("reasons").alias("reason"))
    first = F.min_by(F.struct("place", "reason.message"), "at").alias("first")
    found = reasons.groupBy("reason.rule", "reason.column").agg(F.count(F.lit(1)).alias("count"), first)
    rows = found.orderBy(F.desc("count"), "rule", "column").limit(MOST_CAUSES).collect()
    return tuple(
        Cause(row["rule"], row["column"], row["count"], row["first"].place, row["first"].message or "")
        for row in rows
    )


def note_refusals(stream: str, refusals: Refusals) -> None:
    """Note what has been refused in ops.events, without values of records."""
    causes = [asdict(one) for one in refusals.causes]
    details: Mapping[str, Any] = {
        **asdict(refusals),
        "over": refusals.is_over,
        "causes": [{name: one[name] for name in one if name != "message"} for one in causes],
    }
    note(Kind.REFUSED, str(refusals), stream=stream, layer="silver", table=refusals.table, details=details)
