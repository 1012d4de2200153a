"""`lakehouse serve`: runs the REST API."""

from __future__ import annotations

import ipaddress
import logging
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from lakehouse.cli.options import grouped
from lakehouse.common.errors import SettingsError
from lakehouse.common.extras import needed
from lakehouse.common.terminal import echo, log_to_standard_error
from lakehouse.serving.security.tokens import Tokens, tokens_of

if TYPE_CHECKING:
    from fastapi import FastAPI

    from lakehouse.serving.security.tls import Certificate
    from lakehouse.settings import Settings

_LEAVE_AFTER_S = 10  # at shutdown, requests that take longer than this are aborted

_IN_THE_CLEAR = (
    "tokens and responses are sent unencrypted; use --tls-cert and --tls-key, or --behind-https if a proxy "
    "encrypts them"
)

app = typer.Typer(add_completion=False)


@dataclass(frozen=True)
class _Https:
    """Options for HTTPS: the server's certificate, or a proxy in front of the server."""

    tls_cert: Annotated[
        Path | None, typer.Option(help="Serve HTTPS with this certificate and its chain (PEM file).")
    ] = None
    tls_key: Annotated[Path | None, typer.Option(help="The certificate's private key (PEM file).")] = None
    behind_https: Annotated[
        bool,
        typer.Option("--behind-https", help="Use behind an HTTPS proxy: cookies are sent only over HTTPS."),
    ] = False
    forwarded_by: Annotated[
        list[str] | None,
        typer.Option(help="Trust X-Forwarded-For from this proxy address or network; may be repeated."),
    ] = None

    def certificate(self) -> Certificate | None:
        """Return the certificate, or None if no certificate is given.

        Raises SettingsError if a certificate is given without its key, or a key without its certificate.
        """
        from lakehouse.serving.security.tls import Certificate

        if self.tls_cert is None and self.tls_key is None:
            return None
        if self.tls_cert is None or self.tls_key is None:
            raise SettingsError("--tls-cert and --tls-key must be used together")
        return Certificate(self.tls_cert, self.tls_key)


@app.command()
@grouped
def serve(
    *,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0: any free port.")] = 8080,
    require_token: Annotated[
        bool, typer.Option("--require-token", help="Require a token even for requests from this machine.")
    ] = False,
    enable_produce: Annotated[
        bool, typer.Option("--enable-produce", help="Allow POST /produce to send sample events.")
    ] = False,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="Also accept requests for this host name; may be repeated.")
    ] = None,
    https: _Https,
    action_hours: Annotated[
        float,
        typer.Option(min=0.01, max=240.0, help="Stop a command that a caller started after this many hours."),
    ] = 12.0,
    telemetry_port: Annotated[
        int,
        typer.Option(
            min=-1,
            max=65535,
            help="Also serve /metrics and /health on this port, without a token (0: any free port; -1: "
            "disabled, the default).",
        ),
    ] = -1,
) -> None:
    """Serve gold over HTTP until stopped; /docs lists the endpoints.

    Rows come from Redis, or from the Delta tables if Redis does not have them. Unless --host is a loopback
    address, callers need a token (`lakehouse tokens add`). Only /health/live and /health/ready never need
    one.
    """
    from lakehouse.settings.reading import read
    from lakehouse.settings.shown import every_single
    from lakehouse.streams.builtin import TABLES
    from lakehouse.streams.registry import checked, load

    with needed("serve", "lakehouse serve"):
        from lakehouse.dev.samples import produce_route
        from lakehouse.serving.app import make_app
        from lakehouse.serving.child_commands import Actions
        from lakehouse.serving.security.access import LOOPBACK_NAMES, Access, is_loopback
    from lakehouse.operations.telemetry.server import serving

    signal.signal(signal.SIGTERM, _leave)  # uvicorn raises the signal again after its shutdown
    log_to_standard_error()
    logging.getLogger("lakehouse").setLevel(logging.INFO)  # logs who started or cancelled each action
    reading = read()
    settings, is_local = checked(reading.settings), is_loopback(host)
    certificate, proxies = https.certificate(), networks(https.forwarded_by or ())
    is_https = https.behind_https or certificate is not None
    tokens = _tokens(settings, host, is_local=is_local) if require_token or not is_local else None
    hosts = LOOPBACK_NAMES | {one.lower() for one in (host, *(allow_host or ()))}
    if not (is_https or is_local):
        echo(_IN_THE_CLEAR, err=True)
    streams = load(settings)
    api = make_app(
        settings,
        streams,
        Access(tokens, frozenset(hosts), is_https=is_https),
        more=[produce_route.router(settings, streams)] if enable_produce else [],
        shown=every_single(reading, {one.name: TABLES.get(one.name, {}) for one in streams}),
        actions=Actions(deadline_s=action_hours * 3600),
    )
    with ExitStack() as stack:
        if telemetry_port >= 0:
            telemetry = serving(api.state.registry, api.state.look, telemetry_port, settings.telemetry.host)
            at = f"{settings.telemetry.host}:{stack.enter_context(telemetry)}"
            echo(f"telemetry at http://{at}/metrics", err=True)
        _run(api, host, port, certificate, proxies)


def _tokens(settings: Settings, host: str, *, is_local: bool) -> Tokens:
    """Return the stored tokens. Raises SettingsError if no token is valid."""
    tokens = tokens_of(settings)
    if tokens.valid():
        return tokens
    raise SettingsError(
        "there is no valid token; create one with `lakehouse tokens add NAME --scope read`"
        if is_local
        else f"{host} can be reached from other machines, but there is no valid token; create one with "
        "`lakehouse tokens add NAME --scope read`, or omit --host"
    )


def _run(api: FastAPI, host: str, port: int, certificate: Certificate | None, proxies: list[str]) -> None:
    """Serve requests until a signal arrives."""
    import uvicorn

    from lakehouse.serving.security.connections import MOST_HEAD, DeadlineProtocol, Server

    config = uvicorn.Config(
        api,
        host=host,
        port=port,
        access_log=False,
        log_config=None,  # uvicorn logs through our handlers
        log_level="info",
        server_header=False,
        http=DeadlineProtocol,
        ws="none",
        h11_max_incomplete_event_size=MOST_HEAD,
        proxy_headers=bool(proxies),
        forwarded_allow_ips=proxies,
        ssl_context_factory=None if certificate is None else lambda _config, _default: certificate.context,
        timeout_graceful_shutdown=_LEAVE_AFTER_S,
    )
    # An open event stream would not end by itself, so `end` disconnects its client.
    Server(config, api.state.end, None if certificate is None else certificate.look).run()


def networks(given: Sequence[str]) -> list[str]:
    """Return the networks of trusted proxies in the form that uvicorn expects.

    Raises SettingsError for an invalid network, which uvicorn itself would accept.
    """
    try:
        return [str(ipaddress.ip_network(one)) for one in given]
    except ValueError as error:
        raise SettingsError(
            f"--forwarded-by takes an address or a network such as 10.0.0.0/24: {error}"
        ) from error


def _leave(_number: int, _frame: object) -> NoReturn:
    sys.exit(0)
