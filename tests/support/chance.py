"""Chance for tests: the same in every run of make test, another with every seed of make soak."""

from __future__ import annotations

from random import Random

from hypothesis import core


def chance(seed: int) -> Random:
    """Return a generator of numbers that `--hypothesis-seed`, where it is given, makes another one."""
    given = getattr(core, "global_force_seed", None)
    return Random(seed if given is None else f"{given} {seed}")
