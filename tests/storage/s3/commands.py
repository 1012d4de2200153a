"""Commands of `lakehouse`, one after another, on one Spark session: a process of its own, with S3's jars.

python -m tests.storage.s3.commands COMMANDS    a JSON list of lists of arguments

Prints a line of JSON for each: its exit code and output. `upkeep TABLE` is an extra command: it immediately
removes what upkeep keeps for two days, and prints how many data files and commits are left.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from deltalake import DeltaTable

from lakehouse.common.paths import location
from lakehouse.storage.files import files_of
from lakehouse.storage.spark.session import start_session
from lakehouse.storage.tables import Lake, upkeep
from lakehouse.streams.registry import read_settings
from tests.support.commands import run_command


def main(commands: Sequence[Sequence[str]]) -> None:
    """Run the commands."""
    settings = read_settings()
    with start_session(settings, "a test", brief=True) as spark:
        for command in commands:
            if command[0] == "upkeep":
                done = _upkeep(Lake(spark, settings.lake), command[1])
            else:
                ended = run_command({}, *command, spark=spark)
                done = {"code": ended.returncode, "stdout": ended.stdout, "stderr": ended.stderr}
            sys.stdout.write(f"{json.dumps(done)}\n")
            sys.stdout.flush()


def _upkeep(lake: Lake, table: str) -> dict[str, Any]:
    layer, _, name = table.partition(".")
    path = lake.path(layer, name)
    lake.spark.sql(f"UPDATE delta.`{path}` SET count = count")  # leaves files that nobody needs any more
    upkeep.optimize(lake.spark, path, None, 1 << 20)
    counted = upkeep.vacuum(lake.spark, path, timedelta(0), dry_run=True)
    removed = upkeep.vacuum(lake.spark, path, timedelta(0), dry_run=False)
    again = upkeep.vacuum(lake.spark, path, timedelta(0), dry_run=False)
    DeltaTable(location(path)).create_checkpoint()
    upkeep.clean_log(lake.spark, path, timedelta(hours=-2))
    left = DeltaTable(location(path))
    return {
        "removed": [counted, removed, again],
        "files": [one for one in files_of(path).names() if one.endswith(".parquet")],
        "named": [one.rpartition("/")[2] for one in left.file_uris()],
        "commits": [one for one in files_of(path).names("_delta_log") if one.endswith(".json")],
        "rows": left.count(),
    }


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
