"""Compare records that have the same id, in landing order, by the rules in `records.identity`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from lakehouse.engine.records.fields import REASONS, reason
from lakehouse.engine.records.identity import (
    CLOSED,
    CONFLICTING,
    DELETION,
    DUPLICATE,
    IS_CLOSED,
    LATE,
    NOTHING_TO_DELETE,
    OF_ID,
    OF_SEQUENCE,
    OPEN,
    PLACE,
    RESENT,
    RETAINED,
    SENT_AGAIN_AS,
    SUPERSEDED,
    TIMES,
    is_only,
    may_be_row,
)
from lakehouse.engine.records.shown import shown
from lakehouse.storage.spark.columns import Columns
from lakehouse.streams.definition import ID, Source, header_of

IS_REMOVED, IS_LETTER = "_is_removed", "_is_letter"
"""Columns in a row of the outcome: whether it removes a silver row or changes an existing dead letter."""

_OF_REMOVED = ("reasons", "unique_id", "sequence", *TIMES, "own_time", "admitted")
_ROW, _DELETION, _OTHER = "row", "deletion", "other"
_STANDING, _LETTER, _COMING = 0, 1, 2


def compared(source: Source, judged: DataFrame, standing: DataFrame, letters: DataFrame) -> DataFrame:
    """Decide the outcome of validated records by comparing them with each other and with earlier records.

    `judged` contains the columns that `judge` returns, and every record has an id. If there is a column
    IS_CLOSED, records for which it is true are ignored and keep their reasons, unless a later row with the
    same id shows that they were sent again. `standing` contains silver rows with the columns from
    `row_columns`, and `letters` contains dead letters with the columns LETTERS. Both contain only earlier
    records that are not in `judged`. They can contain other ids as well.

    Grain of the outcome: one row per record in `judged`, per removed silver row (IS_REMOVED) and per changed
    dead letter (IS_LETTER); key: topic, partition, offset. `reasons` lists the reasons for refusing the
    record, and is empty if the record is in silver. The row also contains the record's `unique_id`,
    `sequence` and times (UTC).
    """
    by = _comparing(source, are_marked=IS_CLOSED in judged.columns)
    every = by.coming.of(judged).union(by.standing.of(standing)).union(by.letters.of(letters))
    decided = reduce(lambda rows, more: more.added_to(rows), by.decided, every)
    return by.outcome.of(decided).where(by.is_told)


def removed_by(outcome: DataFrame) -> DataFrame:
    """Return the silver rows that are removed, with reasons, ids and times."""
    return outcome.where(IS_REMOVED).select(*PLACE, *_OF_REMOVED)


def changed_by(outcome: DataFrame) -> DataFrame:
    """Return the dead letters that are changed, with their new reasons."""
    return outcome.where(IS_LETTER).select(*PLACE, "reasons")


def with_outcome(judged: DataFrame, outcome: DataFrame) -> DataFrame:
    """Return the validated records; reasons in the outcome replace the previous reasons for a record."""
    own = ~F.col(IS_REMOVED) & ~F.col(IS_LETTER)
    found = outcome.where(own).select(*PLACE, F.col("reasons").alias("_found"))
    reasons = F.coalesce("_found", "reasons")
    joined = judged.join(F.broadcast(found), list(PLACE), "left")
    return joined.withColumn("reasons", reasons).select(*judged.columns)


@dataclass(frozen=True)
class _Comparing:
    """The columns for a comparison, built once: for each input, each decision step, and the outcome."""

    coming: Columns
    standing: Columns
    letters: Columns
    decided: tuple[Columns, ...]
    outcome: Columns
    is_told: Column


@cache
def _comparing(source: Source, *, are_marked: bool) -> _Comparing:
    content = F.struct(*(F.col(field.column) for field in source.contract.fields), F.col("event_time"))
    sequence = F.lit(None) if source.sequence_column is None else F.col(source.sequence_column)
    none, no_time = F.array().cast(REASONS), F.lit(None).cast("timestamp")
    outcome = {
        **{name: F.col(name) for name in (*PLACE, *TIMES, "own_time", "admitted")},
        "reasons": F.coalesce("found", none),
        "unique_id": F.col("id"),
        "sequence": F.col("own_seq"),
        IS_REMOVED: F.col("rank") == _STANDING,
        IS_LETTER: F.col("rank") == _LETTER,
    }
    return _Comparing(
        coming=Columns(
            _side(_COMING, OF_ID, F.col(OF_SEQUENCE), content)
            | {"kind": _kind_of_judged(are_marked=are_marked), "late": is_only(LATE)}
            | {"after": F.coalesce("admitted.after", "ingested_at"), "at": F.col("admitted.at")}
            | {"reasons": F.col("reasons")}
        ),
        standing=Columns(
            _side(_STANDING, source.id_column or ID, sequence.cast("long"), content)
            | {"kind": F.lit(_ROW), "at": no_time, "reasons": none}
            | {"own_time": F.col("own_time"), "admitted": F.col("admitted")}
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
    """Return the comparison columns for one kind of record. They have the same order for every kind."""
    known = {
        "rank": F.lit(rank),
        "id": F.col(id_).cast("string"),
        "own_seq": sequence,
        "late": F.lit(False),
        "content": content,
        "sent": F.unix_micros(F.coalesce("kafka_timestamp", "ingested_at")),
        "after": F.col("ingested_at"),
    }
    kept = {name: F.col(name) for name in (*PLACE, *TIMES)}
    nothing = dict.fromkeys(("kind", "at", "reasons", "own_time", "admitted"), F.lit(None))
    return kept | known | nothing


def _kind_of_judged(*, are_marked: bool) -> Column:
    is_apart = F.col(IS_CLOSED) if are_marked else F.lit(False)
    return (
        F.when(is_apart, _OTHER).when(may_be_row(), _ROW).when(is_only(DELETION), _DELETION).otherwise(_OTHER)
    )


def _kind_of_letter() -> Column:
    """Return the kind of a dead letter: a deletion, another open letter, or a record that `counts` (_ROW)."""
    deletes = (F.col("status") == DELETION) | F.array_contains("reasons.rule", F.lit(NOTHING_TO_DELETE))
    return F.when(deletes, _DELETION).when(F.col("status") == OPEN, _OTHER).otherwise(_ROW)


def _decided(source: Source) -> tuple[Columns, ...]:
    """Return the columns to add in each step of deciding the outcome for each id's records.

    A record that `counts` affects its id's state unless it `conflicts`. A record `is_new` if its sequence is
    greater than all earlier ones. `best` is the latest new record. `low` contains the best record's sequence
    and, negated, the earliest send time of the best record and its repeats. A deletion without a sequence
    removes the greatest sequence that was sent no later than the deletion, and all lower sequences. The best
    record is therefore a row if the send time in `low` is later than every such deletion (`until`), and if
    its sequence is greater than the sequences in all deletions that have one (`bar`). `rows` lists the
    records that became rows, in order. The columns `end_...` contain the state after all records.
    """
    is_sequenced = source.sequence_by is not None
    window = Window.partitionBy("id") if is_sequenced else Window.partitionBy("id", "event_time")
    in_order = window.orderBy("rank", "after", F.col("at").asc_nulls_first(), *PLACE)
    earlier = in_order.rowsBetween(Window.unboundedPreceding, -1)
    every = in_order.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    kind, seq, best, rank = F.col("kind"), F.col("seq"), F.col("best"), F.col("rank")
    is_deletion, no = kind == _DELETION, F.lit(False)
    in_place = F.struct("seq", "content", *PLACE)

    def was(column: Column) -> Column:
        return F.coalesce(column, no)

    def stands(name: str) -> Column:
        """Return whether the best record is a row, based on the columns with this prefix."""
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
    row = F.struct(F.col("number").alias("number"), "seq", *PLACE)
    stay = F.array(*map(F.lit, (CONFLICTING, RETAINED, RESENT, *CLOSED)))
    waits = (kind == _OTHER) & ~F.arrays_overlap("reasons.rule", stay)
    waits = (waits | ((kind == _ROW) & ~F.col("counts"))) & seq.isNotNull()
    answers = F.filter("rows", lambda one: (one["number"] > F.col("number")) & (one["seq"] >= F.col("seq")))
    deleter = F.max(F.when(is_deletion, F.struct("sent", *PLACE)))
    is_last = reduce(Column.__and__, (F.col(f"end_best.{name}") == F.col(name) for name in PLACE))
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
            "is_row": F.col("becomes") & stands("end_") & is_last,
            "takes": was(F.when(own.isNull(), F.col("least_sent") <= F.col("sent")).otherwise(least <= own)),
        },
        {"found": _reasons(source)},
    )
    return tuple(map(Columns, steps))


def _reasons(source: Source) -> Column:
    """Return the reasons for refusing a record, or null for a silver row or an unchanged dead letter."""
    column, header = source.id_column, header_of(source.unique_by)
    what = F.concat(F.lit(f"{header or source.unique_by} "), shown(F.col("id")))

    def said(rule: str, *words: str | Column) -> Column:
        text = F.concat(what, *(F.lit(word) if isinstance(word, str) else word for word in words))
        return F.array(reason(rule, column, text))

    def at(event: str, between: str = ":") -> Column:
        place = (F.col(f"{event}.{name}").cast("string") for name in PLACE)
        return F.coalesce(F.nullif(F.concat_ws(between, *place), F.lit("")), F.lit("an earlier record"))

    other = "sequence" if source.sequence_by is not None else "event time"
    again = F.array_append(
        "reasons", reason(RESENT, column, F.concat(F.lit(SENT_AGAIN_AS), at("answer", "/")))
    )
    conflict = said(CONFLICTING, f" was sent with different values but the same {other} in ", at("best"))
    deleted = said(SUPERSEDED, " was deleted by ", at("deleter"))
    is_coming = F.col("rank") == _COMING
    nothing = F.concat(F.lit("the record deletes an id that no record has had: "), shown(F.col("id")))
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
