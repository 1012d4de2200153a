"""Stories that are kept, in kept/: each one line per action, and a comment that says what it is about."""

from __future__ import annotations

from pathlib import Path

KEPT = Path(__file__).with_name("kept")

NOT_YET = frozenset(
    {
        "changed_by_another_writer",
        "clock_set_back",
        "corrected_while_rebuilding",
        "deletion_in_another_partition",
        "final_by_the_wall_clock",
        "ids_set_on_a_living_lake",
        "killed_optimized_rebuilt",
        "newest_is_deleted",
        "rebuilt_after_replay_and_correction",
        "replayed_after_deletion",
        "replayed_and_corrected",
        "replayed_in_another_order",
        "replayed_while_silver_settles",
        "resent_by_an_older_one",
        "retention_takes_no_answer",
    }
)
"""Stories of faults that are to be mended: run by `python -m tests.simulation --story`, not by make test."""


def kept() -> list[Path]:
    """Return the stories that must hold."""
    return sorted(file for file in KEPT.glob("*.txt") if file.stem not in NOT_YET)
