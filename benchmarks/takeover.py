"""The time until new rows appear after a run is killed while another run stands by.

python -m benchmarks.takeover --rate 5000 --kills 10

Two `lakehouse run all --standby` use one lake while events arrive. The active run is killed repeatedly, and
started again to stand by for the other run. The benchmark measures the time from each kill to the first new
row in Redis and to the first new message in the topic.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Annotated

import typer

from benchmarks.ages import watching
from benchmarks.applications import Pipeline, pipeline
from benchmarks.bench import bench_services, console
from benchmarks.live import Plan, Producers, places_of_metrics
from lakehouse.common.errors import LakehouseError
from lakehouse.settings import Settings

_MARGIN_S = 0.3  # rows that were sent just before the kill may be seen shortly after it
_PATIENCE_S = 120.0

app = typer.Typer(add_completion=False)


@app.command()
def takeover(
    *,
    rate: Annotated[float, typer.Option(min=1, help="Metrics events per second.")] = 5_000,
    kills: Annotated[int, typer.Option(min=1, help="How often the active run is killed.")] = 10,
    settle_seconds: Annotated[
        float, typer.Option(min=1, help="How many seconds each run is active before it is killed.")
    ] = 30,
) -> None:
    """Kill the active run repeatedly, and print how soon the other run has sent new rows."""
    with bench_services() as settings, ExitStack() as stack:
        plan = Plan(["metrics"], rate, 3_600, 0)
        homes = [settings.changed({"home": settings.home / name}) for name in "ab"]
        runs = [stack.enter_context(_standby(home)) for home in homes]
        _await(lambda: any(map(_works, runs)))
        producers = Producers(plan, settings, plan.seconds, seed=1)
        stack.callback(producers.stop)
        watcher = stack.enter_context(watching(places_of_metrics(settings)))
        killed = []
        for number in range(1, kills + 1):
            working, other = runs if _works(runs[0]) else reversed(runs)
            _await(partial(_stands_by, other))
            time.sleep(settle_seconds)
            killed.append(time.time())
            working.kill()
            _await(partial(_works, other))
            console.print(f"kill {number}: the other run is active {time.time() - killed[-1]:.1f} s later")
            time.sleep(settle_seconds / 2)
            working.popen.wait()
            working.start(anew=True)
        time.sleep(settle_seconds)
        for place, ages in watcher.end().items():
            waits = [ages.first_seen_s(at + _MARGIN_S) - at for at in killed]
            shown = ", ".join(f"{one:.1f}" for one in waits)
            console.print(f"first new row in {place}, s: {shown}; median {statistics.median(waits):.1f}")


def _standby(settings: Settings) -> AbstractContextManager[Pipeline]:
    settings.home.mkdir(parents=True, exist_ok=True)
    return pipeline(settings, "--stream", "metrics", "--standby")


def _last_word(one: Pipeline) -> str:
    """Return the last state that a living run has printed, or an empty text if it has printed none."""
    if one.popen.poll() is not None:
        return ""
    words = [line["message"].partition(" ")[0].rstrip(";:") for line in one.lines() if "message" in line]
    return next((word for word in reversed(words) if word in {"running", "warmed"}), "")


def _works(one: Pipeline) -> bool:
    return _last_word(one) == "running"


def _stands_by(one: Pipeline) -> bool:
    return _last_word(one) == "warmed"


def _await(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not is_so():
        if time.monotonic() > deadline:
            raise LakehouseError("the other run is neither standing by nor active")
        time.sleep(0.05)


if __name__ == "__main__":
    try:
        app()
    except LakehouseError as error:
        raise SystemExit(f"error: {error}") from error
