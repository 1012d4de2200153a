"""Work beside a block, in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def beside(
    name: str, work: Callable[[threading.Event], None], *, patience_s: float | None = None
) -> Iterator[None]:
    """Do the work during the block. It gets the event that says that the block is over, and must then return.

    The block's end waits for that, or for `patience_s` at most; an end of the process does not.
    """
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=patience_s)
