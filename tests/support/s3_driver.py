"""A separate driver for races: it appends rows to silver.numbers, one per commit, and prints each.

python -m tests.support.s3_driver NAME ROWS
"""

from __future__ import annotations

import sys

from pyspark.sql.types import StructType

from lakehouse.storage import tables
from lakehouse.storage.tables import TableSpec, open_lake
from lakehouse.streams.registry import read_settings

NUMBERS = TableSpec("silver", "numbers", StructType().add("writer", "string").add("n", "long"), stats=("n",))


def main(writer: str, rows: int) -> None:
    """Append the rows."""
    with open_lake(read_settings(), writer, brief=True) as lake:
        path = lake.ensure(NUMBERS)
        for number in range(rows):
            row = lake.spark.range(number, number + 1, 1, 1).selectExpr(f"'{writer}' AS writer", "id AS n")
            written = tables.append(row, path)
            sys.stdout.write(f"{number} in version {written.version}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
