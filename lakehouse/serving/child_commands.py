"""Run CLI commands as child processes, one at a time, for callers with the scope `operate`.

An action runs the ordinary command, with the same guarantees. Its output shows the progress. The server keeps
the last hundred actions until it stops. An action is stopped if a caller cancels it, if it exceeds the time
limit, or if the server stops. Its process then gets SIGTERM, followed by SIGKILL if it does not exit.
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

DEADLINE_S = 12 * 3600.0
_LINES = 1_000
_MOST_LINE = 2_000
_KEPT = 100
_MOST_RESULT = 1 << 20
_PATIENCE_S = 10.0
_log = logging.getLogger(__name__)


class ActionStatus(StrEnum):
    """The possible states of an action."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass
class Action:
    """One run of a command, with its caller, times (UTC), output and exit code.

    `result` is the JSON object that the command printed to standard output, or None if it printed anything
    else. `cancelled_by` is the caller who cancelled the action, or None if the action was not cancelled.
    """

    id: str
    actor: str
    command: tuple[str, ...]
    started_at: datetime
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_LINES))
    ended_at: datetime | None = None
    exit_code: int | None = None
    result: Mapping[str, Any] | None = None
    cancelled_by: str | None = None

    @property
    def status(self) -> ActionStatus:
        """The action's state. A cancelled action that still exits with 0 counts as succeeded."""
        if self.exit_code is None:
            return ActionStatus.RUNNING
        if self.exit_code == 0:
            return ActionStatus.SUCCEEDED
        return ActionStatus.FAILED if self.cancelled_by is None else ActionStatus.CANCELLED


@dataclass
class _Running:
    action: Action
    process: asyncio.subprocess.Process
    following: asyncio.Task[None]
    overdue: asyncio.TimerHandle
    ending: asyncio.Task[None] | None = None


class Actions:
    """Runs commands of `program` (by default, this installation's `lakehouse`), one at a time.

    A command is stopped after `deadline_s` seconds. Python's `-P` keeps the program from importing modules
    from the working directory.
    """

    def __init__(
        self,
        program: Sequence[str] = (sys.executable, "-P", "-m", "lakehouse"),
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._program = tuple(program)
        self._deadline_s = deadline_s
        self._actions = OrderedDict[str, Action]()
        self._starting = asyncio.Lock()
        self._running: _Running | None = None

    async def start(self, command: Sequence[str], actor: str) -> Action:
        """Start a command. Raises Problem 409 while another command is running."""
        async with self._starting:
            if self._running is not None:
                busy = self._running.action
                why = f"{' '.join(busy.command)}, started by {busy.actor}, is running; try again later"
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
            following = asyncio.create_task(self._follow(action, process))
            overdue = asyncio.get_running_loop().call_later(self._deadline_s, self._give_up)
            self._running = _Running(action, process, following, overdue)
            return action

    def cancel(self, id_: str, actor: str) -> Action | None:
        """Ask an action to stop. Return the action, or None if the id is unknown.

        The action can take a while to stop.
        """
        running = self._running
        if running is not None and running.action.id == id_ and running.action.cancelled_by is None:
            _log.info("%s cancels action %s of %s", actor, id_, running.action.actor)
            running.action.cancelled_by = actor
            self._end(running)
        return self.get(id_)

    def get(self, id_: str) -> Action | None:
        """Return the action with this id, or None if the id is unknown."""
        return self._actions.get(id_)

    def newest(self) -> list[Action]:
        """Return all actions that the server still keeps, newest first."""
        return list(reversed(self._actions.values()))

    async def close(self) -> None:
        """Stop the running action, if there is one. Kill its process if it does not exit."""
        if self._running is not None:
            await self._end(self._running)

    def _give_up(self) -> None:
        if self._running is not None:
            action = self._running.action
            action.lines.append(f"stopped after {self._deadline_s:g} s, the limit set by --action-hours")
            _log.warning("action %s of %s exceeded %g s", action.id, action.actor, self._deadline_s)
            self._end(self._running)

    def _end(self, running: _Running) -> asyncio.Task[None]:
        """Start a task that stops an action, unless such a task is already running. Return the task."""
        if running.ending is None:
            running.ending = asyncio.create_task(_ended(running))
        return running.ending

    async def _follow(self, action: Action, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        assert process.stderr is not None  # noqa: S101 - it is also a pipe
        said, _ = await asyncio.gather(
            _take(process.stdout, action.lines), _take(process.stderr, action.lines)
        )
        exit_code = await process.wait()
        action.result = _result(said)
        action.exit_code = exit_code
        action.ended_at = datetime.now(UTC)
        if self._running is not None:
            self._running.overdue.cancel()
            self._running = None
        _log.info("action %s of %s exited with code %d", action.id, action.actor, action.exit_code)


async def _ended(running: _Running) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(running.process.pid, number)
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(running.following), _PATIENCE_S)
            return


async def _take(stream: asyncio.StreamReader, lines: deque[str]) -> bytes:
    """Collect the lines of a command's output, truncating long ones. Return the last 1 MiB of the output."""
    rest, last = b"", b""
    while piece := await stream.read(65_536):
        last = (last + piece)[-_MOST_RESULT:]
        *whole, rest = (rest + piece).split(b"\n")
        rest = rest[: _MOST_LINE * 4]
        lines.extend(map(_line, whole))
    if rest:
        lines.append(_line(rest))
    return last


def _line(printed: bytes) -> str:
    """Decode a line, and truncate it if it is long."""
    line = printed[: _MOST_LINE * 4].decode(errors="replace").rstrip("\r")
    return line if len(line) <= _MOST_LINE else f"{line[:_MOST_LINE]} …"


def _result(said: bytes) -> Mapping[str, Any] | None:
    try:
        found = json.loads(said, parse_constant=str)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
