"""The layers as processes that are restarted whenever they end, whatever the reason.

Their output goes through pipes, which neither a full disk nor a limit on files can block. A process has
recovered when it has printed that it finished a micro-batch. A process may run one layer or all of them, or
the two may take turns.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from types import TracebackType
from typing import IO, Self

import psutil

from tests.support.processes import ROOT

ALL = "all"
"""The name of the process that runs all layers."""
PAUSE_S = 1.0  # before a process is restarted
_POLL_S = 0.05
_BATCH_DONE = re.compile(r"[a-z]+\.\w+ (batch \d+|by the clock): ")
_WAIT_S = 10.0


@dataclass(frozen=True)
class Exit:
    """A process that ended by itself: its name, its exit code, the last disturbance, and its output."""

    name: str
    code: int
    condition: str
    stdout: Sequence[str]
    stderr: Sequence[str]


@dataclass
class _Life:
    """One process, from its start to its end."""

    popen: subprocess.Popen[str]
    stdout: list[str] = field(default_factory=list)
    stderr: list[str] = field(default_factory=list)
    readers: list[threading.Thread] = field(default_factory=list)
    batches: int = 0
    killed: bool = False


class Frozen:
    """A process that was suspended in the middle of its work, until it is resumed."""

    def __init__(self, life: _Life) -> None:
        self._life = life
        self._said = 0

    def wake(self) -> None:
        """Let it continue."""
        self._said = len(self._life.stdout)
        os.killpg(self._life.popen.pid, signal.SIGCONT)

    def await_line(self, beginnings: Sequence[str], timeout_s: float) -> str | None:
        """Return the first line after resuming with one of these beginnings, or None if none appears in time.

        If the process ends by itself, return its last line.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for line in self._life.stdout[self._said :]:
                if line.startswith(tuple(beginnings)):
                    return line
            if _has_ended(self._life.popen.pid):
                return (self._life.stderr or ["it ended without a word"])[-1]
            time.sleep(_POLL_S)
        return None


Shift = Mapping[str, list[str]]
"""Processes that run together: their commands, by layer or ALL."""


class Supervisor:
    """Keeps the processes of a shift running during its block.

    If a process ends, it is restarted. With several shifts, the end of one process ends its whole shift: the
    others are killed, and the next shift starts. `condition` is the last disturbance, which is recorded with
    processes that end by themselves. `back_s` contains, by process name, the seconds from a SIGKILL to the
    new process's first micro-batch, for kills without other disturbances.
    """

    def __init__(self, shifts: Sequence[Shift], environment: Mapping[str, str]) -> None:
        self._shifts = shifts
        self._turn = 0
        self._environment = environment
        self._lock = threading.RLock()
        self._clock_lock = threading.Lock()  # readers of output take only this one, so they never wait long
        self._lives: dict[str, _Life] = {}
        self._killed_at: dict[str, float] = {}
        self._start_at: dict[str, float] = {}
        self._stopping = threading.Event()
        self._watch = threading.Thread(target=self._keep_running, daemon=True)
        self.condition = "nothing"
        self.exits: list[Exit] = []
        self.starts = Counter[str]()
        self.back_s: dict[str, list[float]] = defaultdict(list)

    def __enter__(self) -> Self:
        self._start_at = dict.fromkeys(self._shift, time.monotonic())
        self._watch.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._watch.join()
        for life in self._lives.values():
            _end(life)

    def kill(self, layer: str) -> bool:
        """Kill a layer's processes at once; return whether there were any."""
        with self._lock:
            name = self._name_of(layer)
            life = self._lives.get(name)
            if life is None or life.popen.returncode is not None:
                return False
            os.killpg(life.popen.pid, signal.SIGKILL)
            life.killed = True
            with self._clock_lock:
                self._killed_at[name] = time.monotonic()
            return True

    @contextlib.contextmanager
    def frozen(self, layer: str) -> Iterator[Frozen]:
        """Suspend a layer's process and start another; the block may resume the first; it is then killed."""
        with self._lock:
            name = self._name_of(layer)
            life = self._lives.pop(name)
            os.killpg(life.popen.pid, signal.SIGSTOP)
            self._start_at[name] = time.monotonic()
        try:
            yield Frozen(life)
        finally:
            _end(life)

    def disturb(self, condition: str) -> None:
        """Record the current disturbance; layers that have not recovered yet are no longer measured."""
        with self._clock_lock:
            self.condition = condition
            self._killed_at.clear()

    def is_up(self, layer: str) -> bool:
        """Return whether the layer's current process has finished a micro-batch."""
        with self._lock:
            life = self._lives.get(self._name_of(layer))
            return life is not None and life.popen.returncode is None and life.batches > 0

    def await_up(self, layers: Sequence[str], timeout_s: float) -> bool:
        """Wait until the layers are up and tell whether they are."""
        deadline = time.monotonic() + timeout_s
        while not all(map(self.is_up, layers)):
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
        return True

    def processes(self, layer: str) -> list[psutil.Process]:
        """Return the live processes of a layer: Python and its JVM."""
        with self._lock:
            life = self._lives.get(self._name_of(layer))
        if life is None:
            return []
        try:
            leader = psutil.Process(life.popen.pid)
            return [leader, *leader.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def stop(self, timeout_s: float) -> list[str]:
        """Stop all processes with SIGTERM, do not restart any, and return all failures."""
        self._stopping.set()
        self._watch.join()
        wrong = []
        for life in self._lives.values():
            if life.popen.poll() is None:
                life.popen.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + timeout_s
        for name, life in self._lives.items():
            with contextlib.suppress(subprocess.TimeoutExpired):
                life.popen.wait(max(0.1, deadline - time.monotonic()))
            code = life.popen.poll()
            _end(life)
            if code != 0 or life.stdout[-1:] != ["stopped"]:
                last = (life.stdout[-1:] + life.stderr)[-3:]
                wrong.append(f"{name}: SIGTERM ended it with {code}, its last words: {last}")
        return wrong

    @property
    def _shift(self) -> Shift:
        return self._shifts[self._turn % len(self._shifts)]

    def _name_of(self, layer: str) -> str:
        """Return the name of the process that runs a layer in the current shift."""
        return layer if layer in self._shift else ALL

    def _keep_running(self) -> None:
        while not self._stopping.wait(_POLL_S):
            for name in list(self._shift):
                with self._lock:
                    self._look_after(name)

    def _look_after(self, name: str) -> None:
        life = self._lives.get(name)
        if life is not None and life.popen.returncode is None:
            if not _has_ended(life.popen.pid):
                return
            _end(life)
            self._start_at[name] = time.monotonic() + PAUSE_S
            if not life.killed:
                with self._clock_lock:
                    self._killed_at.pop(name, None)
                code = life.popen.wait()
                self.exits.append(Exit(name, code, self.condition, life.stdout, life.stderr))
            if len(self._shifts) > 1:
                self._change_shift(name)
        if time.monotonic() >= self._start_at.get(name, inf):
            self._lives[name] = self._started(name)
            self.starts[name] += 1

    def _change_shift(self, ended: str) -> None:
        for life in self._lives.values():
            _end(life)
        self._lives.clear()
        self._turn += 1
        self._start_at = dict.fromkeys(self._shift, time.monotonic() + PAUSE_S)
        with self._clock_lock:
            killed_at = self._killed_at.get(ended)
            self._killed_at = {} if killed_at is None else dict.fromkeys(self._shift, killed_at)

    def _started(self, name: str) -> _Life:
        popen = subprocess.Popen(
            self._shift[name],
            env=self._environment,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        life = _Life(popen)
        pipes = ((popen.stdout, life.stdout), (popen.stderr, life.stderr))
        life.readers = [
            threading.Thread(target=self._read, args=(name, life, pipe, lines), daemon=True)
            for pipe, lines in pipes
        ]
        for reader in life.readers:
            reader.start()
        return life

    def _read(self, name: str, life: _Life, pipe: IO[str], lines: list[str]) -> None:
        for line in pipe:
            lines.append(line.rstrip("\n"))
            if lines is life.stdout and _BATCH_DONE.match(line):
                self._note_batch(name, life)

    def _note_batch(self, name: str, life: _Life) -> None:
        now = time.monotonic()
        life.batches += 1
        with self._clock_lock:
            if life is self._lives.get(name) and not life.killed and name in self._killed_at:
                self.back_s[name].append(now - self._killed_at.pop(name))


def _has_ended(pid: int) -> bool:
    """Return whether a child has ended, but do not reap it, so that its process group is not reused."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end(life: _Life) -> None:
    """Kill the remaining processes of a group, and collect its leader and its output."""
    if life.popen.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(life.popen.pid, signal.SIGKILL)
        life.popen.wait(_WAIT_S)
    for reader in life.readers:
        reader.join(_WAIT_S)
    for pipe in (life.popen.stdout, life.popen.stderr):
        if pipe is not None:
            pipe.close()
