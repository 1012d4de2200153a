"""What becomes of a record among the others of its id: one function for live run, replay, rebuild and audit.

In a source with `unique_by` alone, records of the same id and event time are compared, with `sequence_by`
those of the same id. docs/decisions/2026-11-28-what-a-record-becomes.md says what is decided, and `compared`
decides it. A record that is no row of silver has one letter. These rules stand alone, and say its status:

| rule | the record |
| --- | --- |
| duplicate | has the same fields as a row |
| superseded | has a lesser sequence than another record of its id, or was deleted |
| deletion | deletes an id (`lakehouse.records.deletions`), up to its sequence or to when it was sent |

Two more are open letters: `conflicting_id` has the row's id (and event time or sequence), but other fields;
`nothing_to_delete` is a deletion whose id no record has had yet. An open letter whose record was sent again
ends with `resent`. The compared fields are those of the contract, and the event time.

Records are ordered by landing: `ingested_at`, then topic, partition and offset. One that a replay has let in
stands where it was admitted. So the outcome depends neither on micro-batches nor on crashes.
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
NOTHING_TO_DELETE, LATE, RESENT = "nothing_to_delete", "late", "resent"
CLOSED = (DUPLICATE, SUPERSEDED, DELETION)
"""Rules whose letters are closed from the beginning: nobody has to do anything about them."""
OPEN = "open"
SENT_AGAIN_AS = "sent again as "
"""How the message of a resent letter's last reason begins; the record's place follows."""
IS_REMOVED, IS_LETTER = "_is_removed", "_is_letter"
"""Of an outcome: it is of a row of silver that leaves it; it is of a letter that was there before."""

_PLACE = ("topic", "partition", "offset")
_ROW, _DELETION, _OTHER = "row", "deletion", "other"
_STANDING, _LETTER, _COMING = 0, 1, 2


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
    """Select the judged records that may become rows, or delete some: sound and late ones, and deletions."""
    rules = F.col("reasons.rule")
    sound = (F.size("reasons") == 0) | (rules == F.array(F.lit(LATE)))
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


def compared(source: Source, judged: DataFrame, standing: DataFrame, letters: DataFrame) -> DataFrame:
    """Say what becomes of judged records among each other and those before them.

    `judged` has the columns of `judge`, and a known id. `standing` are rows of silver, with the columns of
    `row_columns`, and `letters` are dead letters, with the columns LETTERS, of other records that have landed
    before; both may be of other ids as well.

    Grain of the outcome: one row per judged record, per row of silver that is there no longer (IS_REMOVED),
    and per letter that changes (IS_LETTER); key: topic, partition, offset. `reasons`: those against it; none:
    it is in silver. `unique_id`, `sequence` and the times (UTC) are those of the record.
    """
    by = _comparing(source)
    every = by.coming.of(judged).union(by.standing.of(standing)).union(by.letters.of(letters))
    decided = reduce(lambda rows, more: more.added_to(rows), by.decided, every)
    return by.outcome.of(decided).where(by.is_told)


_TIMES = ("event_time", "kafka_timestamp", "ingested_at")
LETTERS = (*_PLACE, "unique_id", "sequence", *_TIMES, "status", "reasons")
"""The columns of dead letters by which they are compared."""


def are_compared() -> Column:
    """Select the letters by which records are compared, or which these may answer."""
    return F.col("unique_id").isNotNull() & F.col("status").isin(OPEN, *CLOSED)


def row_columns(source: Source) -> list[str]:
    """Return the columns of silver by which its rows are compared with judged records."""
    ids = (one for one in (source.id_column, source.sequence_column) if one is not None)
    fields = (field.column for field in source.contract.fields)
    times = ("event_time", "kafka_timestamp", "ingested_at", "admitted")
    return list(dict.fromkeys((*_PLACE, *times, *ids, *fields)))


def removed_by(outcome: DataFrame) -> DataFrame:
    """Return the rows of silver that leave it, with reasons, ids and times."""
    return outcome.where(IS_REMOVED).select(*_PLACE, "reasons", "unique_id", "sequence", *_TIMES, "admitted")


def changed_by(outcome: DataFrame) -> DataFrame:
    """Return the letters that change, with their new reasons."""
    return outcome.where(IS_LETTER).select(*_PLACE, "reasons")


def with_outcome(judged: DataFrame, outcome: DataFrame) -> DataFrame:
    """Return judged records with the reasons that they have among others of their ids."""
    own = ~F.col(IS_REMOVED) & ~F.col(IS_LETTER)
    found = outcome.where(own).select(*_PLACE, F.col("reasons").alias("_found"))
    reasons = F.coalesce("_found", "reasons")
    joined = judged.join(F.broadcast(found), list(_PLACE), "left")
    return joined.withColumn("reasons", reasons).select(*judged.columns)


@dataclass(frozen=True)
class _Comparing:
    """The columns of a comparison, built once: of each side, decided in steps, and those of the outcome."""

    coming: Columns
    standing: Columns
    letters: Columns
    decided: tuple[Columns, ...]
    outcome: Columns
    is_told: Column


@cache
def _comparing(source: Source) -> _Comparing:
    content = F.struct(*(F.col(field.column) for field in source.contract.fields), F.col("event_time"))
    sequence = F.lit(None) if source.sequence_column is None else F.col(source.sequence_column)
    none, no_time = F.array().cast(REASONS), F.lit(None).cast("timestamp")
    of_row = _side(_STANDING, source.id_column or ID, sequence.cast("long"), content)
    outcome = {
        **{name: F.col(name) for name in _PLACE},
        "reasons": F.coalesce("found", none),
        "unique_id": F.col("id"),
        "sequence": F.col("own_seq"),
        "event_time": F.col("event_time"),
        "kafka_timestamp": F.col("kafka_timestamp"),
        "ingested_at": F.col("ingested_at"),
        "admitted": F.col("admitted"),
        IS_REMOVED: F.col("rank") == _STANDING,
        IS_LETTER: F.col("rank") == _LETTER,
    }
    return _Comparing(
        coming=Columns(
            _side(_COMING, OF_ID, F.col(OF_SEQUENCE), content)
            | {"kind": _kind_of_judged(), "late": F.col("reasons.rule") == F.array(F.lit(LATE))}
            | {"after": F.coalesce("admitted.after", "ingested_at"), "at": F.col("admitted.at")}
            | {"reasons": F.col("reasons")}
        ),
        standing=Columns(
            of_row | {"kind": F.lit(_ROW), "at": no_time, "reasons": none, "admitted": F.col("admitted")}
        ),
        letters=Columns(
            _side(_LETTER, "unique_id", F.col("sequence"), F.lit(None))
            | {"kind": _kind_of_letter(), "at": no_time, "reasons": F.col("reasons")}
        ),
        decided=_decided(source),
        outcome=Columns(outcome),
        is_told=(F.col("rank") == _COMING) | F.col("found").isNotNull(),
    )


def _side(rank: int, id_: str, sequence: Column, content: Column) -> dict[str, Column]:
    """Return the columns by which records of one kind are compared with the others, in one order."""
    known = {
        "rank": F.lit(rank),
        "id": F.col(id_).cast("string"),
        "own_seq": sequence,
        "late": F.lit(False),
        "content": content,
        "sent": F.unix_micros(F.coalesce("kafka_timestamp", "ingested_at")),
        "after": F.col("ingested_at"),
    }
    kept = {name: F.col(name) for name in (*_PLACE, "event_time", "kafka_timestamp", "ingested_at")}
    nothing = dict.fromkeys(("kind", "at", "reasons", "admitted"), F.lit(None))
    return kept | known | nothing


def _kind_of_judged() -> Column:
    rules = F.col("reasons.rule")
    is_row = (F.size(rules) == 0) | (rules == F.array(F.lit(LATE)))
    return F.when(is_row, _ROW).when(rules == F.array(F.lit(DELETION)), _DELETION).otherwise(_OTHER)


def _kind_of_letter() -> Column:
    """Duplicates and superseded records have counted; of the open ones, deletions do."""
    deletes = (F.col("status") == DELETION) | F.array_contains("reasons.rule", F.lit(NOTHING_TO_DELETE))
    return F.when(deletes, _DELETION).when(F.col("status") == OPEN, _OTHER).otherwise(_ROW)


def _decided(source: Source) -> tuple[Columns, ...]:
    """Return the columns that decide on the records of each id, in steps.

    `counts`: it counts, unless it `conflicts`. `is_new`: with a greater sequence than all before it. `best`:
    the last of these; `low`: its sequence and, negated, the least time of sending among those like it. A
    deletion takes the greatest sequence that was sent no later than it, and those below. So the best one is a
    row while `low` was sent later than every deletion (`until`), and its sequence is above theirs (`bar`).
    `rows` are those that became a row, in order; `end_…` is the state after all records.
    """
    is_sequenced = source.sequence_by is not None
    window = Window.partitionBy("id") if is_sequenced else Window.partitionBy("id", "event_time")
    in_order = window.orderBy("rank", "after", F.col("at").asc_nulls_first(), *_PLACE)
    earlier = in_order.rowsBetween(Window.unboundedPreceding, -1)
    every = in_order.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    kind, seq, best, rank = F.col("kind"), F.col("seq"), F.col("best"), F.col("rank")
    is_deletion, no = kind == _DELETION, F.lit(False)
    in_place = F.struct("seq", "content", *_PLACE)

    def was(column: Column) -> Column:
        return F.coalesce(column, no)

    def stands(name: str) -> Column:
        """Whether the best record is a row, by the columns of this prefix."""
        taken = was(-F.col(f"{name}low.sent") <= F.col(f"{name}until"))
        taken = taken | was(F.col(f"{name}best.seq") <= F.col(f"{name}bar"))
        return F.col(f"{name}best").isNotNull() & ~taken

    low = F.when(F.col("holds"), F.struct("seq", (-F.col("sent")).alias("sent")))
    until = F.max(F.when(is_deletion & F.col("own_seq").isNull(), F.col("sent")))
    bar = F.max(F.when(is_deletion, F.col("own_seq")))
    newest = F.last(F.when(F.col("is_new"), in_place), ignorenulls=True)
    repeats = F.col("counts") & ~F.col("is_new") & was(seq == best.seq)
    like_best = repeats & ((rank == _LETTER) | F.col("content").eqNullSafe(best.content))
    is_taken = was(F.col("sent") <= F.col("until")) | was(seq <= F.col("bar"))
    counted, own, least = F.col("counts") & ~F.col("conflicts"), F.col("own_seq"), F.col("least_seq")
    row = F.struct(F.col("number").alias("number"), "seq", *_PLACE)
    waits = (kind == _OTHER) & ~F.array_contains("reasons.rule", F.lit(CONFLICTING))
    waits = (waits | ((kind == _ROW) & ~F.col("counts"))) & seq.isNotNull()
    answers = F.filter("rows", lambda one: (one["number"] > F.col("number")) & (one["seq"] >= F.col("seq")))
    deleter = F.max(F.when(is_deletion, F.struct("sent", *_PLACE)))
    steps: tuple[dict[str, Column], ...] = (
        {
            "seq": F.col("own_seq") if is_sequenced else F.lit(0).cast("long"),
            "known": was(F.max((kind == _ROW) & ~F.col("late")).over(earlier)),
            "number": F.row_number().over(in_order),
        },
        {"counts": (kind == _ROW) & (~F.col("late") | F.col("known"))},
        {"before": F.max(F.when(F.col("counts"), seq)).over(earlier)},
        {"is_new": F.col("counts") & (F.col("before").isNull() | (seq > F.col("before")))},
        {"best": newest.over(earlier)},
        {"holds": F.col("is_new") | was(like_best), "until": until.over(earlier), "bar": bar.over(earlier)},
        {"low": F.max(low).over(earlier)},
        {"repeats_row": repeats & stands(""), "becomes": F.col("is_new") & ~is_taken},
        {"conflicts": F.col("repeats_row") & ~was(like_best), "waits": was(waits)},
        {
            "end_best": newest.over(every),
            "end_low": F.max(low).over(every),
            "end_until": until.over(every),
            "end_bar": bar.over(every),
            "least_sent": F.min(F.when(counted, F.col("sent"))).over(every),
            "least_seq": F.min(F.when(counted, seq)).over(every),
            "deleter": deleter.over(every),
            "is_waited": F.max("waits").over(every),
        },
        {"rows": F.collect_list(F.when(F.col("becomes") & F.col("is_waited"), row)).over(every)},
        {
            "answer": F.when(F.col("waits"), F.get(answers, F.lit(0))),
            "is_row": F.col("becomes") & stands("end_") & _is_at("end_best"),
            "takes": was(F.when(own.isNull(), F.col("least_sent") <= F.col("sent")).otherwise(least <= own)),
        },
        {"found": _reasons(source)},
    )
    return tuple(map(Columns, steps))


def _is_at(event: str) -> Column:
    return reduce(Column.__and__, (F.col(f"{event}.{name}") == F.col(name) for name in _PLACE))


def _reasons(source: Source) -> Column:
    """Return the reasons of a record that has been decided on; null for a row, and for what stays."""
    column, header = source.id_column, header_of(source.unique_by)
    what = F.concat(F.lit(f"{header or source.unique_by} "), shown(F.col("id")))

    def said(rule: str, *words: str | Column) -> Column:
        text = F.concat(what, *(F.lit(word) if isinstance(word, str) else word for word in words))
        return F.array(reason(rule, column, text))

    def at(event: str, between: str = ":") -> Column:
        place = (F.col(f"{event}.{name}").cast("string") for name in _PLACE)
        return F.coalesce(F.concat_ws(between, *place), F.lit("an earlier record"))

    other = "sequence" if source.sequence_by is not None else "event time"
    again = F.array_append("reasons", reason(RESENT, None, F.concat(F.lit(SENT_AGAIN_AS), at("answer", "/"))))
    conflict = said(CONFLICTING, f" has other values with the same {other} in ", at("best"))
    deleted = said(SUPERSEDED, " was deleted by ", at("deleter"))
    is_coming = F.col("rank") == _COMING
    nothing = F.concat(F.lit("no record has had the id "), shown(F.col("id")), F.lit(" that it deletes"))
    deletes = F.concat(F.lit("the record deletes "), shown(F.col("id")))
    by_deletion = F.when(F.col("takes"), F.array(reason(DELETION, column, deletes))).otherwise(
        F.array(reason(NOTHING_TO_DELETE, column, nothing))
    )
    is_changed = is_coming | (F.array_contains("reasons.rule", F.lit(NOTHING_TO_DELETE)) & F.col("takes"))
    by_row = (
        F.when(F.col("is_row"), F.lit(None))
        .when(
            F.col("becomes") & (F.col("end_best.seq") > F.col("seq")),
            said(SUPERSEDED, " was corrected by ", at("end_best")),
        )
        .when(F.col("is_new"), deleted)
        .when(F.col("conflicts"), conflict)
        .when(F.col("repeats_row"), said(DUPLICATE, " was accepted before, from ", at("best")))
        .when(F.col("seq") < F.col("before"), said(SUPERSEDED, " has a greater sequence in ", at("best")))
        .otherwise(deleted)
    )
    stays = F.when(is_coming, F.col("reasons"))
    return (
        F.when(F.col("answer").isNotNull(), again)
        .when(F.col("kind") == _DELETION, F.when(is_changed, by_deletion))
        .when(F.col("counts"), F.when(F.col("rank") != _LETTER, by_row))
        .otherwise(stays)
    )
