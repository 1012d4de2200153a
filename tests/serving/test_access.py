"""Tokens, scopes, names of this host, other sites' pages, and how much one may ask."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from lakehouse.errors import SettingsError
from lakehouse.serving.access import Access, is_loopback
from lakehouse.serving.limits import Rate
from lakehouse.serving.problems import Problem
from lakehouse.serving.sessions import Sessions
from lakehouse.serving.tokens import Scope, Tokens
from tests.serving.conftest import MakeClient
from tests.serving.lakes import ServedLake

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
    with pytest.raises(SettingsError, match="there is a token ada already"):
        tokens.add("ada", [Scope.READ])
    Tokens(tmp_path / "home").remove("ada")
    assert tokens.caller(secret) is None
    with pytest.raises(SettingsError, match="there is no token ada"):
        tokens.remove("ada")


@pytest.mark.parametrize("content", ["", '[{"name": "ada", "sha'])
def test_tokens_that_a_power_failure_has_cut_off_let_nobody_in_and_the_way_out_is_named(
    tmp_path: Path, content: str
) -> None:
    tokens = Tokens(tmp_path)
    secret = tokens.add("ada", [Scope.READ])
    tokens.path.write_text(content)
    way_out = "so nobody is let in: .* Put a copy of it back, or delete it and add every token again"
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
    assert client.post(SESSION).status_code == 401  # a session makes no other
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
    secret = tokens.add("ada", [Scope.PAYLOAD])
    sessions = Sessions(tokens, lambda: now[0])
    id_ = sessions.begin(secret)
    now[0] = 43_199.0
    assert sessions.caller(id_) == tokens.caller(secret)
    now[0] = 43_200.0
    assert sessions.caller(id_) is None
    client = make_client(Access(tokens))
    bearer = {"Authorization": f"Bearer {secret}"}
    begun = client.post(f"https://localhost:8080{SESSION}", headers=bearer)
    assert "; Secure" in begun.headers["set-cookie"]


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
    monkeypatch.setattr("lakehouse.serving.lookups.Lookups.page", fail)
    found = client.get("/api/v1/tables/metrics_1m/rows")
    assert (found.status_code, found.headers["content-type"]) == (500, "application/problem+json")
    assert "secret" not in found.text
    assert found.json()["id"] in caplog.text
