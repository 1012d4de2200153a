"""`lakehouse serve`: the REST API."""

from __future__ import annotations

from typing import Annotated

import typer

from lakehouse.streams import STREAMS, read_settings

app = typer.Typer(add_completion=False)


@app.command()
def serve(
    *,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 8080,
) -> None:
    """Answer questions about gold over HTTP until stopped; /docs lists the endpoints.

    Rows come from Redis, and from the Delta tables what Redis does not hold.
    """
    import uvicorn  # noqa: PLC0415 - takes a moment, which other commands need not wait

    from lakehouse.serving.app import make_app  # noqa: PLC0415 - the same

    uvicorn.run(
        make_app(read_settings(), STREAMS), host=host, port=port, access_log=False, server_header=False
    )
