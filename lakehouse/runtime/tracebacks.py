"""Where the tracebacks of failures go: to HOME/logs/lakehouse.log; the terminal keeps its one line."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import RotatingFileHandler
from pathlib import Path

from lakehouse.files import make_private
from lakehouse.terminal import LogFormatter

_BYTES = 5 << 20
_FILES = 3
_FORMAT = "%(asctime)s %(levelname)s %(message)s"


class _Patient(RotatingFileHandler):
    """Loses what cannot be written, on a full disk say: the event in ops.events has it as well."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - as in logging
        """Do nothing; by default logging prints a traceback of its own."""


def log_file(home: Path) -> Path:
    """Return the file of a home's log."""
    return home / "logs" / "lakehouse.log"


@contextmanager
def logged(home: Path, *, verbose: bool) -> Iterator[Path]:
    """Write what the project logs in the block to the home's log, and if `verbose` to standard error too.

    Yields the log's path. The file rolls at 5 MB; the last three are kept. Times are the machine's.
    """
    file, logger = log_file(home), logging.getLogger("lakehouse")
    make_private(file.parent)
    handlers: list[logging.Handler] = [
        _Patient(file, maxBytes=_BYTES, backupCount=_FILES, encoding="utf-8", delay=True)
    ]
    if verbose:
        handlers.append(logging.StreamHandler())
    was_propagating, logger.propagate = logger.propagate, False
    for handler in handlers:
        handler.setFormatter(LogFormatter(_FORMAT))
        logger.addHandler(handler)
    try:
        yield file
    finally:
        logger.propagate = was_propagating
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()
