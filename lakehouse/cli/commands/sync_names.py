"""`lakehouse sync-names`: registers tables in a Hive metastore."""

from __future__ import annotations

from typing import Annotated

import typer

from lakehouse.common.errors import SettingsError, TableError
from lakehouse.common.terminal import Console, table_of

app = typer.Typer()


@app.command("sync-names")
def sync(
    *,
    ops: Annotated[bool, typer.Option("--ops", help="Also register the ops tables.")] = False,
    move: Annotated[
        bool, typer.Option("--move", help="Update tables that are registered with a different location.")
    ] = False,
) -> None:
    """Register the gold tables and the dead-letter table in the Hive metastore that `metastore` specifies.

    For each table, prints whether its name is new, unchanged or changed. A rerun changes nothing. Other
    entries in the metastore are neither changed nor removed. If `metastore` is set, a live run also registers
    the tables.
    """
    from lakehouse.engine.ops_tables.event_table import recorded
    from lakehouse.operations.catalog.metastore_names import Outcome, specs, sync_names
    from lakehouse.storage.tables import open_lake
    from lakehouse.streams.registry import load, read_settings

    settings, console = read_settings(), Console()
    if not settings.metastore:
        raise SettingsError(
            "metastore (LAKEHOUSE_METASTORE) is not set; expected a Hive metastore, such as thrift://host:9083"
        )
    wanted = specs(load(settings), ops=ops)
    with recorded(settings.lake, "lakehouse sync-names"), open_lake(settings, "lakehouse sync-names") as lake:
        done = list(sync_names(lake, wanted, settings.metastore, moves=move))
        rows = [
            (one.table, one.outcome, None if one.outcome is Outcome.REFUSED else one.about) for one in done
        ]
        console.print(table_of(("table", "name", "changed"), rows))
        if refused := [one.about for one in done if one.outcome is Outcome.REFUSED]:
            raise TableError("; ".join(refused))
