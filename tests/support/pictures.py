"""Take pictures of all views of the live page, after a demo and with streams that receive events.

Then execute the notebooks on the demo's lake, and store them with their output.

    make pictures

The pictures are in build/pictures, for people to look at: each view at three widths, light and dark. The
overview is also docs/overview.png.
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
from lakehouse.settings import Settings
from tests.support.browser import Page, browsing
from tests.support.notebooks import store
from tests.support.processes import LAKEHOUSE, ROOT

PATIENCE_S = 600.0
EVENTS_FOR_S = 100
STREAMS = ("metrics", "calls", "sales", "transactions")
SIZES = ((1300, 620), (700, 900), (390, 800))
VIEWS = {
    "overview": ("#/", ".streams tbody tr"),
    "stream": ("#/streams/metrics", ".pipeline text.line"),
    "record": ("#/streams/sales?record=sales-events-v1/0/5", ".find h3"),
    "letters": ("#/letters?status=", "td .badge"),
    "letter": ("", "pre.lines"),
    "series": ("#/gold/metrics_1m", ".uplot"),
    "products": ("#/gold/product_sales", ".bars li"),
    "calls": ("#/gold/call_records", "tbody td"),
    "users": ("#/gold/user_transactions_5m", ".uplot"),
    "checks": ("#/checks", "main h2"),
    "log": ("#/log", "section h2"),
    "api": ("docs", "h2"),
}
"""Each view's address, and what it contains once it is drawn. The letter is the first one."""


def main(target: Path, overview: Path) -> None:
    """Run the demo and its server in a temporary directory, and write the PNGs to the directory `target`."""
    target.mkdir(parents=True, exist_ok=True)
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
                page.resize(*SIZES[0])
                page.go(f"{url}/")
                page.wait("document.querySelectorAll('.streams tbody tr').length === 4")
                time.sleep(EVENTS_FOR_S * 0.8)
                page.screenshot(overview, whole=True)
                take_all(page, url, target)
            for one in produced:
                one.wait()
        finally:
            demo.terminate()
            demo.wait()
        for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
            own = {"lake": str(home / "demo" / "lake"), "home": home / "demo"}
            store(notebook, Settings().changed(own), Path(tempfile.mkdtemp(dir=directory)))


def take_all(page: Page, url: str, target: Path) -> None:
    """Write a picture of each view at each size, in both themes."""
    letter = page.run(
        "fetch('/api/v1/dead-letters?limit=1').then((one) => one.json()).then((one) => one.letters[0].id)"
    )
    for theme in ("light", "dark"):
        page.prefer(theme)
        for width, height in SIZES:
            page.resize(width, height)
            for name, (address, there) in VIEWS.items():
                page.go("about:blank")
                page.go(f"{url}/{address or f'#/letters/{letter}'}")
                page.wait(f"document.querySelector({json.dumps(there)})")
                time.sleep(1)  # charts and the second status
                page.screenshot(target / f"{name}-{width}-{theme}.png", whole=True)


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
    main(Path(sys.argv[1]), Path(sys.argv[2]))
