"""Runs stories: new ones by seed, or kept ones; a difference is shrunk and printed as lines to keep."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from pathlib import Path

import psutil

for variable in [name for name in os.environ if name.startswith("LAKEHOUSE_") and name != "LAKEHOUSE_CACHE"]:
    del os.environ[variable]

from tests.simulation.coverage import Coverage  # noqa: E402
from tests.simulation.machine import LENGTH, Ended, kind_of, make, read_story, run, shrunk  # noqa: E402
from tests.simulation.services import Shared, shared  # noqa: E402


def main() -> int:
    """Return 1 if a story has found a difference."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the number of the first story")
    parser.add_argument("--stories", type=int, default=100)
    parser.add_argument("--minutes", type=float, help="stop after so long")
    parser.add_argument("--length", type=int, default=LENGTH)
    parser.add_argument("--story", type=Path, action="append", default=[], help="a file with a story")
    parser.add_argument("--shrink", type=int, default=40, help="at most so many runs to shrink a difference")
    parser.add_argument("--keep", type=Path, help="a directory for the shrunk stories")
    given = parser.parse_args()
    with shared() as found:
        return _kept(found, given.story) if given.story else _new(found, given)


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
    _shares(found)
    return int(failed > 0)


def _new(found: Shared, given: argparse.Namespace) -> int:
    began, coverage, kinds = time.monotonic(), Coverage(), Counter[str]()
    spent = 0.0
    for number in range(given.first, given.first + given.stories):
        if given.minutes is not None and time.monotonic() - began > 60 * given.minutes:
            break
        one = time.monotonic()
        told = run(found, make(given.seed, number, given.length))
        spent += time.monotonic() - one
        coverage.add(told)
        if told.differences:
            kind = kind_of(told.differences)
            kinds[kind] += 1
            if kinds[kind] <= 2:
                _differs(found, told, f"{given.seed}-{number}", given)
        rate = 3600 * coverage.stories / spent
        print(
            f"story {given.seed}/{number}: {len(told.differences)} differences, {rate:.0f} stories an hour",
            flush=True,
        )
    print("\n".join(coverage.lines()))
    print(f"differences by kind: {dict(kinds.most_common())}")
    _shares(found)
    return int(bool(kinds))


def _differs(found: Shared, told: Ended, name: str, given: argparse.Namespace) -> None:
    print(
        f"story {name} differs:\n{told.story}\n" + "\n".join(f"  # {line}" for line in told.differences),
        flush=True,
    )
    best = shrunk(found, told, given.shrink)
    text = "\n".join([f"# {line}" for line in best.differences] + [str(best.story)])
    print(f"shrunk:\n{text}\n", flush=True)
    if given.keep is not None:
        given.keep.mkdir(parents=True, exist_ok=True)
        (given.keep / f"{name}.txt").write_text(text + "\n")


def _shares(found: Shared) -> None:
    own = psutil.Process()
    used = sum(sum(one.cpu_times()[:2]) for one in (own, *own.children(recursive=True)))
    print(f"{used:.0f} s of CPU, with the session and the services; seconds by what was done:")
    for what, seconds in sorted(found.seconds.items(), key=lambda one: -one[1])[:24]:
        print(f"  {seconds:8.1f}  {what}")


if __name__ == "__main__":
    sys.exit(main())
