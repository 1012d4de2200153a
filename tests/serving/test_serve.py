"""`lakehouse serve` as a process: it starts without a JVM, answers, and exits when asked to."""

from __future__ import annotations

import json
import re
import signal
import ssl
import subprocess
from datetime import timedelta
from functools import partial
from pathlib import Path

import httpx
import psutil
import pytest
from typer.testing import CliRunner

from lakehouse.cli.commands.serve import app as serve_command
from lakehouse.common.errors import SettingsError
from lakehouse.common.events import EventLog, Kind, note, noting
from lakehouse.engine.ops_tables.event_table import append
from lakehouse.serving.security.tokens import Scope, Tokens
from tests.support.certificates import certified
from tests.support.processes import LAKEHOUSE
from tests.support.served_lakes import ServedLake, minute
from tests.support.serving import environment, serving
from tests.support.streams import METRICS_1M


def test_a_server_answers_without_a_jvm_and_leaves_on_sigterm(lake: ServedLake, tmp_path: Path) -> None:
    lake.write(METRICS_1M, [minute()])
    path = "/api/metrics/latest?service=auth&metric=cpu"
    with serving(lake, tmp_path / "log") as (server, url):
        found = httpx.get(url + path, timeout=60)
        assert (found.status_code, found.json()["source"]) == (200, "gold")
        lake.export(METRICS_1M, [minute()])
        assert httpx.get(url + path, timeout=60).json()["source"] == "redis"
        assert psutil.Process(server.pid).children() == []
        with noting(EventLog("a test", partial(append, lake.settings.lake), print)):
            note(Kind.START, "started")
        with httpx.stream("GET", f"{url}/api/v1/events", timeout=60) as events:
            lines = events.iter_lines()
            assert next(lines).startswith("id: ")
            assert next(lines) == "event: standing"
            standing = json.loads(next(lines).removeprefix("data: "))["tables"]
            assert {one["table"] for one in standing} == {"gold.metrics_1m", "ops.events"}
            server.send_signal(signal.SIGTERM)
            assert server.wait(60) == 0
    assert "Traceback" not in (tmp_path / "log").read_text(encoding="utf-8")


def test_a_server_for_other_machines_needs_a_token(lake: ServedLake, tmp_path: Path) -> None:
    Tokens(lake.settings.home).add("bob", [Scope.READ], lasts=timedelta(0))  # already expired
    command = [LAKEHOUSE, "serve", "--host", "0.0.0.0", "--port", "0"]
    refused = subprocess.run(
        command, env=environment(lake), capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert refused.returncode == 2
    assert "there is no valid token; create one with `lakehouse tokens add NAME" in refused.stderr

    tokens, pair = Tokens(lake.settings.home), certified(tmp_path)
    bearer = {"Authorization": f"Bearer {tokens.add('ada', [Scope.READ])}"}
    tls = "--tls-cert", str(pair.certificate), "--tls-key", str(pair.key)
    options = "--require-token", "--telemetry-port", "0", "--forwarded-by", "192.0.2.0/24", *tls
    trusted = ssl.create_default_context(cafile=str(pair.authority))
    with (
        serving(lake, tmp_path / "log", *options) as (_, url),
        httpx.Client(base_url=url, timeout=60, verify=trusted) as client,
    ):
        guesses = [{"X-Forwarded-For": f"203.0.113.{number}"} for number in range(70)]  # all from one address
        found = {client.get("/api/v1/streams", headers=one).status_code for one in guesses}
        assert found == {401, 429}
        said = re.search(r"telemetry at (http://\S+)/metrics", (tmp_path / "log").read_text(encoding="utf-8"))
        assert said is not None
        assert httpx.get(f"{said[1]}/health/ready", timeout=60).json()["status"] == "ready"
        counted = 'lakehouse_http_requests_total{method="GET",route="other",status="401"} '
        assert counted in httpx.get(f"{said[1]}/metrics", timeout=60).text
        assert client.post("/api/v1/session", headers=bearer).status_code == 200
        assert list(client.cookies) == ["__Host-lakehouse_session"]
        assert client.get("/api/v1/streams").status_code == 200
        with client.stream("GET", "/api/v1/events") as events:
            lines = events.iter_lines()
            assert next(lines).startswith("id: ")
            tokens.remove("ada")
            assert [line for line in lines if line.startswith("id: ")] == []  # the stream has ended
        assert client.get("/api/v1/streams").status_code in {401, 429}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--tls-cert", "x.pem"], "--tls-cert and --tls-key must be used together"),
        (["--tls-cert", "x.pem", "--tls-key", "y.pem"], "HTTPS cannot be served with --tls-cert x.pem"),
        (
            ["--forwarded-by", "10.0.0.1/8"],
            "--forwarded-by takes an address or a network such as 10.0.0.0/24",
        ),
    ],
)
def test_options_that_would_not_protect_are_refused(
    lake: ServedLake, monkeypatch: pytest.MonkeyPatch, options: list[str], why: str
) -> None:
    for name, value in environment(lake).items():
        monkeypatch.setenv(name, value)
    found = CliRunner().invoke(serve_command, options)
    assert isinstance(found.exception, SettingsError)
    assert why in str(found.exception)
