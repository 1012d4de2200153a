"""`lakehouse demo --serve`, run as someone trying it out would run it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import httpx
import psutil
import pytest

from tests.support.pipeline import await_
from tests.support.processes import LAKEHOUSE, LEAVE_TIMEOUT_S

DEMO_TIMEOUT_S = 1800.0


def of_home(home: Path) -> list[str]:
    """Return the processes whose command lines or environments mention a home."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(home) in f"{process.cmdline()} {process.environ()}" and process.pid != os.getpid():
                found.append(" ".join(process.cmdline())[:200])
        except psutil.Error:
            continue
    return found


@pytest.mark.soak
def test_the_demo_leaves_all_running_until_it_is_asked_to_stop(tmp_path: Path) -> None:
    home, log = tmp_path / "home", tmp_path / "log"
    environment = os.environ | {"LAKEHOUSE_HOME": str(home), "COLUMNS": "200"}
    with log.open("wb") as file:
        command = [LAKEHOUSE, "demo", "--serve", "--port", "0"]
        demo = subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=file, stderr=file)

    def address() -> str | None:
        text = log.read_text(encoding="utf-8")
        assert demo.poll() is None, text
        found = re.search(r"(http://\S+:\d+) answers, and all layers are running", text)
        return None if found is None else found[1]

    try:
        await_(lambda: address() is not None, DEMO_TIMEOUT_S)
        at = address()
        path = f"{at}/api/v1/tables/user_transactions_5m/rows?user_id=nobody"
        assert httpx.get(path, timeout=60).json()["rows"] == []

        def accepted() -> int:
            status = httpx.get(f"{at}/api/v1/status", timeout=60).json()
            assert (status["lakeReason"], status["brokerReason"]) == (None, None)
            tables = next(one for one in status["streams"] if one["name"] == "transactions")["tables"]
            return int(next(one for one in tables if one["name"] == "silver.transactions")["rows"])

        before = accepted()
        sent = httpx.post(f"{at}/produce?events=50&stream=transactions", timeout=60)
        assert sent.json()["acknowledged"] == 50
        await_(lambda: accepted() == before + 50, LEAVE_TIMEOUT_S)
        demo.send_signal(signal.SIGTERM)
        assert demo.wait(LEAVE_TIMEOUT_S) == 0
    finally:
        demo.kill()
        demo.wait()
    text = log.read_text(encoding="utf-8")
    assert "Traceback" not in text
    assert "lakehouse serve" in text
    await_(lambda: of_home(home) == [], LEAVE_TIMEOUT_S)  # Java ends a moment after Python
