"""Create the picture of the live page's overview, after a demo and with streams that receive events.

make overview
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

from lakehouse.dev.services.processes import free_port
from tests.support.browser import browsing
from tests.support.processes import LAKEHOUSE

PATIENCE_S = 600.0
EVENTS_FOR_S = 30
STREAMS = ("metrics", "calls", "sales", "transactions")


def main(target: Path) -> None:
    """Run the demo and its server in a temporary directory, and write the PNG."""
    with tempfile.TemporaryDirectory() as directory:
        port, home = free_port(), Path(directory, "home")
        environment = os.environ | {"LAKEHOUSE_HOME": str(home)}
        demo = subprocess.Popen([LAKEHOUSE, "demo", "--serve", "--port", str(port)], env=environment)
        try:
            url = f"http://127.0.0.1:{port}"
            wait_for_layers(demo, url)
            of_demo = environment | {"LAKEHOUSE_HOME": str(home / "demo")}
            rate = ["--rate", "200", "--seconds", str(EVENTS_FOR_S)]
            produced = [
                subprocess.Popen([LAKEHOUSE, "produce", stream, *rate], env=of_demo) for stream in STREAMS
            ]
            with browsing(Path(directory)) as page:
                page.go(f"{url}/")
                page.wait("document.querySelectorAll('.streams tbody tr').length === 4")
                time.sleep(EVENTS_FOR_S * 0.8)
                page.screenshot(target, whole=True)
            for one in produced:
                one.wait()
        finally:
            demo.terminate()
            demo.wait()


def wait_for_layers(demo: subprocess.Popen[bytes], url: str) -> None:
    """Wait until the server answers and a process runs every stream."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and demo.poll() is None:
        with suppress(OSError), urllib.request.urlopen(f"{url}/api/v1/status") as answer:  # noqa: S310
            if all(stream["runs"] for stream in json.load(answer)["streams"]):
                return
        time.sleep(1)
    raise SystemExit(f"no picture: the demo did not serve its streams within {PATIENCE_S:.0f} s")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # this also ends the demo
    main(Path(sys.argv[1]))
