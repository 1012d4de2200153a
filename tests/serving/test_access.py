"""Tokens, scopes, names of this host, other sites' pages, and request limits."""

from __future__ import annotations

import asyncio
import json
import re
import stat
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lakehouse.cli.commands.tokens import app as tokens_command
from lakehouse.common.errors import SettingsError
from lakehouse.serving.problems import Problem
from lakehouse.serving.security.access import Access, Entrance, is_loopback
from lakehouse.serving.security.limits import Bodies, Rate, network_of
from lakehouse.serving.security.sessions import Sessions
from lakehouse.serving.security.tokens import Caller, Scope, Tokens, tokens_of
from lakehouse.settings import load_settings
from tests.support.served_lakes import MakeClient, ServedLake

PATH, SESSION = "/api/v1/streams", "/api/v1/session"


def test_a_token_is_kept_as_a_hash_in_a_file_of_its_owner(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "home")
    secret = tokens.add("ada", [Scope.READ, Scope.PAYLOAD])
    assert stat.S_IMODE(tokens.path.stat().st_mode) == 0o600
    text = tokens.path.read_text(encoding="utf-8")
    assert secret not in text
    assert [one["name"] for one in json.loads(text)] == ["ada"]
    caller = tokens.caller(secret)
    assert caller is not None
    assert (caller.name, set(caller.scopes)) == ("ada", {Scope.READ, Scope.PAYLOAD})
    assert tokens.caller(secret + "x") is None
    with pytest.raises(SettingsError, match="the token ada already exists"):
        tokens.add("ada", [Scope.READ])
    Tokens(tmp_path / "home").remove("ada")
    assert tokens.caller(secret) is None
    with pytest.raises(SettingsError, match="there is no token ada"):
        tokens.remove("ada")


def test_a_server_with_a_home_of_its_own_keeps_its_tokens_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a cluster, executors can write to HOME, and whoever can write tokens may do everything."""
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path / "shared"))
    monkeypatch.setenv("LAKEHOUSE_SERVER_HOME", str(tmp_path / "own"))
    added = CliRunner().invoke(tokens_command, ["add", "ada"])
    caller = tokens_of(load_settings()).caller(added.stdout.strip())
    assert caller == Caller("ada", frozenset({Scope.READ}))
    assert [path.name for path in tmp_path.glob("*/tokens.json")] == ["tokens.json"]
    assert (tmp_path / "own" / "tokens.json").is_file()


@pytest.mark.parametrize("content", ["", '[{"name": "ada", "sha'])
def test_tokens_that_a_power_failure_has_cut_off_let_nobody_in_and_the_way_out_is_named(
    tmp_path: Path, content: str
) -> None:
    tokens = Tokens(tmp_path)
    secret = tokens.add("ada", [Scope.READ])
    tokens.path.write_text(content)
    way_out = "so no token is accepted: .* Restore a copy of it, or delete it and add every token again"
    for call in (lambda: tokens.caller(secret), lambda: tokens.add("bob", [Scope.READ])):
        with pytest.raises(SettingsError, match=way_out):
            call()
    tokens.path.unlink()
    assert tokens.caller(tokens.add("ada", [Scope.READ])) is not None


def test_a_request_needs_a_token_with_the_scope(make_client: MakeClient, lake: ServedLake) -> None:
    tokens = Tokens(lake.settings.home)
    client = make_client(Access(tokens), produces=True)
    found = client.get(PATH)
    assert (found.status_code, found.headers["www-authenticate"]) == (401, "Bearer")
    reader, operator = tokens.add("reader", [Scope.READ]), tokens.add("operator", [Scope.OPERATE])

    def ask(method: str, path: str, secret: str) -> int:
        found = client.request(method, path, headers={"Authorization": f"Bearer {secret}"})
        return int(found.status_code)

    assert ask("GET", PATH, reader) == 200
    assert ask("GET", PATH, operator) == 403
    assert ask("GET", PATH, reader[:-1]) == 401
    assert ask("POST", "/produce?events=0", reader) == 403
    assert ask("POST", "/produce?events=0", operator) == 422
    tokens.remove("reader")
    assert ask("GET", PATH, reader) == 401


def test_a_session_is_a_cookie_that_stands_for_the_token_as_long_as_there_is_one(
    make_client: MakeClient, lake: ServedLake
) -> None:
    tokens = Tokens(lake.settings.home)
    secret = tokens.add("ada", [Scope.READ])
    client, bearer = make_client(Access(tokens)), {"Authorization": f"Bearer {secret}"}
    assert client.post(SESSION).status_code == 401
    begun = client.post(SESSION, headers=bearer)
    assert begun.json() == {"actor": "ada", "scopes": ["read"], "needsToken": True}
    cookie = begun.headers["set-cookie"]
    name, _, value = cookie.partition(";")[0].partition("=")
    assert (name, len(value) >= 43, value in secret) == ("lakehouse_session", True, False)
    assert {part.strip() for part in cookie.split(";")[1:]} == {
        "HttpOnly",
        "SameSite=strict",
        "Max-Age=43200",
        "Path=/",
    }
    assert client.get(PATH).status_code == 200
    assert client.get(SESSION).json() == begun.json()
    assert client.post("/api/v1/actions", json={"action": "audit"}).status_code == 403
    assert client.post(SESSION).status_code == 401  # a session cannot begin another
    tokens.remove("ada")
    tokens.add("ada", [Scope.READ])
    assert client.get(PATH).status_code == 401


def test_a_session_that_was_ended_is_none_whoever_still_has_its_cookie(
    make_client: MakeClient, lake: ServedLake
) -> None:
    tokens = Tokens(lake.settings.home)
    client = make_client(Access(tokens))
    client.post(SESSION, headers={"Authorization": f"Bearer {tokens.add('ada', [Scope.READ])}"})
    kept = {"Cookie": f"lakehouse_session={client.cookies['lakehouse_session']}"}
    assert client.delete(SESSION, headers={"Origin": "https://evil.example"}).status_code == 403
    ended = client.delete(SESSION)
    assert (ended.status_code, dict(client.cookies)) == (204, {})
    assert client.get(PATH, headers=kept).status_code == 401


def test_a_session_ends_after_half_a_day_and_its_cookie_is_secure_under_https(
    make_client: MakeClient, lake: ServedLake
) -> None:
    tokens, now = Tokens(lake.settings.home), [0.0]
    secret = tokens.add("ada", [Scope.READ])
    sessions = Sessions(tokens, lambda: now[0])
    id_ = sessions.begin(secret)
    now[0] = 43_199.0
    assert sessions.caller(id_) == tokens.caller(secret)
    now[0] = 43_200.0
    assert sessions.caller(id_) is None
    client = make_client(Access(tokens, is_https=True), "https://localhost:8080")
    begun = client.post(SESSION, headers={"Authorization": f"Bearer {secret}"})
    name, _, cookie = begun.headers["set-cookie"].partition("=")
    assert (name, set(cookie.split("; ")[1:])) == (
        "__Host-lakehouse_session",
        {"HttpOnly", "Max-Age=43200", "Path=/", "SameSite=strict", "Secure"},
    )
    assert client.get(PATH).status_code == 200
    plain = {"Cookie": f"lakehouse_session={client.cookies[name]}"}
    client.cookies.clear()
    assert client.get(PATH, headers=plain).status_code == 401


def test_no_holder_of_a_token_ends_the_sessions_of_another(tmp_path: Path) -> None:
    tokens, now = Tokens(tmp_path), [0.0]
    mine, other = tokens.add("ada", [Scope.READ]), tokens.add("eve", [Scope.READ])
    sessions = Sessions(tokens, lambda: now[0])
    id_ = sessions.begin(mine)
    others = [sessions.begin(other) for _ in range(201)]
    assert sessions.caller(id_) == Caller("ada", frozenset({Scope.READ}))
    assert [sessions.caller(one) is None for one in others] == [True] + [False] * 200
    now[0] = 43_200.0
    sessions.begin(other)
    assert len(sessions._begun) == 1  # expired sessions use no memory


async def _nothing() -> Any:
    """Stand in for `receive` of a request without a body."""


def test_one_token_does_not_take_the_places_of_all(lake: ServedLake) -> None:
    """Concurrent requests are limited; table scans have 4 places, and 32 wait for one."""
    tokens = Tokens(lake.settings.home)
    ada, eve = tokens.add("ada", [Scope.READ]), tokens.add("eve", [Scope.READ])

    async def scenario() -> list[int]:
        go_on, answering = asyncio.Event(), 0

        async def slow(_scope: Any, _receive: Any, send: Any) -> None:
            nonlocal answering
            answering += 1
            await go_on.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})

        entrance = Entrance(slow, Access(tokens))

        async def ask(secret: str, path: str = PATH) -> int:
            found = list[int]()

            async def sent(message: Any) -> None:
                found.append(message.get("status", 0))

            headers = [(b"authorization", f"Bearer {secret}".encode())]
            scope = {"type": "http", "method": "GET", "path": path, "headers": headers}
            await entrance(scope, _nothing, sent)
            return found[0]

        asked = [asyncio.create_task(ask(eve)) for _ in range(32)]
        listening = [asyncio.create_task(ask(eve, "/api/v1/events")) for _ in range(3)]
        while answering < 35:
            await asyncio.sleep(0)
        refused = await ask(eve)
        other = asyncio.create_task(ask(ada))
        while answering < 36:
            await asyncio.sleep(0)
        go_on.set()
        found = await asyncio.gather(other, *asked, *listening)
        return [refused, *found, await ask(eve)]

    assert asyncio.run(asyncio.wait_for(scenario(), timeout=60)) == [429] + [200] * 37


def test_a_token_expires_and_its_sessions_with_it(tmp_path: Path) -> None:
    now = [datetime(2026, 3, 1, tzinfo=UTC)]
    tokens = Tokens(tmp_path, lambda: now[0])
    brief, lasting = (
        tokens.add("brief", [Scope.READ], lasts=timedelta(days=2)),
        tokens.add("ada", [Scope.READ]),
    )
    sessions = Sessions(tokens, lambda: 0.0)
    id_ = sessions.begin(brief)
    now[0] = datetime(2026, 3, 2, 23, 59, 59, tzinfo=UTC)
    assert tokens.caller(brief) == sessions.caller(id_) == Caller("brief", frozenset({Scope.READ}))
    now[0] = datetime(2026, 3, 3, tzinfo=UTC)
    assert (tokens.caller(brief), sessions.caller(id_)) == (None, None)
    assert tokens.caller(lasting) is not None


def test_a_file_of_tokens_from_before_they_could_expire_is_read(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path)
    secret = tokens.add("ada", [Scope.READ])
    entries = json.loads(tokens.path.read_text(encoding="utf-8"))
    assert [entry.pop("expires_at") for entry in entries] == [None]
    tokens.path.write_text(json.dumps(entries))
    assert tokens.caller(secret) == Caller("ada", frozenset({Scope.READ}))


def test_the_list_of_tokens_says_until_when_they_are_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path))
    for arguments in (["add", "ada"], ["add", "bob", "--days", "30", "--scope", "operate"]):
        assert CliRunner().invoke(tokens_command, arguments).exit_code == 0
    Tokens(tmp_path, lambda: datetime(2026, 3, 1, 12, 30, tzinfo=UTC)).add(
        "eve", [Scope.READ], lasts=timedelta(days=1)
    )
    ada, bob, eve = CliRunner().invoke(tokens_command, ["list"]).stdout.splitlines()
    assert (ada, eve) == ("ada: read", "eve: read; expired 2026-03-02 12:30 UTC")
    assert re.fullmatch(r"bob: operate; until \d{4}-\d\d-\d\d \d\d:\d\d UTC", bob)
    assert CliRunner().invoke(tokens_command, ["add", "dan", "--days", "0"]).exit_code == 2


def test_where_no_token_is_needed_a_session_says_so_and_sets_no_cookie(make_client: MakeClient) -> None:
    begun = make_client().post(SESSION)
    assert begun.json() == {"actor": "local", "scopes": ["operate", "payload", "read"], "needsToken": False}
    assert "set-cookie" not in begun.headers


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 422),
        ({"Origin": "http://localhost:8080"}, 422),
        ({"Host": "127.0.0.1:9", "Origin": "http://127.0.0.1:9"}, 422),
        ({"Origin": "http://localhost:8081"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://[::1"}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Host": "evil.example", "Origin": "http://evil.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
    ],
)
def test_a_page_of_another_site_may_not_write_not_even_here(
    make_client: MakeClient, headers: dict[str, str], status: int
) -> None:
    found = make_client(produces=True).post("/produce?events=0", headers=headers)
    assert (found.status_code, found.headers["content-type"]) == (status, "application/problem+json")


def test_without_tokens_this_host_is_not_read_by_another_name(make_client: MakeClient) -> None:
    assert make_client().get(PATH, headers={"Host": "evil.example"}).status_code == 403
    named = Access(None, frozenset({"lake.example"}))
    assert make_client(named).get(PATH, headers={"Host": "lake.example:8080"}).status_code == 200


@pytest.mark.parametrize(
    ("host", "answer"),
    [
        ("127.0.0.1", True),
        ("127.0.0.2", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("lake", False),
    ],
)
def test_loopback_is_what_no_other_machine_hears(host: str, *, answer: bool) -> None:
    assert is_loopback(host) is answer


def test_a_client_that_asks_too_much_is_told_when_to_come_again(make_client: MakeClient) -> None:
    client = make_client(Access(None, rate=Rate(per_second=0.01, burst=2)))
    found = [client.get(PATH) for _ in range(3)]
    assert [one.status_code for one in found] == [200, 200, 429]
    assert 0 < int(found[2].headers["retry-after"]) <= 100


def test_who_guesses_tokens_is_told_to_wait_and_holders_at_the_address_are_not(
    make_client: MakeClient, lake: ServedLake
) -> None:
    tokens = Tokens(lake.settings.home)
    holder = {"Authorization": f"Bearer {tokens.add('ada', [Scope.READ])}"}
    client = make_client(Access(tokens, refusals=Rate(per_second=0.001, burst=2)))
    guesses: list[dict[str, str]] = [{}, {"Authorization": "Bearer x"}, {"Cookie": "lakehouse_session=x"}]
    found = [client.get(PATH, headers=guess) for guess in guesses]
    assert [one.status_code for one in found] == [401, 401, 429]
    assert 0 < int(found[2].headers["retry-after"]) <= 1000
    assert client.get(PATH, headers=holder).status_code == 200


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("testclient", "testclient"),
    ],
)
def test_an_address_of_ipv6_counts_as_its_network(address: str, counted: str) -> None:
    assert network_of(address) == counted


def test_every_request_names_this_server_whoever_makes_it(make_client: MakeClient, lake: ServedLake) -> None:
    tokens = Tokens(lake.settings.home)
    holder = {"Authorization": f"Bearer {tokens.add('ada', [Scope.READ])}"}
    client = make_client(Access(tokens, frozenset({"lake.example"})))
    for path in (PATH, "/", "/page/app.js", "/health/live"):
        for host, status in (
            ("lake.example:8000", 200),
            ("evil.example", 403),
            ("localhost", 403),
            ("[", 403),
        ):
            assert client.get(path, headers=holder | {"Host": host}).status_code == status, (path, host)


def test_nothing_is_kept_or_guessed_that_does_not_say_so(make_client: MakeClient) -> None:
    client = make_client()
    for path in (PATH, SESSION, "/api/v1/actions", "/health/live", "/docs", "/nothing", "/openapi.json"):
        headers = client.get(path).headers
        assert (headers["cache-control"], headers["x-content-type-options"]) == ("no-store", "nosniff"), path
    gates = client.get("/api/v1/gates").headers
    assert (gates["cache-control"], gates["x-content-type-options"]) == ("private, no-cache", "nosniff")


@pytest.mark.parametrize(
    ("origin", "status"), [("https://localhost:8080", 422), ("http://localhost:8080", 403), ("null", 403)]
)
def test_behind_https_a_page_without_it_may_not_write(
    make_client: MakeClient, origin: str, status: int
) -> None:
    client = make_client(Access(None, is_https=True), produces=True)
    assert client.post("/produce?events=0", headers={"Origin": origin}).status_code == status


def test_a_body_of_more_than_64_kib_is_refused_before_it_is_read(make_client: MakeClient) -> None:
    client = make_client()

    def post(content: bytes | Iterator[bytes]) -> Any:
        return client.post("/api/v1/actions", content=content, headers={"Content-Type": "application/json"})

    assert post(b'{"action": "party"}'.ljust(65_536)).status_code == 422
    declared, streamed = post(b" " * 65_537), post(iter([b" " * 40_000] * 2))
    for found in (declared, streamed):
        assert (found.status_code, found.headers["connection"]) == (413, "close")
        assert found.json()["detail"] == "a request body may be at most 65,536 bytes long"


def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    async def scenario() -> list[Any]:
        async def never(*_: Any) -> Any:
            await asyncio.Event().wait()

        sent = list[Any]()

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "headers": [(b"content-length", b"9")]}
        await Bodies(never, within_s=0.01)(scope, never, send)
        return sent

    assert asyncio.run(scenario())[0]["status"] == 408


def test_what_a_client_may_ask_grows_with_time() -> None:
    now = [0.0]
    limiter = Rate(per_second=2, burst=1).limiter(lambda: now[0])
    limiter.take("a")
    limiter.take("b")
    with pytest.raises(Problem):
        limiter.take("a")
    now[0] = 0.5
    limiter.take("a")


def test_a_defect_is_a_problem_with_a_number_and_no_trace(
    make_client: MakeClient, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError("secret")

    client = make_client()
    monkeypatch.setattr("lakehouse.serving.reading.lookups.Lookups.page", fail)
    found = client.get("/api/v1/tables/metrics_1m/rows")
    assert (found.status_code, found.headers["content-type"]) == (500, "application/problem+json")
    assert "secret" not in found.text
    assert found.json()["id"] in caplog.text
