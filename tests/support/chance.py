"""Random generators for tests: the same in every `make test`, and different for every seed of `make soak`."""

from __future__ import annotations

from random import Random

from hypothesis import core


def chance(seed: int) -> Random:
    """Return a random generator, which also depends on `--hypothesis-seed` if that is given."""
    given = getattr(core, "global_force_seed", None)
    return Random(seed if given is None else f"{given} {seed}")
