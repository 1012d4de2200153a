"""What is expected of every silver table: records that keep their contract, each from its bronze row."""

from __future__ import annotations

from great_expectations.expectations import Expectation

from lakehouse.quality.expectations import fresh, no_rows, required, rows, unique
from lakehouse.records.validation import COORDINATES
from lakehouse.stream import Contract, FieldType, Source


def accepted(source: Source) -> list[Expectation]:
    """Expect clean records of a source: what its contract requires, at a possible time, from bronze."""
    fields = [
        field
        for field in source.contract.fields
        if field.required and _is_in_every_row(source.contract, field.name)
    ]
    texts = [field.column for field in fields if field.type is FieldType.STRING]
    not_empty = " AND ".join(f"`{text}` <> ''" for text in texts)
    return [
        unique(COORDINATES),
        required(COORDINATES, (*(field.column for field in fields), "event_time", *COORDINATES)),
        *([rows(COORDINATES, "required texts are not empty", not_empty)] if texts else []),
        no_rows(
            "no event is further ahead than is tolerated",
            "SELECT topic, partition, offset, event_time FROM {batch} "
            "WHERE event_time > (SELECT timestampadd(SECOND, future_tolerance_s, now) FROM limits)",
        ),
        no_rows(
            "every row has its bronze row",
            "SELECT topic, partition, offset FROM {batch} "
            f"LEFT ANTI JOIN bronze_{source.table} USING (topic, partition, offset)",
        ),
        fresh("event_time"),
    ]


def _is_in_every_row(contract: Contract, name: str) -> bool:
    """Tell whether a required field has a value in tombstones too, where there are any."""
    return contract.tombstone in (None, name)
