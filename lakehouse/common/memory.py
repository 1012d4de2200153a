"""What this process remembers to save reads, such as a table's files; forgotten when a lake is closed.

    _known: dict[str, Files] = {}
    on_forget(_known.clear)

All of it can be read again, so forgetting is safe at any time, from any thread.
"""

from __future__ import annotations

from collections.abc import Callable

_FORGETTING: list[Callable[[], None]] = []


def on_forget(clear: Callable[[], None]) -> None:
    """Call `clear` at each `forget`, from the import of a module on."""
    _FORGETTING.append(clear)


def forget() -> None:
    """Remember nothing, like a new process."""
    for clear in _FORGETTING:
        clear()
