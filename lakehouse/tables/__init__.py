"""The only package that creates, reads, appends to or merges Delta tables.

A table lies at `<lake>/<layer>/<table>`; `Lake` finds it. Every write from a micro-batch carries a
transaction: an application id (the streaming query's) and a version (the batch's number). Delta keeps the
last version of each application in the table's log and skips a repeated one, so a retried micro-batch writes
once.
"""

from lakehouse.tables.commits import FILE, Candidates, Commit, begin
from lakehouse.tables.lake import Lake, open_lake
from lakehouse.tables.log import (
    committed_at,
    created_ms,
    exists,
    files,
    first_version,
    is_written,
    last_batch,
    properties_of,
    read_commit,
    size_bytes,
    snapshot,
    table_id,
    transactions,
    version_of,
)
from lakehouse.tables.reading import (
    HighWaterMark,
    as_declared,
    has_rows,
    read,
    read_change_stream,
    read_changes,
    read_changes_since,
    read_stream,
    read_version,
    register,
)
from lakehouse.tables.specs import DataFile, TableSpec, Transaction, checkpoint_of, from_micros, path_of
from lakehouse.tables.writing import (
    append,
    clear,
    delete,
    insert_missing,
    keep_one,
    replace,
    retry_on_conflict,
    update,
    update_matched,
    upsert,
)

__all__ = [
    "FILE",
    "Candidates",
    "Commit",
    "DataFile",
    "HighWaterMark",
    "Lake",
    "TableSpec",
    "Transaction",
    "append",
    "as_declared",
    "begin",
    "checkpoint_of",
    "clear",
    "committed_at",
    "created_ms",
    "delete",
    "exists",
    "files",
    "first_version",
    "from_micros",
    "has_rows",
    "insert_missing",
    "is_written",
    "keep_one",
    "last_batch",
    "open_lake",
    "path_of",
    "properties_of",
    "read",
    "read_change_stream",
    "read_changes",
    "read_changes_since",
    "read_commit",
    "read_stream",
    "read_version",
    "register",
    "replace",
    "retry_on_conflict",
    "size_bytes",
    "snapshot",
    "table_id",
    "transactions",
    "update",
    "update_matched",
    "upsert",
    "version_of",
]
