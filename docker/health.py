"""Check that the process that serves telemetry responds; this is the image's health check.

Exits with 0 if it does, or if this container serves no telemetry (LAKEHOUSE_TELEMETRY_PORT is not set), and
with 1 otherwise.
"""

from __future__ import annotations

import os
import sys
import urllib.request
from http import HTTPStatus

TIMEOUT_S = 4


def is_live(port: str) -> bool:
    """Return whether /health/live answers 200 on this port of the container, or true if there is no port."""
    if port in {"", "-1"}:
        return True
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{int(port)}/health/live", timeout=TIMEOUT_S) as answer:
            return bool(answer.status == HTTPStatus.OK)
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(not is_live(os.environ.get("LAKEHOUSE_TELEMETRY_PORT", "")))
