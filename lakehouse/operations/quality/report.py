"""The result of checking a table: one finding per expectation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lakehouse.streams.definition import Severity


@dataclass(frozen=True)
class Finding:
    """The result for one of a table's expectations, with the keys of some failing rows as `examples`.

    `unexpected` is the number of failing rows, or of rows returned by the expectation's query. `error` says
    why the expectation could not be evaluated. An expectation with an error counts as failed.
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
    """The result of running a suite on a version of its table. `rows` is the number of checked rows."""

    table: str
    version: int
    rows: int
    findings: tuple[Finding, ...]
    duration_s: float

    @property
    def failed(self) -> tuple[Finding, ...]:
        """The findings with severity `fail` for expectations that do not hold."""
        return tuple(one for one in self.findings if not one.success and one.severity == "fail")

    @property
    def has_errors(self) -> bool:
        """Whether an expectation could not be evaluated."""
        return any(one.error for one in self.findings)

    def as_json(self) -> dict[str, Any]:
        """Return the report as a JSON-serializable dictionary."""
        return {**asdict(self), "success": not self.failed}


def summary(reports: Sequence[TableReport]) -> str:
    """Return a one-line summary with the number of expectations that do not hold, by severity."""
    broken = [one for report in reports for one in report.findings if not one.success]
    looked = [one for one in broken if not one.error]
    counts = {
        "could NOT be evaluated": len(broken) - len(looked),
        "do NOT hold": sum(one.severity == "fail" for one in looked),
        "do not hold (warnings only)": sum(one.severity == "warn" for one in looked),
    }
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count) or "all hold"
