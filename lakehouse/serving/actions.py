"""Commands of the command line, run one at a time as child processes for callers with the scope `operate`.

An action is the ordinary command, so it keeps every guarantee of that command; its output is its progress.
Actions are kept as long as the server runs. If the server stops, a running action gets SIGTERM, like the
command itself.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import signal
import sys
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from http import HTTPStatus
from typing import Any

from lakehouse.serving.problems import Problem

_LINES = 1_000
_KEPT = 100
_MOST_RESULT = 1 << 20
_PATIENCE_S = 10.0
_log = logging.getLogger(__name__)


class ActionStatus(StrEnum):
    """The state of an action."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass
class Action:
    """One run of a command: who started it, when (UTC), its output, and how it ended.

    `result` is the JSON object that it printed on standard output, null if that is not one.
    """

    id: str
    actor: str
    command: tuple[str, ...]
    started_at: datetime
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_LINES))
    ended_at: datetime | None = None
    exit_code: int | None = None
    result: Mapping[str, Any] | None = None

    @property
    def status(self) -> ActionStatus:
        """Return its state."""
        if self.exit_code is None:
            return ActionStatus.RUNNING
        return ActionStatus.SUCCEEDED if self.exit_code == 0 else ActionStatus.FAILED


class Actions:
    """Runs commands of `program`, by default this installation's `lakehouse`."""

    def __init__(self, program: Sequence[str] = (sys.executable, "-m", "lakehouse")) -> None:
        self._program = tuple(program)
        self._actions = OrderedDict[str, Action]()
        self._starting = asyncio.Lock()
        self._running: tuple[Action, asyncio.subprocess.Process, asyncio.Task[None]] | None = None

    async def start(self, command: Sequence[str], actor: str) -> Action:
        """Start a command; raises Problem 409 while another one runs."""
        async with self._starting:
            if self._running is not None:
                busy = self._running[0]
                why = f"{' '.join(busy.command)} of {busy.actor} is running; one action runs at a time"
                raise Problem(HTTPStatus.CONFLICT, why, id=busy.id)
            action = Action(secrets.token_hex(8), actor, tuple(command), datetime.now(UTC))
            process = await asyncio.create_subprocess_exec(
                *self._program,
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
                env=os.environ | {"COLUMNS": "200", "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"},
            )
            _log.info("%s runs %s as action %s", actor, command, action.id)
            self._actions[action.id] = action
            while len(self._actions) > _KEPT:
                self._actions.popitem(last=False)
            self._running = action, process, asyncio.create_task(self._follow(action, process))
            return action

    def get(self, id_: str) -> Action | None:
        """Return an action, null if it is unknown."""
        return self._actions.get(id_)

    def newest(self) -> list[Action]:
        """Return the actions, the newest first."""
        return list(reversed(self._actions.values()))

    async def close(self) -> None:
        """Ask a running action to stop, and kill it if it does not."""
        if self._running is None:
            return
        _, process, following = self._running
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(following), _PATIENCE_S)
                return

    async def _follow(self, action: Action, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        assert process.stderr is not None  # noqa: S101 - the same
        said, _ = await asyncio.gather(
            _take(process.stdout, action.lines), _take(process.stderr, action.lines)
        )
        exit_code = await process.wait()
        action.result = _result(said)
        action.exit_code = exit_code
        action.ended_at = datetime.now(UTC)
        self._running = None
        _log.info("action %s of %s ended with %d", action.id, action.actor, action.exit_code)


async def _take(stream: asyncio.StreamReader, lines: deque[str]) -> bytes:
    """Collect the output piece by piece, however long its lines are; return its end."""
    rest, last = b"", b""
    while piece := await stream.read(65_536):
        last = (last + piece)[-_MOST_RESULT:]
        *whole, rest = (rest + piece).split(b"\n")
        lines.extend(line.decode(errors="replace").rstrip("\r") for line in whole)
    if rest:
        lines.append(rest.decode(errors="replace"))
    return last


def _result(said: bytes) -> Mapping[str, Any] | None:
    try:
        found = json.loads(said, parse_constant=str)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
