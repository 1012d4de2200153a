"""The log file for tracebacks, HOME/logs/lakehouse.log. The terminal shows only one line for each failure."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import RotatingFileHandler
from pathlib import Path

from lakehouse.common.state_files import make_private
from lakehouse.common.terminal import LogFormatter

_BYTES = 5 << 20
_FILES = 3
_FORMAT = "%(asctime)s %(levelname)s %(message)s"


class _Patient(RotatingFileHandler):
    """A log handler that ignores write errors, such as a full disk, because events are also in ops.events."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - as in logging
        """Do nothing; by default, logging would print its own traceback."""


def log_file(home: Path) -> Path:
    """Return the path of the log file in a home directory."""
    return home / "logs" / "lakehouse.log"


@contextmanager
def logged(home: Path, *, verbose: bool) -> Iterator[Path]:
    """During the block, write the log to the file in the home directory and, with `verbose`, also to stderr.

    Yields the path of the log file. The file is rotated at 5 MB, and three older files are kept. Times are in
    local time.
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
