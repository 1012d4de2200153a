"""Run background work in a thread for the duration of a block."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def beside(
    name: str, work: Callable[[threading.Event], None], *, patience_s: float | None = None
) -> Iterator[None]:
    """Run `work` in a daemon thread during the block.

    `work` receives an event that is set when the block ends; it must then return. At the end of the block,
    this function waits until `work` returns, but at most `patience_s` seconds (None: no limit). The process
    can exit while `work` is still running.
    """
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=patience_s)
