"""/api/v1/events: listeners are told of every new version once, including those they missed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import ExitStack, aclosing

import pytest

from lakehouse.serving.problems import Problem
from lakehouse.serving.reading.changes import Changes


class Tables:
    """Versions that a test commits, and how often they were checked."""

    def __init__(self) -> None:
        self.versions = {"gold.a": (1, 0)}
        self.looks = 0

    def look(self) -> dict[str, tuple[int, int]]:
        self.looks += 1
        return dict(self.versions)


async def told(events: AsyncIterator[str]) -> tuple[str, str, object]:
    """Return the id, name and body of the next event."""
    text = await anext(events)
    number, name, data = (line.partition(": ")[2] for line in text.strip().split("\n"))
    return number, name, json.loads(data)


def test_one_look_serves_all_who_listen_and_each_is_told_once() -> None:
    async def scenario() -> None:
        tables = Tables()
        changes = Changes(tables.look, every_s=0.01)
        with changes.place("ada"), changes.place("bob"):
            one, other = changes.listen(None), changes.listen(None)
            for events in (one, other):
                _, name, body = await told(events)
                assert (name, body) == (
                    "standing",
                    {"tables": [{"table": "gold.a", "generation": 1, "version": 0}]},
                )
            tables.versions["gold.b"] = (2, 5)
            looks = tables.looks
            first, second = await asyncio.gather(told(one), told(other))
            assert first == second
            assert first[1:] == ("changed", {"table": "gold.b", "generation": 2, "version": 5})
            assert tables.looks > looks
        looks = tables.looks
        await asyncio.sleep(0.1)
        assert tables.looks <= looks + 1  # one may have been under way; nobody listens any more

    asyncio.run(scenario())


def test_who_comes_again_is_told_what_he_has_missed() -> None:
    async def scenario() -> None:
        tables = Tables()
        changes = Changes(tables.look, every_s=0.01)
        async with aclosing(changes.listen(None)) as stays, aclosing(changes.listen(None)) as leaves:
            await told(stays)
            last, *_ = await told(leaves)
            await leaves.aclose()
            for version in (1, 2):
                tables.versions["gold.a"] = (1, version)
                await told(stays)
            async with aclosing(changes.listen(last)) as again:
                missed = [await told(again) for _ in range(2)]
            assert [body for *_, body in missed] == [
                {"table": "gold.a", "generation": 1, "version": version} for version in (1, 2)
            ]
            for unknown in ("another-1", f"{last.split('-')[0]}-999", "x", f"{last.split('-')[0]}-²"):
                async with aclosing(changes.listen(unknown)) as events:
                    assert (await told(events))[1] == "standing"

    asyncio.run(scenario())


def test_a_heartbeat_comes_where_nothing_does() -> None:
    async def scenario() -> None:
        changes = Changes(Tables().look, every_s=60, heartbeat_s=0.01)
        async with aclosing(changes.listen(None)) as events:
            await told(events)
            assert await anext(events) == ": nothing has changed\n\n"

    asyncio.run(scenario())


def test_more_than_two_hundred_may_not_listen_and_twenty_of_a_caller() -> None:
    changes = Changes(Tables().look)
    with ExitStack() as places:
        for number in range(200):
            places.enter_context(changes.place(f"caller {number // 20}"))
        with pytest.raises(Problem, match="200 of 200 in total"), changes.place("another"):
            pass
    with ExitStack() as places:
        for _ in range(20):
            places.enter_context(changes.place("ada"))
        with pytest.raises(Problem, match=r"20 of 20 .*for ada") as refused, changes.place("ada"):
            pass
        assert refused.value.status == 429
        with changes.place("bob"):
            pass
    with changes.place("ada"):
        pass


def test_who_may_listen_no_longer_is_let_go_though_nothing_changes() -> None:
    async def scenario() -> list[str]:
        tokens = [True]
        events = Changes(Tables().look, every_s=60).listen(None, lambda: tokens[0])
        found = [await anext(events)]
        tokens.clear()
        tokens.append(False)
        return found + [one async for one in events]

    assert len(asyncio.run(scenario())) == 1
