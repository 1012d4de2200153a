"""Records that are valid by the contract of their topic, whatever they contain.

    make(table, random, Shape(names, times, …))   the records, in sending order

The contracts are those of tests/oracles/judging.py. Whether a record is accepted depends only on its time:
`Times` says in which range all are, whatever their order and micro-batches.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from random import Random

from tests.fuzz.names import LONG
from tests.oracles.judging import CONTRACTS, Field, Kind
from tests.support.pipeline import Raw, micros

PARTITIONS = 2
_PAYLOAD_BYTES = 300_000
TABLES = tuple(CONTRACTS)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MINUTE_US = 60_000_000
_STEPS_US = (0, 0, 1, 1_000, 999_000, 1_000_000, 1_000_001, 2_000_000, 30_000_000, 59_999_999, 300_000_000)
_LANDMARKS = tuple(
    micros(datetime.fromisoformat(text).replace(tzinfo=UTC))
    for text in (
        "1900-01-01T00:00:00", "1901-12-13T20:45:52", "1904-02-29T23:59:59.999", "1918-03-31T02:30:00",
        "1935-03-30T03:30:52", "1969-12-31T23:59:59.999999", "1970-01-01T00:00:00", "1970-01-01T00:00:00.001",
        "1999-12-31T23:59:59.999", "2000-02-29T12:00:00", "2001-09-09T01:46:40", "2011-11-06T01:30:00",
        "2038-01-19T03:14:08", "2100-02-28T23:59:59.999999", "2106-02-07T06:28:16",
    )
)  # fmt: skip
"""Where counters overflow, calendars disagree, and clocks of some time zone skip or repeat an hour."""

_DOUBLES = (
    "1e140", "-1e140", "9.999999999999999e139", "1" + "0" * 140, "1E+140", "5e-324", "-5e-324",
    "2.2250738585072014e-308", "2.2250738585072011e-308", "1e-400", "0", "-0", "0.0", "-0.0", "0e5", "1E0",
    "0.1", "0.30000000000000004", "9007199254740993", "123456789012345678901234567890123456789012",
    "0." + "0" * 300 + "1", "3." + "3" * 200, "-1.5", "1e-150", "1e70", "-1e70", "7",
)  # fmt: skip
_DECIMALS = (
    "0", "-0", "0.0", "0e99", "0.000000001", "-0.000000001", "1E-9", "1e27", "-1e27", "1.0e27",
    "999999999999999999999999999.999999999", "-999999999999999999999999999.999999999", "1999.999999999",
    "2000", "2000.000000000000000000000000000000000000", "123.45000000000000", "1.23456789E7", "12345678.9",
    "1E+2", "-7", "1000000000000000", "999999999999999.999999999", "-1000000000000000.000000001",
)  # fmt: skip
_MOST = "99999999999999999999999999999.999999999"
_PAYLOADS = (
    None, "null", '""', '"ok"', '"12"', '"null"', '"true"', '"{\\"a\\":1}"', '"[1"', '" "',
    '"\\u0000"', "{}", "[]", "true", "false", "0", "-0", "12", "1e308", "5e-324", "0.1",
    "12345678901234567890123456789012345678",
    "1E5", '{"a":[1,null,{"b":"\\"}"}]}', '{"":1}', '{"a b":{"c":[[[[]]]]}}', '[null,[],{},"",0]',
    '"\\ud83d\\ude9a"', '{"user1":"x","timestamp":0,"analytics":1,"metrics":2}', '"NaN"',
    '"-Infinity"', '"a?"', '"\\u2028"',
)  # fmt: skip
_UNKNOWN = (
    ("more", "1"), ("Value", '"x"'), ("VALUE", "[]"), ("service_id", "null"), ("event_time", "0"),
    ("_typed", "{}"), ("", '""'), ("a}b", '"}"'), ("offset", "-1"),
    ("more", '{"deep":[{"er":[null]}]}'), ("Timestamp", '"x"'), ("\u2028", "1e400"),
    ("record", "{}"), ("reasons", "[]"),
)  # fmt: skip


@dataclass(frozen=True)
class Times:
    """Event times from `first_us` to `last_us`, except an hour around `now_us`, in microseconds.

    `landmarks` are drawn more often.
    """

    first_us: int
    last_us: int
    now_us: int

    @property
    def landmarks(self) -> Sequence[int]:
        """The ends, and the moments between them at which software is known to fail."""
        return (
            self.first_us,
            self.last_us,
            *(at for at in _LANDMARKS if self.first_us <= at <= self.last_us),
        )

    def base(self, random: Random) -> int:
        """Return a moment around which records gather."""
        if random.random() < 0.4:
            return random.choice(self.landmarks)
        return random.randint(self.first_us, self.last_us) // _MINUTE_US * _MINUTE_US

    def near(self, base_us: int, random: Random) -> int:
        """Return a moment at or close to another one."""
        at = base_us + random.choice((-1, 1)) * random.choice(_STEPS_US)
        return self.kept(at)

    def kept(self, at_us: int) -> int:
        """Return the moment, or one near it that is within the times."""
        at = min(max(at_us, self.first_us), self.last_us)
        hour = 60 * _MINUTE_US
        return at - 3 * hour if abs(at - self.now_us) < hour else at


@dataclass(frozen=True)
class Shape:
    """What the records are made of, and how many there are in addition to those at the limits."""

    names: Sequence[str]
    times: Times
    count: int


def make(table: str, random: Random, shape: Shape) -> list[Raw]:
    """Return the records; the time of one of them is refused."""
    maker = _Maker(table, random, shape)
    return list(maker.records())


class _Maker:
    def __init__(self, table: str, random: Random, shape: Shape) -> None:
        self._table = table
        self._random = random
        self._shape = shape
        self._fields = CONTRACTS[table].fields
        self._bases = [shape.times.base(random) for _ in range(max(3, shape.count // 12))]
        self._names = itertools.cycle(random.sample(list(shape.names), len(shape.names)))

    def records(self) -> Iterator[Raw]:
        times, random = self._shape.times, self._random
        yield self._record(next(self._names), times.last_us)  # the table's front from here on
        yield self._record(next(self._names), times.first_us)
        for _ in range(self._shape.count):
            yield self._record(next(self._names), times.near(random.choice(self._bases), random))
        yield self._record(random.choice(LONG), times.near(self._bases[0], random))
        yield self._record(next(self._names), micros(datetime(9998, 12, 31, 23, 59, 59, tzinfo=UTC)))
        if self._table in ("sales_events", "transactions"):
            yield from self._at_the_limit()

    def _at_the_limit(self) -> Iterator[Raw]:
        """Yield amounts as great as possible: some add up to what decimal(38,9) can hold, some to more."""
        at_us, name = self._shape.times.near(self._bases[0], self._random), f"limit {self._random.random()}"
        sold = self._table == "sales_events"
        yield self._record(name, at_us, amount=_MOST, partition=0)
        if sold:
            yield self._record(name, at_us, amount=f"-{_MOST}", partition=0)
            yield self._record(name, at_us, amount="0.000000001", partition=0)
        beyond = f"beyond {self._random.random()}"
        for amount in (_MOST, "0.000000001", _MOST, *((f"-{_MOST}",) if sold else ())):
            yield self._record(beyond, at_us, amount=amount, partition=0)

    def _record(
        self, name: str, at_us: int, *, amount: str | None = None, partition: int | None = None
    ) -> Raw:
        random = self._random
        partition = self._partition(name) if partition is None else partition
        stamp_ms = self._kafka_stamp(at_us)
        sent = stamp_ms is not None and random.random() < 0.5  # the record's own timestamp is the event time
        if (
            self._table == "sales_events"
            and amount is None
            and random.random() < 0.08
            and stamp_ms is not None
        ):
            return Raw(None, name.encode(), self._headers(), partition, stamp_ms)
        texts = {
            one.name: text for one in self._fields if (text := self._text(one, name, amount)) is not None
        }
        if not sent:
            texts["timestamp"] = _time_text(at_us, random)
        elif random.random() < 0.5:
            texts["timestamp"] = "null"
        sent_ms = stamp_ms if sent else self._shape.times.now_us // 1000
        return Raw(self._object(texts), self._key(name), self._headers(), partition, sent_ms)

    def _partition(self, name: str) -> int:
        """Return the partition of a name: mostly the same one, as its key would ensure."""
        theirs = sum(name.encode()[:64]) % PARTITIONS
        return theirs if self._random.random() < 0.85 else self._random.randrange(PARTITIONS)

    def _kafka_stamp(self, at_us: int) -> int | None:
        """Return the event time as a record's timestamp in Kafka, if a broker takes it."""
        is_one = at_us % 1000 == 0 and 0 <= at_us <= self._shape.times.now_us
        return at_us // 1000 if is_one else None

    def _text(self, one: Field, name: str, amount: str | None) -> str | None:
        """Return a field as JSON, or None for a field that is left out."""
        random = self._random
        if one == self._fields[0]:
            return _spelled(name, random)
        if one.kind is Kind.STRING:
            return self._other_name(one, name)
        if one.kind is Kind.DOUBLE:
            return random.choice(_DOUBLES) if random.random() < 0.8 else repr(random.uniform(-1e6, 1e6))
        if one.kind is Kind.DECIMAL:
            return amount or self._amount(one)
        if random.random() < 0.05:
            return _spelled("p" * random.randint(1, _PAYLOAD_BYTES), random)
        return random.choice(_PAYLOADS)

    def _other_name(self, one: Field, first: str) -> str | None:
        """Return a second name: a different one, the same, a shared one, or none if that is allowed."""
        random = self._random
        if not one.required:
            some = (None, "null", '""', '"default"', '"prod:eu"', '"a=b"')
            return (
                random.choice(some)
                if random.random() < 0.7
                else _spelled(random.choice(self._shape.names), random)
            )
        if len(first) > 1_000 or random.random() < 0.4:
            return _spelled(random.choice(("cpu", "x", "x:expiry", "b-c")), random)
        return _spelled(first if random.random() < 0.1 else random.choice(self._shape.names), random)

    def _amount(self, one: Field) -> str:
        random = self._random
        if random.random() < 0.3:
            return f"{random.uniform(0.01, 3000):.{random.randint(0, 9)}f}"
        fit = [text for text in _DECIMALS if not one.positive or _is_positive(text)]
        return random.choice(fit)

    def _object(self, texts: Mapping[str, str]) -> bytes:
        """Return the fields as a JSON object, in random order, with blanks and other fields among them."""
        random = self._random
        pairs = list(texts.items())
        random.shuffle(pairs)
        if random.random() < 0.15:
            pairs.insert(random.randrange(len(pairs) + 1), random.choice(_UNKNOWN))

        def blank() -> str:
            return random.choice(("", "", "", " ", "\n", "\t ", "\r\n"))

        fields = (f"{blank()}{json.dumps(name)}{blank()}:{blank()}{text}{blank()}" for name, text in pairs)
        return f"{blank()}{{{','.join(fields)}}}{blank()}".encode()

    def _key(self, name: str) -> bytes | None:
        random = self._random
        return random.choice((None, b"", name.encode(), name.encode(), random.randbytes(9), b"\xff\x00"))

    def _headers(self) -> tuple[tuple[str, bytes | None], ...]:
        random = self._random
        if random.random() < 0.8:
            return ()
        some: tuple[tuple[str, bytes | None], ...] = (
            ("", b""),
            ("a", b"\0"),
            ("a", b"\xff"),
            ("é:{}", b"x" * 999),
        )
        return tuple(random.choices(some, k=random.randint(1, 3)))


def _is_positive(text: str) -> bool:
    return float(text) > 0


def _spelled(text: str, random: Random) -> str:
    """Return a text as JSON, with or without escapes."""
    return json.dumps(text, ensure_ascii=random.random() < 0.5)


def _time_text(at_us: int, random: Random) -> str:
    """Return a moment as JSON, in one of the ways that lose nothing."""
    if at_us % 1000 == 0 and random.random() < 0.5:
        return str(at_us // 1000)
    moment = _EPOCH + timedelta(microseconds=at_us)
    ahead = timedelta(minutes=random.choice((0, 0, 60, -210, 345, 840, -720, 1080, -1080)))
    local = moment.astimezone(timezone(ahead)) if moment.year > 1900 else moment
    fraction, suffix = f"{local.microsecond:06}", "Z"
    if local.utcoffset():
        sign, total = ("-" if ahead < timedelta(0) else "+"), abs(ahead) // timedelta(minutes=1)
        suffix = f"{sign}{total // 60:02}:{total % 60:02}"
    elif random.random() < 0.3:
        suffix = random.choice(("+00:00", "-00:00"))
    shown = random.choice((fraction, fraction + "999"))
    if not local.microsecond:
        shown = random.choice(("", "0", "000", "000000000"))
    seconds = f":{local:%S}" if local.second or shown or random.random() < 0.5 else ""
    return json.dumps(f"{local.year:04}-{local:%m-%dT%H:%M}{seconds}{'.' + shown if shown else ''}{suffix}")
