"""Records with an id: repeated, corrected and deleted ones.

In a source with `unique_by`, records are the same if they have the same id and event time; the first to land
is kept. With `sequence_by` the id alone counts, and the record with the greatest sequence is kept, whatever
its age: a correction is not late. The other records are dead letters that are closed from the beginning, with
one reason, which is also their status:

| rule | the record |
| --- | --- |
| duplicate | has the same fields as a previously accepted record |
| superseded | has a lesser sequence than another record of its id, or was deleted |
| deletion | deletes an id (`lakehouse.records.deletions`) |

A record with the same id (and event time or sequence) as another one, but different fields, is an open
letter, by the rule conflicting_id. The compared fields are those of the contract, and the event time.

Records are ordered by landing: bronze's `ingested_at`, then topic, partition and offset. So the outcome
depends neither on micro-batches nor on crashes. A deletion takes the greatest sequence that its id has had by
then: only a greater one brings the id back. A late record is kept as late, unless a record of its id has been
accepted before.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, LongType, StringType

from lakehouse.records import deletions
from lakehouse.records.fields import REASONS, reason
from lakehouse.records.headers import header_text as _header
from lakehouse.records.shown import shown, shown_bytes, with_value
from lakehouse.spark.columns import Columns
from lakehouse.stream import ID, SEQUENCE, Source, header_of

OF_ID, OF_SEQUENCE = COLUMNS = ("_id", "_sequence")
"""Of a judged record: its id as text, and its sequence."""

DUPLICATE, SUPERSEDED, CONFLICTING = "duplicate", "superseded", "conflicting_id"
DELETION = deletions.DELETION
CLOSED = (DUPLICATE, SUPERSEDED, DELETION)
"""Rules whose letters are closed from the beginning: nobody has to do anything about them."""

_PLACE = ("topic", "partition", "offset")
_ROW, _DELETION = "row", "deletion"
_BEFORE, IS_REMOVED = "_before", "_is_removed"


def header_types(source: Source) -> dict[str, DataType]:
    """Return the columns of silver that come from headers, with their types."""
    types: dict[str, DataType] = {}
    if header_of(source.unique_by):
        types[ID] = StringType()
    if header_of(source.sequence_by):
        types[SEQUENCE] = LongType()
    return types


def from_headers(source: Source) -> dict[str, Column]:
    """Return these columns for raw records; null where a record lacks the header or it is unreadable."""
    columns = {}
    if name := header_of(source.unique_by):
        text = _header(name)
        columns[ID] = F.when(F.is_valid_utf8(text) & (text != ""), text)
    if name := header_of(source.sequence_by):
        columns[SEQUENCE] = F.when(_header(name).rlike(r"^-?[0-9]{1,19}$"), _header(name).try_cast("long"))
    return columns


def reasons_of(source: Source) -> tuple[Column, ...]:
    """Return the reasons against a record whose id or sequence is missing from its headers."""
    found = []
    has_value = F.col("_value").isNotNull()
    if name := header_of(source.unique_by):
        broken = F.when(~F.is_valid_utf8(_header(name)), shown_bytes(_header(name).cast("binary")))
        message = with_value(f"the record has no header {name} with text in UTF-8", broken)
        found.append(F.when(has_value & F.col(ID).isNull(), reason("missing_id", ID, message)))
    if name := header_of(source.sequence_by):
        message = with_value(
            f"the record has no header {name} with a whole number of 64 bits", shown(_header(name))
        )
        found.append(F.when(has_value & F.col(SEQUENCE).isNull(), reason("bad_sequence", SEQUENCE, message)))
    return tuple(found)


def columns_of(source: Source) -> dict[str, Column]:
    """Return the columns by which judged records are compared; none if the source's have no id."""
    if source.id_column is None:
        return {}
    own = F.col(source.id_column).cast("string")
    sequence = F.lit(None) if source.sequence_column is None else F.col(source.sequence_column)
    if source.sequence_by is not None:
        is_deletion = deletions.is_deletion(source)
        own = F.when(is_deletion, deletions.id_of(source)).otherwise(own)
        sequence = F.when(is_deletion, deletions.sequence_of(source)).otherwise(sequence)
    return {OF_ID: own, OF_SEQUENCE: sequence.cast("long")}


def is_compared(source: Source) -> Column:
    """Select the judged records that are compared with others of their id: sound ones, and deletions."""
    rules = F.col("reasons.rule")
    sound = (F.size("reasons") == 0) | (rules == F.array(F.lit("late")))
    if source.sequence_by is not None:
        sound = sound | (rules == F.array(F.lit(DELETION)))
    return F.col(OF_ID).isNotNull() & sound


def fingerprint(source: Source, id_: Column) -> Column:
    """Return 48 bits of a hash of what makes records the same, and in the lower 16 the day of their time.

    Days are counted from 1970; those before it are 0, those from 2149 on 65535.
    """
    day = F.least(F.greatest(F.unix_date(F.col("event_time").cast("date")), F.lit(0)), F.lit(0xFFFF))
    return hash_of_same(source, id_).bitwiseOR(F.coalesce(day, F.lit(0)).cast("long"))


def hash_of_same(source: Source, id_: Column) -> Column:
    """Return a fingerprint without its day."""
    return hash_of(id_) if source.sequence_by is not None else hash_of(id_, F.col("event_time"))


def hash_of(*values: Column) -> Column:
    """Return the upper 48 bits of a hash; the lower 16 are 0."""
    return F.xxhash64(*values).bitwiseAND(F.lit(~0xFFFF))


def deleted_by(letters: DataFrame) -> DataFrame:
    """Return the ids that some letters of deletions delete, with the greatest sequence of each."""
    return letters.groupBy("unique_id").agg(F.max("sequence").alias("sequence"))


def compared(source: Source, judged: DataFrame, standing: DataFrame, deleted: DataFrame) -> DataFrame:
    """Compare judged records with each other and with what has been accepted before them.

    `judged` has the columns of `judge`; only records for which `is_compared` holds may be there. `standing`
    are rows of silver with one of the ids, which have landed before, with the columns of `row_columns`.
    `deleted` are ids that are deleted (`unique_id`), with the greatest `sequence` that each has had; for a
    source without `sequence_by`, none.

    Grain of the outcome: one row per judged record and per row of silver that is there no longer
    (`_is_removed`); key: topic, partition, offset. `reasons` of a judged record: those against it; none: it
    is in silver; of a removed row: why it has left. `unique_id`, `sequence` and `event_time` (UTC) are those
    of the record. Of a deletion, `_before` is the greatest sequence of its id until then; else null.
    """
    by = _comparing(source)
    every = by.coming.of(judged).union(by.standing.of(standing)).union(by.deleted.of(deleted))
    decided = reduce(lambda rows, more: more.added_to(rows), by.decided, every)
    return by.outcome.of(decided.where(by.is_told))


def row_columns(source: Source) -> list[str]:
    """Return the columns of silver by which its rows are compared with judged records."""
    ids = (one for one in (source.id_column, source.sequence_column) if one is not None)
    fields = (field.column for field in source.contract.fields)
    return list(dict.fromkeys((*_PLACE, "event_time", *ids, *fields)))


def removed_by(outcome: DataFrame) -> DataFrame:
    """Return the rows of silver that leave it, with reasons, `unique_id`, `sequence` and event time."""
    return outcome.where(IS_REMOVED).select(*_PLACE, "reasons", "unique_id", "sequence", "event_time")


def with_outcome(judged: DataFrame, outcome: DataFrame) -> DataFrame:
    """Return judged records with the reasons that they have among others of their ids."""
    found = outcome.where(~F.col(IS_REMOVED)).select(*_PLACE, F.col("reasons").alias("_found"), _BEFORE)
    values = {
        "reasons": F.coalesce("_found", "reasons"),
        OF_SEQUENCE: F.coalesce(OF_SEQUENCE, _BEFORE),
    }
    return judged.join(F.broadcast(found), list(_PLACE), "left").withColumns(values).select(*judged.columns)


@dataclass(frozen=True)
class _Comparing:
    """The columns of a comparison, built once: of each side, decided in steps, and those of the outcome."""

    coming: Columns
    standing: Columns
    deleted: Columns
    decided: tuple[Columns, ...]
    is_told: Column
    outcome: Columns


@cache
def _comparing(source: Source) -> _Comparing:
    content = F.struct(*(F.col(field.column) for field in source.contract.fields), F.col("event_time"))
    is_deletion = F.array_contains("reasons.rule", F.lit(DELETION))
    nothing, places = F.lit(None), {name: F.col(name) for name in _PLACE}
    more = ("ingested_at", "id", "event_time", "seq", "kind", "late", "content")
    none = dict.fromkeys((*_PLACE, *more), nothing)
    none |= {"reasons": F.array().cast(REASONS), "rank": F.lit(0)}
    coming = {
        "ingested_at": F.col("ingested_at"),
        "id": F.col(OF_ID),
        "event_time": F.col("event_time"),
        "seq": F.col(OF_SEQUENCE),
        "kind": F.when(is_deletion, _DELETION).otherwise(_ROW),
        "late": F.array_contains("reasons.rule", F.lit("late")),
        "content": F.when(~is_deletion, content),
        "reasons": F.col("reasons"),
        "rank": F.lit(1),
    }
    sequence = nothing if source.sequence_column is None else F.col(source.sequence_column)
    standing = {
        "id": F.col(source.id_column or ID).cast("string"),
        "event_time": F.col("event_time"),
        "seq": sequence.cast("long"),
        "kind": F.lit(_ROW),
        "late": F.lit(False),
        "content": content,
    }
    deleted = {
        "id": F.col("unique_id"),
        "seq": F.col("sequence"),
        "kind": F.lit(_DELETION),
        "late": F.lit(False),
    }
    is_removed = F.col("rank") == 0
    outcome = {
        **places,
        "reasons": F.coalesce(_reasons(source), none["reasons"]),
        "unique_id": F.col("id"),
        "sequence": F.col("seq"),
        "event_time": F.col("event_time"),
        _BEFORE: F.when(F.col("kind") == _DELETION, F.col("before")),
        IS_REMOVED: is_removed,
    }
    return _Comparing(
        coming=Columns(none | places | coming),
        standing=Columns(none | places | standing),
        deleted=Columns(none | deleted),
        decided=_decided(source),
        is_told=~is_removed | (F.col("next").isNotNull() & (F.col("kind") == _ROW)),
        outcome=Columns(outcome),
    )


def _decided(source: Source) -> tuple[Columns, ...]:
    """Return the columns that say, of the records of each key, what came before and after them, in steps.

    `accepted`; `before`: the greatest sequence until then; `last` and `next`: the last event before and the
    first one after that changed what silver has, an accepted record or a deletion.
    """
    is_sequenced, kind, rank = source.sequence_by is not None, F.col("kind"), F.col("rank")
    keys = ("id",) if is_sequenced else ("id", "event_time")
    in_order = Window.partitionBy(*keys).orderBy("rank", "ingested_at", *_PLACE)
    earlier = in_order.rowsBetween(Window.unboundedPreceding, -1)
    later = in_order.rowsBetween(1, Window.unboundedFollowing)
    seq = F.col("seq") if is_sequenced else F.when(kind == _ROW, F.lit(0).cast("long"))
    known = F.coalesce(F.max(~F.col("late")).over(earlier), F.lit(False))
    is_new = F.col("before").isNull() | (F.col("seq") > F.col("before"))
    accepted = (kind == _ROW) & F.col("counts").isNotNull() & is_new
    is_change = F.col("accepted") | (rank == 0) | (kind == _DELETION)
    steps = (
        {"seq": seq, "known": known},
        # A late record of an unknown id stays late, and says nothing about the records after it.
        {"counts": F.when(~F.col("late") | F.col("known"), F.col("seq"))},
        {"before": F.max("counts").over(earlier)},
        {"accepted": F.coalesce(accepted, F.lit(False))},
        {"change": F.when(is_change, F.struct("kind", "content", *_PLACE))},
        {
            "last": F.last("change", ignorenulls=True).over(earlier),
            "next": F.first("change", ignorenulls=True).over(later),
        },
    )
    return tuple(map(Columns, steps))


def _reasons(source: Source) -> Column:
    """Return the reasons of a record that has been decided on; null for a row that silver has."""
    column = source.id_column
    what = F.concat(F.lit(f"{header_of(source.unique_by) or source.unique_by} "), shown(F.col("id")))

    def said(rule: str, *words: str | Column) -> Column:
        text = F.concat(what, *(F.lit(word) if isinstance(word, str) else word for word in words))
        return F.array(reason(rule, column, text))

    def at(event: str) -> Column:
        place = (F.col(f"{event}.{name}").cast("string") for name in _PLACE)
        return F.coalesce(F.concat_ws(":", *place), F.lit("an earlier record"))

    by_next = F.when(F.col("next.kind") == _DELETION, said(SUPERSEDED, " was deleted by ", at("next"))).when(
        F.col("next").isNotNull(), said(SUPERSEDED, " was corrected by ", at("next"))
    )
    stays = F.when((F.col("rank") == 0) | F.col("accepted"), by_next)
    is_accepted = (F.col("rank") == 0) | F.col("accepted")
    same = F.col("content").eqNullSafe(F.col("last.content"))
    other = "sequence" if source.sequence_by is not None else "event time"
    return (
        F.when(is_accepted, stays)
        .when(F.col("kind") == _DELETION, F.col("reasons"))
        .when(F.col("late") & F.col("counts").isNull(), F.col("reasons"))
        .when(F.col("seq") < F.col("before"), said(SUPERSEDED, " has a greater sequence in ", at("last")))
        .when(F.col("last.kind") == _DELETION, said(SUPERSEDED, " was deleted by ", at("last")))
        .when(same, said(DUPLICATE, " was accepted before, from ", at("last")))
        .otherwise(said(CONFLICTING, f" has other values with the same {other} in ", at("last")))
    )
