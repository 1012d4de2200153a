"""The share of records that silver refuses, as recorded in ops.events by runs and reported by commands.

A record is refused if its dead letter is open because the record is invalid, late, or in conflict with
another record that has the same id. Duplicates, corrections and deletions are dead letters that need no
attention (`lakehouse.engine.records.identity`), so they count as validated but not as refused. Events contain
no values from records, because events can be read by more people than dead letters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse.common.events import Kind, note
from lakehouse.engine.records.dead_letters import place
from lakehouse.engine.records.identity import CLOSED

LEAST_JUDGED = 1_000
"""The minimum number of validated records for a meaningful share. One refused record in ten means little."""
MOST_CAUSES = 3


@dataclass(frozen=True)
class Cause:
    """A cause of refusals: a rule, a column (or None), and the number of records that break the rule.

    `place` is the topic/partition/offset of the first such record. `message` is the reason in the dead letter
    of that record.
    """

    rule: str
    column: str | None
    count: int
    place: str
    message: str

    @property
    def name(self) -> str:
        """The rule, followed by the column, if there is one."""
        return self.rule if self.column is None else f"{self.rule} of {self.column}"

    def __str__(self) -> str:
        return f"{self.count:,} {self.name}, such as {self.place}: {self.message}"


@dataclass(frozen=True)
class Refusals:
    """How many records silver has validated, and how many of them it has refused, for one table.

    `limit` is the share that may be refused.
    """

    table: str
    judged: int
    refused: int
    limit: float
    causes: tuple[Cause, ...] = ()

    @property
    def share(self) -> float:
        """The share of validated records that were refused, from 0 to 1."""
        return self.refused / self.judged if self.judged else 0.0

    @property
    def is_telling(self) -> bool:
        """Whether enough records were validated for the share to be meaningful."""
        return self.judged >= LEAST_JUDGED

    @property
    def is_over(self) -> bool:
        """Whether the share of refused records is over the limit.

        False if too few records were validated.
        """
        return self.is_telling and self.share > self.limit

    def __str__(self) -> str:
        if not self.refused:
            return f"{self.table}: none of {self.judged:,} records refused"
        return f"{self.table}: {self.refused:,} of {self.judged:,} records refused ({percent(self.share)})"


def percent(share: float) -> str:
    """Format a share as a percentage; only an exact 0 or 1 is shown as 0 or 100 %."""
    rounded = f"{100 * share:.1f}"
    if rounded == "100.0" and share < 1:
        return "more than 99.9 %"
    return "less than 0.1 %" if rounded == "0.0" and share > 0 else f"{rounded.removesuffix('.0')} %"


def commonest(letters: DataFrame) -> tuple[Cause, ...]:
    """Return the most frequent reasons in open dead letters; a letter counts once for each of its reasons."""
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
    """Record the refusals for a table in ops.events, without values from records."""
    causes = [asdict(one) for one in refusals.causes]
    details: Mapping[str, Any] = {
        **asdict(refusals),
        "over": refusals.is_over,
        "causes": [{name: one[name] for name in one if name != "message"} for one in causes],
    }
    note(Kind.REFUSED, str(refusals), stream=stream, layer="silver", table=refusals.table, details=details)
