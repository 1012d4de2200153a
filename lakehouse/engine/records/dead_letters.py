"""The table of all streams' dead letters, and selections of its rows.

Grain: one row per refused record and stage; key: `id`, the SHA-256 of topic, partition, offset and stage. The
raw key, value and headers are the original bytes. Times are UTC. Rerunning a micro-batch does not write its
rows again. `status` is open until the record is accepted into silver (replayed), given up by the user
(discarded), or sent again as a new record (resent; the last reason names the new record). Dead letters for
duplicates, superseded records and deletions are closed from the start (`lakehouse.engine.records.identity`).
`batch` is null if the record was not refused by a micro-batch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache, reduce

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from lakehouse.common.errors import QueryError
from lakehouse.common.nearest import no_such
from lakehouse.engine.records import identity
from lakehouse.engine.records.fields import REASONS, reason
from lakehouse.engine.records.identity import CLOSED
from lakehouse.engine.records.validation import ADMITTED, SKIPPED
from lakehouse.storage.spark.collecting import collected
from lakehouse.storage.spark.columns import Columns
from lakehouse.storage.spark.execution import by_reference
from lakehouse.storage.spark.kafka_times import HEADERS
from lakehouse.storage.tables import TableSpec, described

SCHEMA = described(
    ("id", "string", "SHA-256 of topic, partition, offset and stage; the key."),
    ("stream", "string", "The stream that refused the record."),
    ("stage", "string", "The stage that refused the record."),
    ("topic", "string", "The record's Kafka topic."),
    ("partition", "integer", "The record's Kafka partition."),
    ("offset", "long", "The record's Kafka offset."),
    ("kafka_timestamp", "timestamp", "The record's Kafka timestamp, UTC; null if it is not a valid time."),
    ("key", "binary", "The record's key, as the original bytes."),
    ("value", "binary", "The record's value, as the original bytes."),
    ("headers", HEADERS, "The record's headers, as the original bytes."),
    ("reasons", REASONS, "Every rule that the record broke, with the column and a message."),
    (
        "status",
        "string",
        "open, replayed (since accepted into silver), discarded, resent, duplicate, superseded or deletion.",
    ),
    ("attempts", "integer", "How many times the record has been judged."),
    ("first_seen", "timestamp", "When the record was first refused, UTC."),
    ("last_attempt", "timestamp", "When the record was last judged, UTC."),
    ("job", "string", "The job that refused the record."),
    ("batch", "long", "The micro-batch that refused the record; null if there was none."),
    ("code_version", "string", "The version of lakehouse that refused the record."),
    ("unique_id", "string", "The record's id, if its source has unique_by; null if unknown."),
    ("sequence", "long", "The record's sequence; null if unknown, or if its source has no sequence_by."),
    ("ingested_at", "timestamp", "When the record landed, UTC."),
    ("event_time", "timestamp", "The record's event time, UTC; null if unknown."),
    ("own_time", "timestamp", "The record's own time, UTC; null if the record was invalid when it landed."),
    ("admitted", ADMITTED, "When a replay admitted the record into silver; null if none did."),
)

OPEN, REPLAYED, DISCARDED, RESENT = identity.OPEN, "replayed", "discarded", identity.RESENT
SENT_AGAIN_AS = identity.SENT_AGAIN_AS
LOST = "lost"
"""The rule in the dead letter of a replayed record if another writer has deleted the original dead letter."""
RULES = frozenset(
    {
        "bad_key",
        "bad_sequence",
        "bad_timestamp",
        "beyond_decimal",
        "beyond_long",
        "beyond_magnitude",
        "conflicting_id",
        "deletion",
        "duplicate",
        "empty_string",
        "future",
        "key_empty",
        "key_not_utf8",
        "key_null",
        "late",
        LOST,
        "missing_field",
        "missing_id",
        "not_a_number",
        "not_an_object",
        "not_finite",
        "not_framed",
        "not_json",
        "not_utf8",
        "nothing_to_delete",
        "null_field",
        "resent",
        "retained",
        "schema_lacks_field",
        "skipped",
        "superseded",
        "trailing_bytes",
        "undecodable",
        "unknown_schema",
        "value_null",
        "wrong_type",
    }
)
"""The rules that apply to every stream, including those for closed dead letters.

A stream can add its own rules. Filtering by any other rule is refused, unless a dead letter contains it.
"""

STATUSES = (OPEN, REPLAYED, DISCARDED, RESENT, *CLOSED)

_LACKING = ("unique_id", "sequence", "ingested_at", "event_time", "own_time", "admitted")

DEAD_LETTERS = TableSpec(
    "silver",
    "dead_letters",
    SCHEMA,
    stats=("stream", "partition", "offset", "first_seen"),
    change_feed=True,
    cluster_by="first_seen",
    comment="One row per record that a stage refused: the raw record and every reason.",
)


@dataclass(frozen=True)
class LetterOrigin:
    """The origin of dead letters: stream, stage, job, optional micro-batch, code version and time (UTC)."""

    stream: str
    stage: str
    job: str
    batch: int | None
    code_version: str
    now: datetime


@dataclass(frozen=True)
class Selection:
    """A selection of dead letters; each given condition must match.

    `rule` matches a dead letter if one of its reasons names that rule. `since` (inclusive) and `until`
    (exclusive) limit `first_seen`, UTC. `id` is a prefix of the dead letter's id.
    """

    streams: tuple[str, ...] = ()
    rule: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    id: str | None = None

    @property
    def is_everything(self) -> bool:
        """Whether the selection has no conditions."""
        return self == Selection()

    @property
    def names_skipped(self) -> bool:
        """Whether the selection includes records skipped with --skip, by naming their rule, offset or id."""
        return self.rule == SKIPPED or self.offset is not None or bool(self.id)

    def condition(self) -> Column:
        """Return the selection as a condition on rows of the dead-letter table."""
        conditions = {
            "streams": F.col("stream").isin(*self.streams),
            "rule": F.array_contains("reasons.rule", self.rule or ""),
            "since": F.col("first_seen") >= F.lit(self.since),
            "until": F.col("first_seen") < F.lit(self.until),
            "topic": F.col("topic") == F.lit(self.topic),
            "partition": F.col("partition") == F.lit(self.partition),
            "offset": F.col("offset") == F.lit(self.offset),
            "id": F.col("id").startswith(self.id or ""),
        }
        given = (condition for name, condition in conditions.items() if getattr(self, name) not in (None, ()))
        return reduce(Column.__and__, given, F.lit(True))


def is_skipped() -> Column:
    """Return whether the record in a dead letter was skipped with --skip and has not been replayed since."""
    return F.array_contains("reasons.rule", SKIPPED) & (F.col("status") != REPLAYED)


def refuse_unnamed(
    letters: DataFrame, selection: Selection, topics: Collection[str], rules: Collection[str]
) -> None:
    """Raise QueryError for a topic or rule that occurs neither in the streams nor in the dead letters.

    `topics` and `rules` contain the names that the streams use. The dead letters are read only if a selected
    name is not among them.
    """
    topic, rule = selection.topic, selection.rule
    if topic is not None and topic not in topics:
        there = {row.topic for row in letters.select("topic").distinct().collect()}
        _refuse("topic", topic, {*topics, *there})
    if rule is not None and rule not in rules and rule not in RULES:
        _refuse("dead-letter rule", rule, {*RULES, *rules, *count_by_rule(letters)})


def _refuse(what: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        raise QueryError(no_such(what, name, known))


def count_letters(letters: DataFrame) -> list[Row]:
    """Return the number of dead letters by stream, rule and status, largest first.

    A dead letter with two rules counts under both.
    """
    by_rule = letters.select("stream", "status", F.explode(F.array_distinct("reasons.rule")).alias("rule"))
    counts = by_rule.groupBy("stream", "rule", "status").count()
    return counts.orderBy(F.desc("count"), "stream", "rule", "status").collect()


def count_by_rule(letters: DataFrame) -> dict[str, int]:
    """Return the number of dead letters by rule, largest first.

    A dead letter with two rules counts under both.
    """
    rules = letters.select(F.explode(F.array_distinct("reasons.rule")).alias("rule"))
    counts = rules.groupBy("rule").count().orderBy(F.desc("count"), "rule")
    return {row.rule: row["count"] for row in counts.collect()}


def place() -> Column:
    """Return a record's topic/partition/offset, as written in the dead letters of resent records."""
    return F.concat_ws("/", "topic", F.col("partition").cast("string"), F.col("offset").cast("string"))


def resent_as(place: Column) -> dict[str, Column]:
    """Return the values to set in dead letters (merge target `t`) whose records were sent again.

    `place` is the topic/partition/offset of the new record in silver.
    """
    said = reason(RESENT, None, F.concat(F.lit(SENT_AGAIN_AS), place))
    return {"status": F.lit(RESENT), "reasons": F.array_append("t.reasons", said)}


def attempted(values: Mapping[str, Column], now: datetime) -> dict[str, Column]:
    """Add one more attempt to the values to set in dead letters (merge target `t`)."""
    return {**values, "attempts": F.col("t.attempts") + 1, "last_attempt": F.lit(now)}


def newest_letters(letters: DataFrame, limit: int, value_bytes: int) -> list[Row]:
    """Return the newest dead letters by `first_seen`, without key, headers and Kafka's timestamp.

    `value` contains only the first `value_bytes` of the raw value. An added column, `length`, contains the
    full length of the value in bytes.
    """
    newest = letters.orderBy(F.desc("first_seen"), "topic", "partition", F.desc("offset")).limit(limit)
    newest = newest.drop("key", "headers", "kafka_timestamp")
    beginning = F.substring("value", 1, value_bytes)
    return newest.withColumns({"value": beginning, "length": F.octet_length("value")}).collect()


def find_letter(letters: DataFrame, beginning: str) -> Row:
    """Return the only dead letter whose id has this prefix.

    If Python cannot represent one of its times, all its times are returned as text
    (`lakehouse.storage.spark.collecting`). Raises QueryError if no dead letter matches, or if several do.
    """
    found = collected(letters.where(F.col("id").startswith(beginning)).limit(2))
    if not found:
        raise QueryError(
            f"there is no dead letter whose id begins with {beginning!r}; "
            f"`lakehouse dead-letters list --status all` lists the letters"
        )
    if len(found) > 1:
        raise QueryError(
            f"several dead letters have an id that begins with {beginning!r}; specify more characters"
        )
    return found[0]


def to_dead_letters(dead: DataFrame, origin: LetterOrigin) -> DataFrame:
    """Return refused records as dead letters with one attempt; unknown values are null.

    The dead letters are open, or closed from the start (`lakehouse.engine.records.identity`). `dead` may lack
    the columns in _LACKING.
    """
    found_at = {
        "_now": by_reference(F.lit(origin.now), F.col("topic")),
        "_batch": by_reference(F.lit(origin.batch).cast("long"), F.col("topic")),
    }
    lacking = {name: F.lit(None).cast(SCHEMA[name].dataType) for name in _LACKING if name not in dead.columns}
    letter = _letter(origin.stream, origin.stage, origin.job, origin.code_version)
    return letter.of(dead.withColumns(found_at | lacking))


def status_by(reasons: Column) -> Column:
    """Return the status of a dead letter, given its reasons.

    A dead letter is closed if its only reason is a rule in CLOSED, and resent if its last reason is RESENT.
    Otherwise, it is open.
    """
    rule, last = (F.try_element_at(reasons, F.lit(place)).getField("rule") for place in (1, -1))
    is_closed = (F.size(reasons) == 1) & rule.isin(*CLOSED)
    return F.when(is_closed, rule).when(last == RESENT, F.lit(RESENT)).otherwise(F.lit(OPEN))


def own_time_by(reasons: Column) -> Column:
    """Return a refused record's own time (UTC), which advances the front (`engine.ops_tables.fronts`).

    The time is null if the record was not valid by itself when it landed. This includes all records that a
    replay admitted.
    """
    return F.when(F.col("admitted").isNull() & identity.is_sound_alone(reasons), F.col("own_time"))


def letter_id(stage: str) -> Column:
    """Return the id of the dead letter that a stage writes for a record."""
    place = ("topic", F.col("partition").cast("string"), F.col("offset").cast("string"), F.lit(stage))
    return F.sha2(F.concat_ws("\n", *place), 256)


@cache
def _letter(stream: str, stage: str, job: str, code_version: str) -> Columns:
    own = {
        "id": letter_id(stage),
        "stream": F.lit(stream),
        "stage": F.lit(stage),
        "status": status_by(F.col("reasons")),
        "own_time": own_time_by(F.col("reasons")),
        "attempts": F.lit(1),
        "first_seen": F.col("_now"),
        "last_attempt": F.col("_now"),
        "job": F.lit(job),
        "batch": F.col("_batch"),
        "code_version": F.lit(code_version),
    }
    return Columns({name: own.get(name, F.col(name)) for name in SCHEMA.names})
