"""Warm-up: build silver and gold from landed rows in temporary tables.

The first micro-batches in a Spark session take several times as long as later ones, because classes must be
loaded, code must be generated for plans, and the JVM must compile frequently used code. A standby run
therefore warms up before its turn.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Sequence
from itertools import chain

from lakehouse.engine.layers import bronze
from lakehouse.engine.runtime.runner import RunOptions, run
from lakehouse.engine.runtime.signals import Stop
from lakehouse.engine.runtime.triggers import AVAILABLE_NOW
from lakehouse.settings import Settings
from lakehouse.storage import tables
from lakehouse.storage.spark import files as storage
from lakehouse.storage.spark.execution import SOME_ROWS
from lakehouse.storage.tables import Lake
from lakehouse.streams.definition import Stream

DIRECTORY = "_lakehouse_warm_up"
_ROWS = (1_000, SOME_ROWS // 4)  # the first is executed as Amount.FEW, the second as Amount.SOME
_ROUNDS = 3
_LEFT_S = 3_600
log = logging.getLogger(__name__)


def warm_up(lake: Lake, streams: Sequence[Stream], settings: Settings, stop: Stop) -> None:
    """Build silver and gold from bronze rows several times, in a temporary directory in the lake.

    Nothing else is read, written or sent. A failure is only logged, because its cause would make the run
    itself fail as well.
    """
    _delete_what_is_left(lake)
    root = f"{lake.root}/{DIRECTORY}/{int(time.time())}-{socket.gethostname()}-{os.getpid()}"
    scratch, silently = Lake(lake.spark, root), RunOptions(AVAILABLE_NOW, stop=stop)
    settings = settings.changed({"lake": root})
    try:
        for rows in _ROWS * _ROUNDS:
            if not stop.requested and _land(lake, scratch, streams, rows):
                run(scratch, streams, ("silver", "gold"), settings, silently)
    except Exception:
        log.warning("the warm-up failed", exc_info=True)
    finally:
        storage.delete(lake.spark, root)


def _delete_what_is_left(lake: Lake) -> None:
    """Delete directories older than an hour, which are left over from warm-ups that were killed."""
    for name in storage.names(lake.spark, f"{lake.root}/{DIRECTORY}"):
        if int(name.partition("-")[0]) < time.time() - _LEFT_S:
            storage.delete(lake.spark, f"{lake.root}/{DIRECTORY}/{name}")


def _land(lake: Lake, scratch: Lake, streams: Sequence[Stream], rows: int) -> bool:
    """Copy bronze rows to the temporary lake; return whether there were any rows."""
    did = False
    for source in chain.from_iterable(stream.sources for stream in streams):
        if lake.exists("bronze", source.table):
            landed = lake.read("bronze", source.table).select(*bronze.SCHEMA.names).limit(rows)
            did |= tables.append(landed, scratch.ensure(bronze.spec(source))).rows > 0
    return did
