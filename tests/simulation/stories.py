"""Kept stories, in kept/: one line per action, and a comment that describes the story."""

from __future__ import annotations

from pathlib import Path

KEPT = Path(__file__).with_name("kept")

QUICK = frozenset(
    {
        "deletion_in_another_partition",
        "recomputed_window_grows",
    }
)
"""The stories that make test runs; make soak runs the others."""


def kept() -> list[Path]:
    """Return the stories that must pass."""
    return sorted(KEPT.glob("*.txt"))
