"""`lakehouse serve`: the REST API."""

from __future__ import annotations

import logging
import signal
import sys
from contextlib import ExitStack
from types import FrameType
from typing import Annotated, NoReturn

import typer

from lakehouse.errors import SettingsError
from lakehouse.streams import load, read_settings
from lakehouse.terminal import echo, log_to_standard_error

_LEAVE_AFTER_S = 10  # requests that take longer are aborted

app = typer.Typer(add_completion=False)


@app.command()
def serve(
    *,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 8080,
    require_token: Annotated[
        bool, typer.Option("--require-token", help="Require a token on this machine, too.")
    ] = False,
    enable_produce: Annotated[
        bool, typer.Option("--enable-produce", help="Allow POST /produce to send sample events.")
    ] = False,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A further name of this server in requests; may be given again.")
    ] = None,
    telemetry_port: Annotated[
        int,
        typer.Option(
            min=-1,
            max=65535,
            help="Serve /metrics and /health at this port, too, without asking for a token (0: a free one; "
            "-1: not, the default).",
        ),
    ] = -1,
) -> None:
    """Serve gold over HTTP until stopped; /docs lists the endpoints.

    Rows come from Redis, and from the Delta tables if Redis does not have them. On any address but this
    machine's own, a token is required (`lakehouse tokens add`), except for /health/live and /health/ready.
    """
    import uvicorn

    from lakehouse.serving.access import LOOPBACK_NAMES, Access, is_loopback
    from lakehouse.serving.app import make_app
    from lakehouse.serving.tokens import Tokens
    from lakehouse.telemetry.server import serving

    signal.signal(signal.SIGTERM, _leave)  # uvicorn raises it again once it has finished
    log_to_standard_error()
    logging.getLogger("lakehouse").setLevel(logging.INFO)  # names the user
    settings, tokens = read_settings(), None
    if require_token or not is_loopback(host):
        tokens = Tokens(settings.home)
        if not tokens.read():
            raise SettingsError(
                f"{host} can be reached from other machines, and there is no token; make one with "
                "`lakehouse tokens add NAME --scope read`, or omit --host"
                if not is_loopback(host)
                else "there is no token; make one with `lakehouse tokens add NAME --scope read`"
            )
    hosts = LOOPBACK_NAMES | {host} | set(allow_host or [])
    api = make_app(settings, load(settings), Access(tokens, frozenset(hosts)), produces=enable_produce)

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            api.state.end()  # clients that listen to events would stay
            super().handle_exit(sig, frame)

    config = uvicorn.Config(
        api,
        host=host,
        port=port,
        access_log=False,
        log_config=None,  # its records go where ours go
        log_level="info",
        server_header=False,
        timeout_graceful_shutdown=_LEAVE_AFTER_S,
    )
    with ExitStack() as stack:
        if telemetry_port >= 0:
            telemetry = serving(api.state.registry, api.state.look, telemetry_port, settings.telemetry_host)
            at = f"{settings.telemetry_host}:{stack.enter_context(telemetry)}"
            echo(f"telemetry at http://{at}/metrics", err=True)
        Server(config).run()


def _leave(_number: int, _frame: object) -> NoReturn:
    sys.exit(0)
