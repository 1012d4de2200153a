"""A process on its own terminal, and the output that remains on the screen."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

SHOWN_AGAIN = "\x1b[?25h"
"""The terminal's cursor is shown again."""
_PATIENCE_S = 300.0
_PIECE = re.compile(r"\x1b\[([\d;?]*)([A-Za-z])|\r\n|\n|\r|[^\x1b\r\n]+")


def left(output: str) -> list[str]:
    """Return the lines on the screen, without empty lines at the end and without colours.

    This function supports moving the cursor up (A) and erasing a line (2K). No line may be wider than the
    terminal.
    """
    lines, row, column = [""], 0, 0
    for found in _PIECE.finditer(output):
        piece, (number, letter) = found[0], found.groups()
        if letter == "A":
            row = max(0, row - int(number or 1))
        elif letter == "K":
            lines[row] = ""
        elif piece == "\r":
            column = 0
        elif piece.endswith("\n"):
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif letter is None:
            line = lines[row].ljust(column)
            lines[row] = line[:column] + piece + line[column + len(piece) :]
            column += len(piece)
    while lines and not lines[-1].strip():
        lines.pop()
    return [line.rstrip() for line in lines]


class Terminal:
    """A process on its own terminal, and its output so far."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
        )
        os.close(theirs)
        self.output = ""

    def await_(self, text: str) -> None:
        """Read until the process has printed the text."""
        began = time.monotonic()
        while text not in self.output:
            assert self._read(), f"ended without {text!r}: {self.output}"
            assert time.monotonic() - began < _PATIENCE_S, self.output

    def ended(self) -> int:
        """Read until the process ends, and return its exit status."""
        while self._read():
            pass
        return self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._ours)

    def _read(self) -> bool:
        try:
            piece = os.read(self._ours, 1 << 16)
        except OSError:  # the process has ended
            return False
        self.output += piece.decode()
        return bool(piece)


@contextmanager
def terminal(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[Terminal]:
    """Start a command on a terminal of 120 characters, and kill it after the block if it has not ended."""
    size = {"TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    started = Terminal(command, {**environment, **size})
    try:
        yield started
    finally:
        started.close()
