"""The ids of records, and the dead-letter rules that result from comparing records with the same id.

With `unique_by` alone, records with the same id and event time are compared. With `sequence_by`, all records
with the same id are compared. docs/decisions/what-a-record-becomes.md explains the possible outcomes, and
`lakehouse.engine.records.comparing` decides the outcome for live runs, replays, rebuilds and the audit.

A record that is not a row in silver has one dead letter. A rule in CLOSED is the only reason in its dead
letter, and is also the dead letter's status. `conflicting_id`, `nothing_to_delete` and `retained` leave a
dead letter open. When the record of an open dead letter is sent again, `resent` becomes the last reason.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, LongType, StringType

from lakehouse.engine.records import deletions
from lakehouse.engine.records.fields import reason
from lakehouse.engine.records.headers import header_text
from lakehouse.engine.records.shown import shown, shown_bytes, with_value
from lakehouse.streams.definition import ID, SEQUENCE, Source, header_of

OF_ID, OF_SEQUENCE = COLUMNS = ("_id", "_sequence")
"""Columns in a validated record: its id as text, and its sequence."""

DUPLICATE, SUPERSEDED, CONFLICTING = "duplicate", "superseded", "conflicting_id"
DELETION = deletions.DELETION
NOTHING_TO_DELETE, LATE, RESENT, RETAINED = "nothing_to_delete", "late", "resent", "retained"
CLOSED = (DUPLICATE, SUPERSEDED, DELETION)
"""Rules whose dead letters are closed from the start, because they need no action."""
OPEN = "open"
SENT_AGAIN_AS = "sent again as "
"""The start of the message in a resent dead letter's last reason; the new record's coordinates follow."""

IS_CLOSED = "_is_closed"
"""A column in validated records: whether a record is excluded from comparisons because of retention."""

PLACE = ("topic", "partition", "offset")
"""The key of a Kafka record: its coordinates."""


def header_types(source: Source) -> dict[str, DataType]:
    """Return the silver columns that come from headers, with their types."""
    types: dict[str, DataType] = {}
    if header_of(source.unique_by):
        types[ID] = StringType()
    if header_of(source.sequence_by):
        types[SEQUENCE] = LongType()
    return types


def from_headers(source: Source) -> dict[str, Column]:
    """Return the columns in `header_types` for raw records, with null for a missing or unreadable header."""
    columns = {}
    if name := header_of(source.unique_by):
        text = header_text(name)
        columns[ID] = F.when(F.is_valid_utf8(text) & (text != ""), text)
    if name := header_of(source.sequence_by):
        text = header_text(name)
        columns[SEQUENCE] = F.when(text.rlike(r"^-?[0-9]{1,19}$"), text.try_cast("long"))
    return columns


def reasons_of(source: Source) -> tuple[Column, ...]:
    """Return the reasons for refusing a record whose headers lack its id or sequence."""
    found = []
    has_value = F.col("_value").isNotNull()
    if name := header_of(source.unique_by):
        broken = F.when(~F.is_valid_utf8(header_text(name)), shown_bytes(header_text(name).cast("binary")))
        message = with_value(f"the record has no {name} header containing UTF-8 text", broken)
        found.append(F.when(has_value & F.col(ID).isNull(), reason("missing_id", ID, message)))
    if name := header_of(source.sequence_by):
        message = with_value(
            f"the record has no {name} header containing a 64-bit integer", shown(header_text(name))
        )
        found.append(F.when(has_value & F.col(SEQUENCE).isNull(), reason("bad_sequence", SEQUENCE, message)))
    return tuple(found)


def columns_of(source: Source) -> dict[str, Column]:
    """Return the id and sequence columns for comparing records, or no columns for a source without ids."""
    if source.id_column is None:
        return {}
    own = F.col(source.id_column).cast("string")
    sequence = F.lit(None) if source.sequence_column is None else F.col(source.sequence_column)
    if source.sequence_by is not None:
        is_deletion = deletions.is_deletion(source)
        own = F.when(is_deletion, deletions.id_of(source)).otherwise(own)
        sequence = F.when(is_deletion, deletions.sequence_of(source)).otherwise(sequence)
    return {OF_ID: own, OF_SEQUENCE: sequence.cast("long")}


def is_sound() -> Column:
    """Return whether a validated record has no reasons for refusal."""
    return F.size("reasons") == 0


def is_only(rule: str) -> Column:
    """Return whether this rule is a validated record's only reason."""
    return F.col("reasons.rule") == F.array(F.lit(rule))


def may_be_row() -> Column:
    """Return whether a validated record has no reasons, or is only late."""
    return is_sound() | is_only(LATE)


def is_compared(source: Source) -> Column:
    """Return whether a validated record can become or delete a row: it is valid, only late, or a deletion."""
    sound = may_be_row()
    if source.sequence_by is not None:
        sound = sound | is_only(DELETION)
    return F.col(OF_ID).isNotNull() & sound


def id_of_row(source: Source) -> Column:
    """Return a silver row's id as text, for a source with ids."""
    return F.col(source.id_column or "").cast("string")


def is_sound_alone(reasons: Column) -> Column:
    """Return whether the record in a dead letter was valid by itself, and refused only because of its id."""
    of_id = F.array(*map(F.lit, (DUPLICATE, SUPERSEDED, CONFLICTING, RETAINED)))
    return F.size(F.array_except(reasons.getField("rule"), of_id)) == 0


def late_in(reasons: str) -> Column:
    """Return the reasons in a dead letter that mark its record as late."""
    return F.filter(reasons, lambda one: one.getField("rule") == LATE)


def retained_reason(source: Source) -> Column:
    """Return the reason for refusing a record because retention has removed the data of its id."""
    name = header_of(source.unique_by) or source.unique_by
    text = F.concat(F.lit(f"retention has deleted the records with {name} "), shown(F.col(OF_ID)))
    return reason(RETAINED, source.id_column, text)


def fingerprint(source: Source, id_: Column) -> Column:
    """Return a record's fingerprint: 48 bits of a hash of its identity, then 16 bits for its event day.

    Days are counted from 1970. Earlier days become 0, and days from 2149 on become 65535.
    """
    day = F.least(F.greatest(F.unix_date(F.col("event_time").cast("date")), F.lit(0)), F.lit(0xFFFF))
    return hash_of_same(source, id_).bitwiseOR(F.coalesce(day, F.lit(0)).cast("long"))


def hash_of_same(source: Source, id_: Column) -> Column:
    """Return a fingerprint without its day: a hash of the id and, without `sequence_by`, the event time."""
    return hash_of(id_) if source.sequence_by is not None else hash_of(id_, F.col("event_time"))


def hash_of(*values: Column) -> Column:
    """Return a hash whose lower 16 bits are set to 0."""
    return F.xxhash64(*values).bitwiseAND(F.lit(~0xFFFF))


TIMES = ("event_time", "kafka_timestamp", "ingested_at")
"""A record's times, UTC."""
LETTERS = (*PLACE, "unique_id", "sequence", *TIMES, "status", "reasons")
"""The dead-letter columns that a comparison reads."""


def are_compared() -> Column:
    """Return whether a dead letter is compared, or can be closed when its record is sent again."""
    return F.col("unique_id").isNotNull() & F.col("status").isin(OPEN, *CLOSED)


def row_columns(source: Source) -> list[str]:
    """Return the silver columns that are needed to compare rows with validated records."""
    ids = (one for one in (source.id_column, source.sequence_column) if one is not None)
    fields = (field.column for field in source.contract.fields)
    times = ("event_time", "own_time", "kafka_timestamp", "ingested_at", "admitted")
    return list(dict.fromkeys((*PLACE, *times, *ids, *fields)))
