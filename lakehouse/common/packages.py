"""Find what installed packages offer through entry points."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points


def offered(group: str) -> dict[str, EntryPoint]:
    """Return the entry points in a group, keyed by name."""
    return {entry.name: entry for entry in entry_points(group=group)}


def offer_of(entry: EntryPoint) -> str:
    """Return the beginning of a message about an entry point: its package, and the object that it names."""
    package = "a package" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
    return f"{package} offers {entry.value}"
