"""The requests that one trip of a stream sends to its store, which users pay for."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from lakehouse.dev.services.services import Endpoints
from tests.support import s3_proxy as proxy
from tests.support.processes import LAKEHOUSE, place, running
from tests.support.seaweed import settings_of

DATABASE = 13
WARM, TRIPS = 6, 12
RATE = 200
MOST = 25
"""PUTs and LISTs per trip; the store's provider charges ten times as much for them as for GETs and HEADs."""
LANDED = re.compile(r"/bronze/metrics_events/_delta_log/\d{20}\.json$")


@pytest.mark.soak
def test_a_trip_of_metrics_puts_and_lists_little(store: str, services: Endpoints, tmp_path: Path) -> None:
    with place(tmp_path / "home", services, DATABASE) as here, proxy.before(store) as between:
        environment = here.environment | settings_of(between.endpoint, "requests")
        live = [LAKEHOUSE, "run", "all", "--stream", "metrics", "--trigger", "2 seconds"]
        load = [LAKEHOUSE, "produce", "metrics", "--rate", str(RATE), "--seconds", "1000"]
        with (
            running(live, environment, tmp_path / "live") as run,
            running(load, environment, tmp_path / "load"),
        ):
            run.await_(lambda: landed(between.seen) > WARM, timeout_s=600)
            begun, before = len(between.seen), landed(between.seen)
            run.await_(lambda: landed(between.seen) >= before + TRIPS, timeout_s=600)
            seen = between.seen[begun:]
    counts = Counter(request.method for request in seen)
    print({method: round(times / TRIPS, 1) for method, times in sorted(counts.items())}, "requests a trip")
    assert counts["PUT"] / TRIPS + counts["LIST"] / TRIPS <= MOST


def landed(seen: list[proxy.Request]) -> int:
    """Return the number of commits to bronze."""
    return sum(one.method == "PUT" and LANDED.search(one.path) is not None for one in list(seen))
