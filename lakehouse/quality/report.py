"""A check's report: a finding for every expectation of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lakehouse.stream import Severity


@dataclass(frozen=True)
class Finding:
    """One expectation of a table: whether it holds and, if not, what was seen, with the keys of some rows.

    `unexpected` counts the rows that break it, or that its query found. `error` says why it could not be
    evaluated; then it does not hold.
    """

    expectation: str
    severity: Severity
    success: bool
    observed: str
    unexpected: int
    examples: tuple[Mapping[str, Any], ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class TableReport:
    """The result of a table's suite as of a version; `rows` were checked."""

    table: str
    version: int
    rows: int
    findings: tuple[Finding, ...]
    duration_s: float

    @property
    def failed(self) -> tuple[Finding, ...]:
        """The expectations that must hold and do not."""
        return tuple(one for one in self.findings if not one.success and one.severity == "fail")

    @property
    def has_errors(self) -> bool:
        """Tell whether an expectation could not be evaluated."""
        return any(one.error for one in self.findings)

    def as_json(self) -> dict[str, Any]:
        """Return the report as values for JSON."""
        return {**asdict(self), "success": not self.failed}


def summary(reports: Sequence[TableReport]) -> str:
    """Return a short summary: what does not hold, by severity."""
    broken = [one for report in reports for one in report.findings if not one.success]
    looked = [one for one in broken if not one.error]
    counts = {
        "could NOT be looked at": len(broken) - len(looked),
        "do NOT hold": sum(one.severity == "fail" for one in looked),
        "do not hold, as warnings": sum(one.severity == "warn" for one in looked),
    }
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count) or "all hold"
