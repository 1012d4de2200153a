"""Read records in an envelope: the keys of a stream's table name fields of the row that was changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakehouse.streams.definition import header_of
from lakehouse.streams.kinds.records import column_of

ROW, TIME, SEQUENCE, DELETED = "after", "source.ts_ms", "source.lsn", "op=d"
"""In Debezium's events: the changed row, the event time, PostgreSQL's sequence, and a deletion's mark."""
_OF_ROW = ("by", "value", "fields")
_TABLES = ("windows", "tables")


def in_debezium(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a stream of row changes, as Debezium writes them, with the paths in its envelope.

    The fields are those in `after`; the column of userId is user_id, as without an envelope. By default, the
    event time is the source's, the sequence is PostgreSQL's LSN, and deletions are recognised by op and by
    records without a value. Raises ValueError if there is no `unique_by`, without which corrections would
    count twice.
    """
    id_ = str(given.get("unique_by", ""))
    if not id_:
        raise ValueError('envelope = "debezium" needs unique_by, the column with the primary key')
    own = {key: _in_row(given[key]) for key in _OF_ROW if key in given}
    own |= {
        key: [_of_table(one) for one in given[key]] for key in _TABLES if isinstance(given.get(key), list)
    }
    implied = {"event_time": TIME, "sequence_by": SEQUENCE, "deleted_if": DELETED}
    if header_of(id_):
        return {**implied, **given, **own}
    return {**implied, "deletion_key": f"json:{id_}", **given, **own, "unique_by": f"{ROW}.{id_}"}


def _of_table(given: Any) -> Any:
    """Return a gold table's keys. A key column that the table itself selects is no field of the records."""
    if not isinstance(given, Mapping) or "by" not in given:
        return given
    by = given["by"] if isinstance(given["by"], list) else [given["by"]]
    selected = given.get("select", {})
    return {**given, "by": [one if isinstance(one, str) and one in selected else _in_row(one) for one in by]}


def _in_row(given: Any) -> Any:
    """Return a field, or a list of fields, with its path in the envelope; anything else unchanged."""
    if isinstance(given, list):
        return [_in_row(one) for one in given]
    field = {"name": given} if isinstance(given, str) else given
    if not isinstance(field, Mapping) or not isinstance(field.get("name"), str):
        return given
    return {"column": column_of(field["name"]), **field, "name": f"{ROW}.{field['name']}"}
