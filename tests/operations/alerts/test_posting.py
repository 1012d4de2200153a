"""A notification sent over HTTP to a real server: signed, with credentials, over TLS and through a proxy."""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from lakehouse.common.errors import SettingsError
from lakehouse.operations.alerts.posting import PLAIN, AwayError, Posting, Receiver, posting, signature
from lakehouse.operations.alerts.webhook import Webhook
from lakehouse.settings import load_settings
from lakehouse.settings.kafka_access import KafkaAccess
from tests.operations.alerts import receiver as servers
from tests.support import processes
from tests.support.certificates import Certified, certified

BODY = '{"what": "größer"}'.encode()
SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef01234567").decode()
OTHER = "whsec_" + base64.b64encode(b"another secret of 24 byte").decode()


@pytest.fixture
def server() -> Iterator[servers.Receiver]:
    with servers.receiving() as made:
        yield made


@pytest.fixture
def own(tmp_path: Path) -> Certified:
    return certified(tmp_path)


def authority_of(files: Certified) -> SecretStr:
    return SecretStr(files.authority.read_text(encoding="utf-8"))


def documented() -> Callable[[str, Any, bytes], bool]:
    """Return the function with which docs/alerts.md tells receivers to verify a signature."""
    text = (processes.ROOT / "docs" / "alerts.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (block,) = (one for one in blocks if "def is_ours" in one)
    names: dict[str, Any] = {}
    exec(block, names)  # noqa: S102 - ours
    return names["is_ours"]  # type: ignore[no-any-return]


def test_a_signature_is_that_of_standard_webhooks() -> None:
    """The values are the specification's example."""
    assert (
        signature(
            "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            "1614265330",
            b'{"test": 2432232314}',
        )
        == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    )


def test_the_documented_lines_verify_what_a_receiver_gets(server: servers.Receiver) -> None:
    Receiver(server.url, Posting(SecretStr(f"{OTHER} {SECRET}"))).post(BODY, "e-1")
    (got,) = server.requests
    is_ours = documented()
    assert (got.path, got.body, got.headers["Idempotency-Key"]) == ("/hook?key=secret", BODY, "e-1")
    assert is_ours(SECRET, got.headers, got.body)
    assert is_ours(OTHER, got.headers, got.body)
    assert not is_ours(SECRET, got.headers, got.body + b" ")
    assert not is_ours("whsec_" + base64.b64encode(b"x" * 24).decode(), got.headers, got.body)
    at = str(int(time.time()) - 3600)
    old = {"webhook-id": "e-1", "webhook-timestamp": at}
    old["webhook-signature"] = signature(SECRET, "e-1", at, BODY)
    assert not is_ours(SECRET, old, BODY)


def test_without_a_secret_nothing_is_signed(server: servers.Receiver) -> None:
    Receiver(server.url, PLAIN).post(BODY, "e-1")
    (got,) = server.requests
    assert not [name for name in got.headers if name.lower().startswith("webhook-")]
    assert got.headers["Authorization"] is None


def test_credentials_of_a_url_are_sent_as_basic_and_are_in_no_message(server: servers.Receiver) -> None:
    url = f"http://us%40er:p%C3%A4ss%3A%2Fword@{server.address}/hook"
    made = Receiver(url, PLAIN)
    made.post(BODY, "e-1")
    (got,) = server.requests
    assert (
        base64.b64decode(got.headers["Authorization"].removeprefix("Basic ")) == "us@er:päss:/word".encode()
    )
    assert got.headers["Host"] == server.address
    assert made.name == "webhook at 127.0.0.1"
    assert made.url == f"http://{server.address}/hook"
    server.server.server_close()
    with pytest.raises(AwayError) as refused:
        Receiver(f"http://user:secret@{server.address}/hook?key=secret", PLAIN).post(BODY, "e-1")
    assert str(refused.value) == "[Errno 111] Connection refused"


def test_a_new_password_is_the_same_webhook() -> None:
    urls = ("https://user:old@host/a@b?c=d", "https://user:new@host/a@b?c=d", "https://host/a@b?c=d")
    assert len({Webhook(KafkaAccess(""), "alerts", url, print).group for url in urls}) == 1
    assert Receiver(urls[0], PLAIN).url == urls[2]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_redirect_is_followed(server: servers.Receiver, status: int) -> None:
    server.status = status
    with pytest.raises(AwayError, match=f"^it answered {status}, a redirect, which is not followed$"):
        Receiver(server.url, PLAIN).post(BODY, "e-1")
    assert [got.method for got in server.requests] == ["POST"]


def test_only_the_authorities_of_the_file_are_trusted(server: servers.Receiver, own: Certified) -> None:
    server.use_tls(own.certificate, own.key)
    with pytest.raises(AwayError, match="certificate verify failed"):
        Receiver(server.url, PLAIN).post(BODY, "e-1")
    Receiver(server.url, Posting(ca=authority_of(own))).post(BODY, "e-2")
    assert [got.headers["Idempotency-Key"] for got in server.requests] == ["e-2"]


def test_a_proxy_is_told_its_own_credentials_and_nothing_of_the_webhook(
    server: servers.Receiver, own: Certified, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server.use_tls(own.certificate, own.key)
    url = server.url.replace("https://", "https://user:secret@")
    with servers.proxying() as proxy:
        how = Posting(ca=authority_of(own), proxy=SecretStr(f"http://me:mine@{proxy.address}"))
        Receiver(url, how).post(BODY, "e-1")
        monkeypatch.setenv("https_proxy", f"http://{proxy.address}")
        Receiver(url, Posting(ca=authority_of(own))).post(BODY, "e-2")
    first, second = proxy.requests
    assert (first.path, second.path) == (server.address, server.address)
    mine = base64.b64encode(b"me:mine").decode()
    assert (first.headers["Proxy-Authorization"], first.headers["Authorization"]) == (f"Basic {mine}", None)
    assert [got.headers["Proxy-Authorization"] for got in server.requests] == [None, None]
    assert [got.headers["Authorization"] is None for got in server.requests] == [False, False]


def test_secrets_and_authorities_are_files_that_may_change(
    server: servers.Receiver, own: Certified, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {name: tmp_path / name for name in ("SECRET", "CA")}
    variables = {"SECRET": "LAKEHOUSE_ALERTS_WEBHOOK_SECRET_FILE", "CA": "LAKEHOUSE_ALERTS_WEBHOOK_CA"}
    for name, file in files.items():
        monkeypatch.setenv(variables[name], str(file))
    files["SECRET"].write_text(SECRET + "\n", encoding="utf-8")
    files["CA"].write_text(authority_of(own).get_secret_value(), encoding="utf-8")
    how = posting(load_settings())
    assert SECRET not in repr(how)
    server.use_tls(own.certificate, own.key)
    made = Receiver(server.url, how)
    made.post(BODY, "e-1")
    files["SECRET"].write_text(OTHER + "\n", encoding="utf-8")
    made.post(BODY, "e-2")
    assert [documented()(OTHER, got.headers, got.body) for got in server.requests] == [False, True]
    files["SECRET"].write_text("whsec_?", encoding="utf-8")
    with pytest.raises(AwayError, match=r"^alerts\.webhook_secret is not whsec_ followed by base64$"):
        made.post(BODY, "e-3")
    files["SECRET"].unlink()
    with pytest.raises(AwayError, match=r"^LAKEHOUSE_ALERTS_WEBHOOK_SECRET_FILE: .*/SECRET cannot be read"):
        made.post(BODY, "e-3")


def test_authorities_that_are_none_are_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ca.pem").write_text("nothing", encoding="utf-8")
    monkeypatch.setenv("LAKEHOUSE_ALERTS_WEBHOOK_CA", str(tmp_path / "ca.pem"))
    with pytest.raises(SettingsError, match=r"^alerts\.webhook_ca contains no valid PEM certificates"):
        posting(load_settings())


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        (
            "SECRET",
            "whsec_" + base64.b64encode(b"short").decode(),
            "it must be whsec_ followed by at least 24 bytes",
        ),
        (
            "SECRET",
            base64.b64encode(b"0123456789abcdef01234567").decode(),
            "it must be whsec_ followed by at least 24 bytes",
        ),
        ("SECRET", f"{SECRET} whsec_?", "it must be whsec_ followed by at least 24 bytes"),
        ("PROXY", "socks5://proxy:1080", "it must start with http:// or https:// and name a host"),
        ("PROXY", "https://me:secret@proxy:1080", "it must start with http://: TLS to the proxy"),
        ("PROXY", "http://me:mi/ne@proxy:3128", "it must start with http:// or https:// and name a host"),
        ("S", '["https://host/a b"]', "it has characters that must be percent-encoded"),
        ("S", '["https://us er:secret@host/a"]', "it has characters that must be percent-encoded"),
        ("S", '["https://user:sec/ret@host/a"]', "it must start with http:// or https:// and name a host"),
    ],
)
def test_settings_that_would_be_misread_are_refused_without_being_quoted(
    name: str, value: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"LAKEHOUSE_ALERTS_WEBHOOK{'' if name == 'S' else '_'}{name}", value)
    with pytest.raises(SettingsError) as refused:
        load_settings()
    assert why in str(refused.value)
    assert "sec" not in str(refused.value).replace("secret", "").replace("whsec_", "")
    assert value not in str(refused.value)
