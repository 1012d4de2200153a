"""A registry of the process's caches, such as the cache of a table's files. Closing a lake clears them.

    _known: dict[str, Files] = {}
    on_forget(_known.clear)

All cached values can be read again, so `forget` can be called at any time, from any thread.
"""

from __future__ import annotations

from collections.abc import Callable

_FORGETTING: list[Callable[[], None]] = []


def on_forget(clear: Callable[[], None]) -> None:
    """Register a function that clears a cache, for `forget` to call. Modules do this on import."""
    _FORGETTING.append(clear)


def forget() -> None:
    """Clear all registered caches, as if the process had just started."""
    for clear in _FORGETTING:
        clear()
