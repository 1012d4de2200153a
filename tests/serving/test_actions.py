"""Actions: the commands they run, one at a time, with what they print and how they end."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import lakehouse
from lakehouse.serving.app import make_app
from lakehouse.serving.child_commands import Action, Actions, ActionStatus
from lakehouse.serving.problems import Problem
from lakehouse.serving.routes.commands import WantedAction
from lakehouse.serving.security.access import Access
from lakehouse.serving.security.tokens import Scope, Tokens
from tests.support.served_lakes import ServedLake
from tests.support.streams import STREAMS

ECHO = (sys.executable, "-u", "-c", "import sys; print(*sys.argv[1:]); sys.exit(len(sys.argv) - 2)")
STUBBORN = (
    sys.executable,
    "-u",
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('began'); time.sleep(600)",
)
SLOW = (sys.executable, "-u", "-c", "import time; print('began'); time.sleep(600)")


@pytest.mark.parametrize(
    ("wanted", "command"),
    [
        (
            {"action": "replay", "stream": ["metrics"], "rule": "late"},
            ["dead-letters", "replay", "--stream=metrics", "--rule=late"],
        ),
        (
            {"action": "replay", "topic": "-calls.v1", "rule": "late", "dryRun": True},
            ["dead-letters", "replay", "--topic=-calls.v1", "--rule=late", "--dry-run", "--format=json"],
        ),
        (
            {"action": "discard", "topic": "a" * 249, "until": "2026-03-01T00:00:00Z"},
            ["dead-letters", "discard", f"--topic={'a' * 249}", "--until=2026-03-01T00:00:00Z"],
        ),
        (
            {"action": "replay", "all": True, "dryRun": True},
            ["dead-letters", "replay", "--all", "--dry-run", "--format=json"],
        ),
        ({"action": "discard", "all": True}, ["dead-letters", "discard", "--all"]),
        ({"action": "audit"}, ["audit"]),
        ({"action": "expect", "table": ["gold.metrics_1m"]}, ["expect", "--", "gold.metrics_1m"]),
        ({"action": "rebuild", "layer": "gold", "stream": ["sales"]}, ["rebuild", "--stream=sales", "gold"]),
        ({"action": "maintain"}, ["maintain"]),
    ],
)
def test_an_action_is_a_command_of_the_command_line(wanted: Any, command: list[str]) -> None:
    assert WantedAction(**wanted).command() == command


@pytest.mark.parametrize(
    ("body", "parameter"),
    [
        ({"action": "format"}, "action"),
        ({"action": "audit", "rule": "late"}, "rule"),
        ({"action": "maintain", "topic": "metrics-events"}, "topic"),
        ({"action": "replay", "topic": "a b"}, "topic"),
        ({"action": "replay", "topic": "metrics-events\n"}, "topic"),
        ({"action": "discard", "topic": "a" * 250}, "topic"),
        ({"action": "rebuild"}, "layer"),
        ({"action": "discard", "all": True, "dryRun": True}, "dryRun"),
        ({"action": "expect", "table": ["--version=1"]}, "table.0"),
        ({"action": "audit", "stream": ["--help"]}, "stream.0"),
        ({"action": "audit", "program": "sh"}, "program"),
    ],
)
def test_what_no_command_has_is_refused(client: TestClient, body: Any, parameter: str) -> None:
    found = client.post("/api/v1/actions", json=body)
    assert found.status_code == 422
    assert [one["parameter"] for one in found.json()["errors"]] == [parameter]
    assert client.get("/api/v1/actions").json() == {"actions": [], "next": None}
    assert client.get("/api/v1/actions/nothing").status_code == 404
    assert client.delete("/api/v1/actions/nothing").status_code == 404


def test_an_action_ends_as_its_command_does() -> None:
    async def scenario() -> None:
        actions = Actions(ECHO)
        for command, code, status in (
            (["audit"], 0, ActionStatus.SUCCEEDED),
            (["a", "b"], 1, ActionStatus.FAILED),
        ):
            action = await actions.start(command, "ada")
            while action.status is ActionStatus.RUNNING:
                await asyncio.sleep(0.01)
            assert (action.exit_code, action.status, list(action.lines)) == (
                code,
                status,
                [" ".join(command)],
            )
        assert [one.command for one in actions.newest()] == [("a", "b"), ("audit",)]

    asyncio.run(scenario())


def test_the_result_of_an_action_is_the_json_that_it_prints(lake: ServedLake) -> None:
    said = 'import sys; print("warm", file=sys.stderr); print(\'{\\n"would_pass": 2,\'); '
    said += """print('"failing": {"not_json": 1}}')"""
    app = make_app(lake.settings, STREAMS, Access(None), actions=Actions((sys.executable, "-c", said)))
    with TestClient(app, base_url="http://localhost:8080") as client:
        wanted = {"action": "replay", "all": True, "dryRun": True}
        action = client.post("/api/v1/actions", json=wanted).json()
        assert (action["status"], action["result"]) == ("running", None)
        while action["status"] == "running":
            action = client.get(f"/api/v1/actions/{action['id']}").json()
    assert action["result"] == {"wouldPass": 2, "failing": {"not_json": 1}}
    assert sorted(action["lines"]) == ['"failing": {"not_json": 1}}', '"would_pass": 2,', "warm", "{"]


def test_one_action_runs_at_a_time_and_leaves_with_the_server() -> None:
    async def scenario() -> None:
        actions = Actions(SLOW)
        action = await actions.start(["audit"], "ada")
        with pytest.raises(Problem, match="audit, started by ada, is running") as refused:
            await actions.start(["maintain"], "bob")
        assert (refused.value.status, refused.value.members) == (409, {"id": action.id})
        while not action.lines:
            await asyncio.sleep(0.01)
        await actions.close()
        assert (action.exit_code, action.status) == (-15, ActionStatus.FAILED)

    asyncio.run(scenario())


def ended(client: TestClient, action: Any) -> Any:
    while action["status"] == "running":
        action = client.get(f"/api/v1/actions/{action['id']}").json()
    return action


def test_an_action_is_cancelled_by_who_may_operate_and_the_next_one_runs(
    lake: ServedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakehouse.serving.child_commands._PATIENCE_S", 0.1)
    tokens = Tokens(lake.settings.home)
    may = {"Authorization": f"Bearer {tokens.add('ada', [Scope.READ, Scope.OPERATE])}"}
    reads = {"Authorization": f"Bearer {tokens.add('bob', [Scope.READ])}"}
    app = make_app(lake.settings, STREAMS, Access(tokens), actions=Actions(STUBBORN))
    with TestClient(app, base_url="http://localhost:8080", headers=may) as client:
        action = client.post("/api/v1/actions", json={"action": "audit"}).json()
        path = f"/api/v1/actions/{action['id']}"
        while not client.get(path).json()["lines"]:
            pass
        assert client.delete(path, headers=reads).status_code == 403
        found = client.delete(path)
        assert (found.status_code, found.json()["cancelledBy"]) == (202, "ada")
        action = ended(client, action)
        assert (action["status"], action["exitCode"]) == ("cancelled", -9)  # it ignored SIGTERM
        assert client.delete(path).json()["status"] == "cancelled"
        assert client.post("/api/v1/actions", json={"action": "audit"}).status_code == 202


def test_an_action_that_takes_too_long_is_ended_and_says_so() -> None:
    async def scenario() -> Action:
        actions = Actions(SLOW, deadline_s=0.01)
        action = await actions.start(["audit"], "ada")
        while action.status is ActionStatus.RUNNING:
            await asyncio.sleep(0.01)
        return action

    action = asyncio.run(scenario())
    assert (action.status, action.exit_code) == (ActionStatus.FAILED, -15)
    assert action.lines[-1] == "stopped after 0.01 s, the limit set by --action-hours"


def test_an_action_is_this_installations_command_whatever_lies_where_the_server_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lakehouse.py").write_text("print('another lakehouse')")
    (tmp_path / "json.py").write_text("print('another json')")
    monkeypatch.setenv("PYTHONPATH", str(Path(lakehouse.__file__).parents[1]))
    monkeypatch.chdir(tmp_path)

    async def scenario() -> Action:
        actions = Actions()
        action = await actions.start(["tokens", "list"], "ada")
        while action.status is ActionStatus.RUNNING:
            await asyncio.sleep(0.01)
        return action

    action = asyncio.run(scenario())
    assert (action.exit_code, list(action.lines)) == (0, [])


def test_long_lines_of_an_action_are_cut() -> None:
    async def scenario() -> Action:
        action = await Actions((sys.executable, "-c", "print('x' * 10**7)")).start([], "ada")
        while action.status is ActionStatus.RUNNING:
            await asyncio.sleep(0.01)
        return action

    assert list(asyncio.run(scenario()).lines) == ["x" * 2_000 + " …"]
