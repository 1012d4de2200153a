"""The summary of a check."""

from __future__ import annotations

import pytest

from lakehouse.operations.quality.report import Finding, TableReport, summary
from lakehouse.streams.definition import Severity


def finding(severity: Severity, *, success: bool = False, error: str | None = None) -> Finding:
    return Finding("keys are unique", severity, success, "", 0, (), error)


@pytest.mark.parametrize(
    ("findings", "said"),
    [
        ((finding("fail", success=True), finding("warn", success=True)), "all hold"),
        ((finding("fail"), finding("fail"), finding("fail", success=True)), "2 do NOT hold"),
        ((finding("warn"), finding("fail", success=True)), "1 do not hold (warnings only)"),
        (
            (finding("warn", error="no such column"), finding("fail"), finding("warn")),
            "1 could NOT be evaluated, 1 do NOT hold, 1 do not hold (warnings only)",
        ),
    ],
)
def test_a_summary_counts_what_does_not_hold_by_how_much_that_matters(
    findings: tuple[Finding, ...], said: str
) -> None:
    reports = [TableReport("gold.a", 1, 5, findings[:1], 0.1), TableReport("gold.b", 1, 5, findings[1:], 0.1)]

    assert summary(reports) == said
