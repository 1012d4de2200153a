"""The audit's report: one check per comparison, with examples of keys whose rows differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame

from lakehouse.common.rows_as_text import differing

EXAMPLES = 20


@dataclass(frozen=True)
class Difference:
    """A row that differs: its key, and a description of the difference."""

    key: dict[str, Any]
    what: str


@dataclass(frozen=True)
class Check:
    """A comparison: its subject, the number of rows compared, the number of differences, and examples.

    `notes` explain expected deviations, such as gaps, expired offsets and in-flight rows. `not_compared`
    describes the rows that could not be compared, and why. If there are such rows, the check is not clean,
    even without differences.
    """

    stream: str
    name: str
    subject: str
    compared: int
    differences: int
    examples: tuple[Difference, ...] = ()
    notes: tuple[str, ...] = ()
    not_compared: tuple[str, ...] = ()

    @property
    def is_clean(self) -> bool:
        """Whether everything was compared and no differences were found."""
        return not self.differences and not self.not_compared


@dataclass(frozen=True)
class Report:
    """An audit's checks, and the time (UTC) of the audit."""

    at: datetime
    checks: tuple[Check, ...]

    @property
    def is_clean(self) -> bool:
        """Whether everything was compared and no differences were found."""
        return all(check.is_clean for check in self.checks)

    def as_json(self) -> dict[str, Any]:
        """Return the report as a JSON-serializable dictionary."""
        return {
            "clean": self.is_clean,
            "at": self.at.isoformat(),
            "checks": [asdict(check) for check in self.checks],
        }


@dataclass(frozen=True)
class Compared:
    """The things that a check compares: the stream, the check's name, and the tables, topics or files."""

    stream: str
    name: str
    subject: str

    def compared(
        self, rows: int, different: Sequence[DataFrame] = (), notes: Sequence[str] = (), *, missing: int = 0
    ) -> Check:
        """Return the check's result.

        Each frame in `different` has one row per difference: the key columns, and a description in `what`.
        """
        found, examples = differing(different, EXAMPLES)
        return self.found(rows, missing + found, [Difference(*one) for one in examples], notes)

    def found(
        self,
        rows: int,
        differences: int,
        examples: Sequence[Difference],
        notes: Sequence[str] = (),
        not_compared: Sequence[str] = (),
    ) -> Check:
        """Return the check for the given differences."""
        shown = tuple(examples[:EXAMPLES])
        return Check(
            self.stream, self.name, self.subject, rows, differences, shown, tuple(notes), tuple(not_compared)
        )


def summary_of(checks: Sequence[Check]) -> str:
    """Return a one-line summary: "clean", or the number of differences and incomplete checks."""
    differences = sum(check.differences for check in checks)
    incomplete = sum(bool(check.not_compared) for check in checks)
    found = [f"{differences:,} differences"] if differences else []
    if incomplete:
        checks_ = "1 check" if incomplete == 1 else f"{incomplete:,} checks"
        found.append(f"{checks_} could not compare everything")
    return ", ".join(found) or "clean"
