"""Run new or kept stories. If a story ends in a difference, shrink it and print it as lines to keep."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from itertools import islice
from multiprocessing import get_context
from pathlib import Path

for variable in [name for name in os.environ if name.startswith("LAKEHOUSE_") and name != "LAKEHOUSE_CACHE"]:
    del os.environ[variable]

from tests.simulation.coverage import Coverage  # noqa: E402
from tests.simulation.forms import FORMS  # noqa: E402
from tests.simulation.machine import LENGTH, Ended, kind_of, read_story, run  # noqa: E402
from tests.simulation.pool import begin, cpu_s, one  # noqa: E402
from tests.simulation.services import Shared, shared  # noqa: E402


def main() -> int:
    """Return 1 if a story has found a difference."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the number of the first story")
    parser.add_argument("--stories", type=int, default=100)
    parser.add_argument("--minutes", type=float, help="stop after so long")
    parser.add_argument("--length", type=int, default=LENGTH)
    parser.add_argument("--form", choices=sorted(FORMS), help="stories of this form alone")
    parser.add_argument("--story", type=Path, action="append", default=[], help="a file with a story")
    parser.add_argument("--processes", type=int, default=2, help="how many run at once")
    parser.add_argument("--shrink", type=int, default=40, help="at most so many runs to shrink a difference")
    parser.add_argument("--keep", type=Path, help="a directory for the shrunk stories")
    given = parser.parse_args()
    if not given.story:
        return _new(given)
    with shared() as found:
        return _kept(found, given.story)


def _kept(found: Shared, files: list[Path]) -> int:
    failed = 0
    for file in files:
        began = time.monotonic()
        told = run(found, read_story(file.read_text()))
        failed += bool(told.differences)
        print(f"{file.name}: {len(told.differences)} differences, {time.monotonic() - began:.1f} s")
        print(
            "\n".join(f"    {line}" for line in (*told.differences, *told.notices, *told.killed)), flush=True
        )
    _shares(cpu_s(), found.seconds)
    return int(failed > 0)


def _new(given: argparse.Namespace) -> int:
    """Run new stories in processes, each with its own services, and count what they have reached."""
    began, coverage, kinds = time.monotonic(), Coverage(), Counter[str]()
    cpu = dict[int, float]()
    asked = given.seed, given.length, given.form, given.shrink
    numbers = iter(range(given.first, given.first + given.stories))
    with ProcessPoolExecutor(given.processes, get_context("spawn"), begin) as pool:
        waiting = {pool.submit(one, *asked, number) for number in islice(numbers, given.processes)}
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for one_done in (story.result() for story in done):
                told = one_done.told
                coverage.add(told)
                cpu[one_done.process] = one_done.cpu_s
                if told.differences:
                    kinds[kind_of(told.differences)] += 1
                    _differs(told, one_done.best, f"{given.seed}-{one_done.number}", given)
                rate = 3600 * coverage.stories / (time.monotonic() - began)
                said = f"{len(told.differences)} differences, {rate:.0f} stories an hour"
                print(f"story {given.seed}/{one_done.number}: {said}", flush=True)
                is_over = given.minutes is not None and time.monotonic() - began > 60 * given.minutes
                more = () if is_over else islice(numbers, 1)
                waiting |= {pool.submit(one, *asked, another) for another in more}
    print("\n".join(coverage.lines()))
    print(f"differences by kind: {dict(kinds.most_common())}")
    _shares(sum(cpu.values()), coverage.seconds)
    return int(bool(kinds))


def _differs(told: Ended, best: Ended | None, name: str, given: argparse.Namespace) -> None:
    print(
        f"story {name} differs:\n{told.story}\n" + "\n".join(f"  # {line}" for line in told.differences),
        flush=True,
    )
    if best is None:
        return
    text = "\n".join([f"# {line}" for line in best.differences] + [str(best.story)])
    print(f"shrunk:\n{text}\n", flush=True)
    if given.keep is not None:
        given.keep.mkdir(parents=True, exist_ok=True)
        (given.keep / f"{name}.txt").write_text(text + "\n")


def _shares(used_s: float, seconds: Mapping[str, float]) -> None:
    print(f"{used_s:.0f} s of CPU, with sessions and services; seconds by what was done:")
    for what, spent in sorted(seconds.items(), key=lambda one: -one[1])[:24]:
        print(f"  {spent:8.1f}  {what}")


if __name__ == "__main__":
    sys.exit(main())
