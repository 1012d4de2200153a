"""Parse event times, and give the reasons for refusing them.

An accepted time is between the source's earliest event time and the end of the year 9998. Every reader can
print such a time, and adding a window or an allowed lateness to it never overflows. Older calendars and local
mean time do not affect it. A time in the wrong unit is off by decades or millennia, so it falls outside this
range, and the message names the likely unit.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

from pyspark.sql import Column
from pyspark.sql import functions as F

from lakehouse.engine.records import fields
from lakehouse.engine.records.fields import as_written, json_name, misplaced, reason
from lakehouse.engine.records.shown import with_value
from lakehouse.storage.spark.kafka_times import KAFKA_TIMES, is_kafka_time
from lakehouse.streams.contract import Contract, TimeUnit
from lakehouse.streams.definition import Source

AS_DIGITS: frozenset[TimeUnit] = frozenset(("us", "ns"))
"""Units whose numbers can also be strings, because Protobuf's JSON mapping quotes 64-bit integers."""
KIND = fields.type_column("event_time")
WRITTEN = "_written_event_time"
_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
_END_S = KAFKA_TIMES.stop // 1000
PER_SECOND: dict[TimeUnit, int] = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_NAMES: dict[TimeUnit, str] = {
    "s": "seconds",
    "ms": "milliseconds",
    "us": "microseconds",
    "ns": "nanoseconds",
}
_MONTHS = "JanFebMarAprMayJunJulAugSepOctNovDec"
MAIL_TIME = (
    "(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun), )?([0-9]{1,2}) "
    f"({'|'.join(_MONTHS[at : at + 3] for at in range(0, 36, 3))}) "
    "([0-9]{4}) ([0-9]{2}:[0-9]{2}:[0-9]{2}) (GMT|[+-][0-9]{4})"
)
"""A pattern for times as in mail (RFC 2822) and HTTP (RFC 9110); its groups are the day, month, and so on."""
_LIKELY_S = (946_684_800, 4_102_444_800)  # the years 2000 and 2100
_LOCAL = r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,9})?)?"
_OFFSET = r"(Z|[+-]\d\d(:?\d\d)?)"  # Spark's cast reads all of them
_WITHOUT_SECONDS = r"^(.{16})(?=[Z+-])"  # ISO 8601 allows this, but Spark's cast does not


def is_proven(number: Column, source: Source, unit: TimeUnit | None = None) -> Column:
    """Return whether an integer is an accepted time in a unit (by default, the contract's unit)."""
    return number.between(*_span(source, unit or source.contract.event_time_unit))


def span_us(source: Source) -> tuple[int, int]:
    """Return the first and the last accepted time, in microseconds since 1970."""
    first = (source.earliest_event_time - _EPOCH) // _MICROSECOND
    return max(first, KAFKA_TIMES.start * 1000), _END_S * 1_000_000 - 1


def accepted(time: Column, source: Source) -> Column:
    """Return the time if it is accepted, or null otherwise."""
    return F.when(F.unix_micros(time).between(*span_us(source)), time)


def of_number(number: Column, unit: TimeUnit) -> Column:
    """Return the time for a number of whole units; fractions of a microsecond are truncated."""
    if unit == "s":
        return F.timestamp_seconds(number)
    if unit == "ms":
        return F.timestamp_millis(number)
    if unit == "us":
        return F.timestamp_micros(number)
    return F.timestamp_micros(F.call_function("div", number - F.pmod(number, F.lit(1000)), F.lit(1000)))


def is_absent() -> Column:
    """Return whether a record has no event time, so that Kafka's timestamp is used."""
    return F.col(KIND).isNull() | (F.col(KIND) == "VOID")


def written(contract: Contract) -> Column:
    """Return the time of a record whose time is text; a separate column, because it is used twice."""
    text = F.try_variant_get(fields.variant_at(contract.event_time_path), "$", "string")
    return F.when(F.col(KIND) == "STRING", _from_text(text, contract))


def of_record(source: Source) -> Column:
    """Return a record's event time or, if it has none, Kafka's timestamp. Times not accepted are null."""
    contract = source.contract
    is_number, from_number = _from_number(source)
    first_us, _ = span_us(source)
    of_kafka = is_kafka_time(F.unix_millis("_timestamp")) & (F.unix_micros("_timestamp") >= first_us)
    if len(contract.event_time_path) > 1:
        of_kafka = of_kafka & misplaced(contract.event_time_path, "event_time").isNull()
    return (
        F.when(is_absent(), F.when(of_kafka, F.col("_timestamp")))
        .when(is_number, from_number)
        .when(F.unix_micros(WRITTEN).between(*span_us(source)), F.col(WRITTEN))
    )


def reason_of(source: Source) -> Column:
    """Return the reason for refusing a record's event time, or null if the time is accepted."""
    contract, kind = source.contract, F.col(KIND)
    name, forms, bounds = contract.event_time, _forms(contract), _bounds(source)
    of_form = fields.is_whole(kind) | (kind == "STRING")
    if contract.event_time_unit == "s":
        of_form = of_form | fields.is_number(kind)
    value = as_written(contract.event_time_path)
    outside = F.concat(F.lit(f"{name} must be {forms}, {bounds}, not "), value, _hint(contract))
    at_kafka = F.concat(F.lit(", not "), F.unix_millis("_timestamp").cast("string"), F.lit(" ms"))
    of_kafka = F.concat(
        F.lit(f"without {name}, the Kafka record's timestamp must be {bounds}"),
        F.coalesce(at_kafka, F.lit("")),
    )
    wrong = with_value(F.concat(F.lit(f"{name} must be {forms}, not "), json_name(kind)), value)
    absent = reason("bad_timestamp", "event_time", of_kafka)
    if len(contract.event_time_path) > 1:
        absent = F.coalesce(misplaced(contract.event_time_path, "event_time"), absent)
    return F.when(
        F.col("event_time").isNull(),
        F.when(of_form, reason("bad_timestamp", "event_time", outside))
        .when(is_absent(), absent)
        .otherwise(reason("wrong_type", "event_time", wrong)),
    )


def _span(source: Source, unit: TimeUnit) -> tuple[int, int]:
    """Return the first and the last accepted number in this unit."""
    per_second = PER_SECOND[unit]
    first_us, _ = span_us(source)
    return -(-first_us * per_second // 1_000_000), min(_END_S * per_second, 2**63) - 1


def _from_number(source: Source) -> tuple[Column, Column]:
    """Return two columns: whether the time is an accepted number, and the time."""
    unit, kind = source.contract.event_time_unit, F.col(KIND)
    stamp = fields.variant_at(source.contract.event_time_path)
    if unit == "s":  # a fraction has the precision of a double
        number = F.try_variant_get(stamp, "$", "decimal(38,6)")
        first, last = (F.lit(Decimal(us).scaleb(-6)) for us in span_us(source))
        return fields.is_number(kind) & number.between(first, last), F.timestamp_seconds(number)
    number = F.try_variant_get(stamp, "$", "bigint")
    return fields.is_whole(kind) & number.between(*_span(source, unit)), of_number(number, unit)


def _from_text(text: Column, contract: Contract) -> Column:
    """Parse a time in ISO 8601 or RFC 2822 (or digits, for us and ns); return null for any other text.

    In ISO 8601, a space may replace the T, as in pandas and in logs, and an offset may lack the colon, as
    Python's %z does, or the minutes, as in PostgreSQL.
    """
    is_complete = text.rlike(_LOCAL + _OFFSET + r"\z")
    of_offset = F.when(is_complete, F.regexp_replace(text, _WITHOUT_SECONDS, "$1:00").try_cast("timestamp"))
    of_offset = F.coalesce(of_offset, F.when(text.rlike(rf"^{MAIL_TIME}\z"), _from_mail(text)))
    if contract.event_time_unit in AS_DIGITS:
        number = F.when(text.rlike(r"^[0-9]{1,19}\z"), text.try_cast("bigint"))
        of_offset = F.coalesce(of_offset, of_number(number, contract.event_time_unit))
    zone = contract.event_time_zone
    if zone is None:
        return of_offset
    whole = F.regexp_replace(F.concat(text, F.lit("Z")), _WITHOUT_SECONDS, "$1:00")
    shown = F.when(text.rlike(_LOCAL + r"\z"), whole.try_cast("timestamp"))  # as local time in the zone
    at = F.to_utc_timestamp(shown, zone)
    return F.coalesce(of_offset, F.when(F.from_utc_timestamp(at, zone) == shown, at))


def _from_mail(text: Column) -> Column:
    """Return the time of a text that matches MAIL_TIME. Whether the day of the week is right is ignored."""
    day, month, year, time, offset = (F.regexp_extract(text, MAIL_TIME, group) for group in range(1, 6))
    number = (F.call_function("instr", F.lit(_MONTHS), month) + 2) / 3
    date = F.concat_ws("-", year, F.lpad(number.cast("int").cast("string"), 2, "0"), F.lpad(day, 2, "0"))
    zone = F.when(offset == "GMT", F.lit("Z")).otherwise(offset)
    return F.concat(date, F.lit("T"), time, zone).try_cast("timestamp")


def _forms(contract: Contract) -> str:
    """Describe the notations that the contract accepts for event times."""
    unit, zone = contract.event_time_unit, contract.event_time_zone
    kind = "a number" if unit == "s" else "an integer, or its digits" if unit in AS_DIGITS else "an integer"
    number = f"epoch {_NAMES[unit]} ({kind})"
    offset = "with an offset" if zone is None else f"(times without an offset are in {zone})"
    return f"{number} or ISO 8601 {offset}"


def _bounds(source: Source) -> str:
    first = _EPOCH + span_us(source)[0] * _MICROSECOND
    return f"from {first.isoformat().replace('+00:00', 'Z')} to the year 9998"


def _hint(contract: Contract) -> Column:
    """Return a hint at what could be wrong with a value that is not an accepted time.

    The value could be a time between 2000 and 2100 in another unit, or text without an offset.
    """
    stamp = fields.variant_at(contract.event_time_path)
    number = F.try_variant_get(stamp, "$", "bigint")
    likely = F.lit(None).cast("string")
    for unit, per_second in PER_SECOND.items():
        if unit != contract.event_time_unit:
            first, end = (bound * per_second for bound in _LIKELY_S)
            likely = F.when(number.between(first, end), F.lit(_NAMES[unit])).otherwise(likely)
    other_unit = F.concat(F.lit(", which looks like epoch "), likely)
    no_offset = F.lit(None).cast("string")
    if contract.event_time_zone is None:
        is_local = F.try_variant_get(stamp, "$", "string").rlike(_LOCAL + r"\z")
        no_offset = F.when(is_local, F.lit(", which has no offset: set event_time_zone"))
    return F.coalesce(F.when(F.col(KIND) == "STRING", no_offset).otherwise(other_unit), F.lit(""))
