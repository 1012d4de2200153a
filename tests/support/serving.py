"""`lakehouse serve` as a process with its own port."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.processes import LAKEHOUSE
from tests.support.served_lakes import ServedLake


def environment(lake: ServedLake) -> dict[str, str]:
    settings = lake.settings
    own = {
        "HOME": str(settings.home),
        "LAKE": settings.lake,
        "REDIS_URL": settings.redis.url.get_secret_value(),
    }
    return os.environ | {f"LAKEHOUSE_{name}": value for name, value in own.items()}


@contextmanager
def serving(lake: ServedLake, log: Path, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Run a server as a process, and yield the process and its local URL."""
    with log.open("wb") as file:
        command = [LAKEHOUSE, "serve", "--port", "0", *options]
        server = subprocess.Popen(command, env=environment(lake), stderr=file, cwd=log.parent)
    try:
        while not (found := re.search(r"running on (https?)://\S+:(\d+)", log.read_text(encoding="utf-8"))):
            assert server.poll() is None, log.read_text(encoding="utf-8")
            time.sleep(0.05)
        yield server, f"{found[1]}://127.0.0.1:{found[2]}"
    finally:
        server.kill()
        server.wait()
