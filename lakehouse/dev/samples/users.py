"""Names of sample users, in several scripts."""

from __future__ import annotations

_NAMES = (
    "ada",
    "bob",
    "chloé",
    "dieter",
    "eve",
    "frank",
    "grace",
    "heidi",
    "ivan",
    "jürgen",
    "katya",
    "linus",
    "mallory",
    "noor",
    "olga",
    "peggy",
    "søren",
    "trent",
    "zoë",
    "さくら",
    "дмитрий",
    "ليلى",
    "李雷",
    "🦊",
)


def user(number: int) -> str:
    """Return a user's name, a different one for every number; no name contains a hyphen."""
    return f"{_NAMES[number % len(_NAMES)]}{number // len(_NAMES)}"
