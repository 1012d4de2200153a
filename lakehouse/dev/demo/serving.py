"""The processes that `lakehouse demo --serve` runs until it is stopped: all layers, and the server.

The layers and the server are the ordinary commands. Each runs in a separate process, and writes its output to
a file in the demo's home. If one process exits, the other is stopped.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lakehouse.common.errors import ServiceError
from lakehouse.common.terminal import Console
from lakehouse.dev.services.processes import dying_with_parent
from lakehouse.engine.runtime.signals import stopping_here
from lakehouse.settings import Settings

_POLL_S = 0.2
_PATIENCE_S = 120.0  # enough to finish a micro-batch
_ADDRESS = re.compile(r"running on (http://\S+:\d+)")


def serve_until_stopped(settings: Settings, port: int, console: Console) -> None:
    """Run all layers and the server until SIGTERM or Ctrl-C, and return once both processes have exited.

    If `port` is 0, the server uses any free port. Raises ServiceError if either process exits by itself. The
    message names the log file.
    """
    with ExitStack() as stack:
        stopping = stack.enter_context(stopping_here()).event
        # The server starts first and therefore stops last.
        serve = ["serve", "--port", str(port), "--enable-produce"]
        server = stack.enter_context(_started("server", serve, settings))
        jobs = stack.enter_context(_started("jobs", ["run", "all"], settings))
        address = None
        while not stopping.wait(_POLL_S):
            for child in (server, jobs):
                child.require()
            found = None if address else _ADDRESS.search(server.log.read_text(encoding="utf-8"))
            if found:
                address = found[1]
                console.print()
                console.print(f"{address} answers, and all layers are running; Ctrl-C stops both")
                send = f"curl -X POST '{address}/produce?events=1000&stream=metrics'"
                console.print(f"to send events: {send}", soft_wrap=True)
        console.print("stopping; work in progress finishes first")


class _Child:
    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.process = process
        self.log = log

    def require(self) -> None:
        """Raise ServiceError if the process has exited."""
        code = self.process.poll()
        if code is not None:
            raise ServiceError(f"the {self.name} process exited with code {code}; see {self.log}")


@contextmanager
def _started(name: str, command: list[str], settings: Settings) -> Iterator[_Child]:
    """Run a command during the block, in a separate session that the terminal's Ctrl-C does not reach."""
    log = settings.home / f"{name}.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            dying_with_parent([sys.executable, "-P", "-m", "lakehouse", *command]),
            env=os.environ | _environment(settings),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield _Child(name, process, log)
    finally:
        process.terminate()
        try:
            process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _environment(settings: Settings) -> Mapping[str, str]:
    own = {
        "HOME": str(settings.home),
        "LAKE": settings.lake,
        "TOPICS": "{}",
        "KAFKA_BOOTSTRAP_SERVERS": settings.kafka.bootstrap_servers,
        "REDIS_URL": settings.redis.url.get_secret_value(),
    }
    return {f"LAKEHOUSE_{name}": value for name, value in own.items()}
