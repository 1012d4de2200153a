"""A status that a page in the browser shows instead of that of the server, as bad as a test needs it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tests.support.browser import Page
from tests.support.served_lakes import Row

NAMES = "[...document.querySelectorAll('.streams th a')].map((one) => one.innerText).join()"
_NO_STORES: Row = {"sizeBytes": None, "stores": []}
_DONE_AT = {"bronze": "11:59", "silver": "11:58", "gold": "11:57", "export": "11:56"}


def seen(name: str, word: str, records: int = 0, **values: Any) -> Row:
    """Return a stream as /api/v1/status describes it at noon; its records have waited for 13 minutes."""
    lag = {"records": records, "seconds": 780.0 if records else 0.0}
    backlogs = [{"layer": layer, **lag} for layer in _DONE_AT]
    queries = [
        {"name": f"{layer}.a", "layer": layer, "done": 3, "doneAt": f"2026-05-04T{time}:00Z", **_NO_STORES}
        for layer, time in _DONE_AT.items()
    ]
    reason = f"{name} is {word} for a reason"
    health = {"word": word, "reason": reason, "since": None, "isUnrun": False, "todo": "Look it up"}
    nothing = dict.fromkeys(("gate", "newestEvent", "freshnessS", "audit", "lakeReason"))
    empty: dict[str, list[Row]] = {
        kind: [] for kind in ("partitions", "layers", "tables", "eventTimes", "refused")
    }
    own = {"name": name, "health": health, "backlogs": backlogs, "waiting": backlogs[0], "queries": queries}
    return {**nothing, **empty, **own, "runs": [run()], "openLetters": 12_345, **values}


def run(*queries: Row) -> Row:
    return {"host": "h", "pid": 7, "layers": ["gold"], "beatAt": "2026-05-04T12:00:00Z", "queries": queries}


def show(page: Page, streams: Sequence[Row]) -> None:
    """Let the page see these streams from now on, and wait until it shows them."""
    reasons = dict.fromkeys(("lakeReason", "brokerReason", "eventsReason"))
    summary = "1 of 3 streams is stopped; no record waits"
    show_answer(page, {"at": "2026-05-04T12:00:00Z", "summary": summary, "streams": streams, **reasons})


def show_answer(page: Page, answer: Row) -> None:
    """Let the page see this answer of /api/v1/status from now on, and wait until it shows its streams."""
    streams = answer["streams"]
    page.run(f"""(() => {{
        window.asked ??= window.fetch;
        window.fetch = (path, options) => path === '/api/v1/status'
            ? Promise.resolve(new Response({json.dumps(json.dumps(answer))}))
            : window.asked(path, options);
    }})()""")
    page.wait(f"{NAMES} === {json.dumps(','.join(str(one['name']) for one in streams))}")
