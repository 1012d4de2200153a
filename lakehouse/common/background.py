"""Background work during a block, in its own thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def beside(
    name: str, work: Callable[[threading.Event], None], *, patience_s: float | None = None
) -> Iterator[None]:
    """Run the work during the block. It gets an event that is set when the block ends, and must then return.

    Leaving the block waits for that, for at most `patience_s`; the end of the process does not wait.
    """
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=patience_s)
