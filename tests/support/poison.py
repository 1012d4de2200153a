"""Records of every kind that streams must refuse, and the rules that must refuse each.

KINDS["sales_events"]                         the kinds of a silver table's topic, each with literal rules
Kind.make(rng, time_ms)                       one record of the kind; `time_ms` is a valid time
endless(Random(1), time_ms)                   all kinds of all tables in a shuffled order, over and over

The rules are written by hand, based on the table in docs/dead-letters.md; nothing is taken from the code that
judges records. Half of the records have `time_ms` as their timestamp and half have none, because the two are
read in different ways.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

MEGABYTE = 1_000_000
"""Less than the 1,048,588 bytes that a broker accepts by default, with room for key, headers and batch."""

_DAY_MS = 24 * 3600 * 1000
_STRING, _DOUBLE, _DECIMAL, _AMOUNT, _ANY = "string", "double", "decimal", "amount", "any"


class Bytes(NamedTuple):
    """A Kafka record's value and key."""

    value: bytes | None
    key: bytes | None


@dataclass(frozen=True)
class Kind:
    """A kind of invalid record: its family, the exact case, how to create it, and all rules that it breaks.

    `huge`: the record is about a megabyte in size.
    """

    family: str
    case: str
    make: Callable[[Random, int], Bytes]
    rules: frozenset[str]
    huge: bool = False

    @property
    def name(self) -> str:
        return f"{self.family}: {self.case}"


@dataclass(frozen=True)
class _Field:
    name: str
    type: str
    required: bool = True


_USERS = (_Field("user1", _STRING), _Field("user2", _STRING))
_FIELDS: Mapping[str, tuple[_Field, ...]] = {
    "metrics_events": (
        _Field("serviceId", _STRING),
        _Field("metricName", _STRING),
        _Field("value", _DOUBLE),
        _Field("environment", _STRING, required=False),
    ),
    "call_analytics": (*_USERS, _Field("analytics", _ANY, required=False)),
    "call_metrics": (*_USERS, _Field("metrics", _ANY, required=False)),
    "sales_events": (_Field("product", _STRING), _Field("value", _DECIMAL)),
    "transactions": (_Field("userId", _STRING), _Field("amount", _AMOUNT)),
}
_WRONG_TYPES = {
    _STRING: ("7", "-1.5", "1e5", "1e400", "true", "false", "{}", '{"a":1}', "[]", '["a"]'),
    _DOUBLE: ('"12.5"', '"NaN"', '""', "true", "false", "{}", '{"a":1}', "[]", "[1]"),
}
_WRONG_TYPES |= {_DECIMAL: _WRONG_TYPES[_DOUBLE], _AMOUNT: _WRONG_TYPES[_DOUBLE], _ANY: ()}
_OUT_OF_RANGE: dict[str, Mapping[str, tuple[str, ...]]] = {
    _DOUBLE: {
        "not_finite": ("1e400", "-1e400", "1.7976931348623159e308", "1" * 320),
        "beyond_magnitude": ("1.1e140", "-1.7e308"),
    },
    _DECIMAL: {
        "beyond_decimal": (
            "1e30",
            "1" + "0" * 29,
            "-1e29",
            "0.1234567891",
            "1e-10",
            "1e400",
            "1.00000000000000000001e3",
            "0." + "1" * 40,
        )
    },
}
_OUT_OF_RANGE[_AMOUNT] = _OUT_OF_RANGE[_DECIMAL]
_WRONG_TYPES_OF_A_TIME = ("true", "1.5", "1767225600000.5", "1.7e12", "{}", '{"a":1}', "[]", "[1]", "1" * 39)
_BAD_TIMES = (
    '""',
    '"yesterday at noon"',
    '"1767225600000"',
    '"2026-01-01"',
    '"2026-01-01T00:00:00"',
    '"2026-13-01T00:00:00Z"',
    '"2023-02-29T00:00:00Z"',
    '"2026-01-01T23:59:60Z"',
    '"10000-01-01T00:00:00Z"',
    '"0001-01-01T00:00:00Z"',
    '"9999-12-31T23:59:59Z"',
    "253370764800000",
    "1767225600",  # seconds
    "1767225600000000",  # microseconds
    "-62135596800000",
    "9223372036854775808",
)

_Edit = Callable[[Random, "dict[str, str]"], bytes]


class _Table:
    """The records of one table's topic, as JSON text by field, and ways to change them."""

    def __init__(self, fields: tuple[_Field, ...]) -> None:
        self.fields = fields
        self.text_field = fields[0].name

    def record(self, rng: Random, time_ms: int) -> dict[str, str]:
        """Return a valid record, each field as JSON."""
        texts = {one.name: _valid(one, rng) for one in self.fields}
        if rng.random() < 0.5:
            texts["timestamp"] = str(time_ms)
        return texts

    def kind(self, family: str, case: str, edit: _Edit, *rules: str, huge: bool = False) -> Kind:
        """Return a kind whose values are made from a valid record."""

        def make(rng: Random, time_ms: int) -> Bytes:
            record = self.record(rng, time_ms)
            return Bytes(edit(rng, record), json.loads(record[self.text_field]).encode())

        return Kind(family, case, make, frozenset(rules), huge)

    def replaced(self, family: str, field: str, text: str, *rules: str, huge: bool = False) -> Kind:
        """Return a kind in which a field's JSON is replaced."""
        case = f"{field} is {text[:24]}"
        return self.kind(family, case, lambda _, record: _dump(record | {field: text}), *rules, huge=huge)


def _valid(field: _Field, rng: Random) -> str:
    if field.type == _STRING:
        return json.dumps(
            f"{rng.choice(('ada', 'größe', '検索', 'café 🚚'))}{rng.randrange(100)}", ensure_ascii=False
        )
    if field.type == _ANY:
        return rng.choice(('"ok"', '{"a":[1,null]}', "12", "null", "true"))
    return f"{rng.uniform(0.5, 100):.2f}"


def _dump(texts: Mapping[str, str]) -> bytes:
    return ("{" + ",".join(f'"{name}":{text}' for name, text in texts.items()) + "}").encode()


def _bytes_kinds(table: _Table) -> Iterator[Kind]:
    def random_bytes(rng: Random, _: dict[str, str]) -> bytes:
        return rng.randbytes(rng.randint(0, 400)) + b"\xff"

    def cut_character(_: Random, record: dict[str, str]) -> bytes:
        return _dump(record | {table.text_field: '"caf\N{LATIN SMALL LETTER E WITH ACUTE}"'}).replace(
            b"\xc3\xa9", b"\xc3"
        )

    def cut_at_the_end(_: Random, record: dict[str, str]) -> bytes:
        return _dump(record)[:-1] + "検".encode()[:2]

    def inserted(sequence: bytes) -> _Edit:
        mark = "\N{PILE OF POO}"
        return lambda _, record: _dump(record | {table.text_field: f'"a{mark}"'}).replace(
            mark.encode(), sequence
        )

    yield table.kind("random bytes", "never UTF-8", random_bytes, "not_utf8")
    yield table.kind("truncated UTF-8", "inside a string", cut_character, "not_utf8")
    yield table.kind("truncated UTF-8", "at the end", cut_at_the_end, "not_utf8")
    yield table.kind("not UTF-8", "a surrogate half", inserted(b"\xed\xa0\x80"), "not_utf8")
    yield table.kind("not UTF-8", "an overlong slash", inserted(b"\xc0\xaf"), "not_utf8")
    yield table.kind("not UTF-8", "Latin-1", inserted(b"\xe9"), "not_utf8")
    yield table.kind("UTF-16", "with its mark", lambda _, r: _dump(r).decode().encode("utf-16"), "not_utf8")
    yield table.kind(
        "1 MB", "of random bytes", lambda rng, _: rng.randbytes(MEGABYTE - 1) + b"\xff", "not_utf8", huge=True
    )
    yield table.kind("1 MB", "of one letter", lambda _, __: b"x" * MEGABYTE, "not_json", huge=True)
    yield table.kind("deep nesting", "1 MB of brackets", lambda _, __: b"[" * MEGABYTE, "not_json", huge=True)


def _text_kinds(table: _Table) -> Iterator[Kind]:
    def behind(tail: bytes) -> _Edit:
        return lambda _, record: _dump(record) + tail

    def cut(rng: Random, record: dict[str, str]) -> bytes:
        whole = _dump(
            {name: json.dumps(text) for name, text in record.items()}
        )  # ASCII, so no character is cut
        return whole[: rng.randint(1, len(whole) - 1)]

    yield table.kind("empty value", "no bytes", lambda _, __: b"", "not_json")
    yield table.kind("empty value", "blanks", lambda rng, _: b" \r\n\t" * rng.randint(1, 5), "not_json")
    yield table.kind("truncated JSON", "anywhere", cut, "not_json")
    yield table.kind("a byte order mark", "before", lambda _, r: b"\xef\xbb\xbf" + _dump(r), "not_json")
    for tail in (b" }]", b",", b"x", b"\x00", b" // c", b',"more":1'):
        yield table.kind("a tail", repr(tail)[2:-1], behind(tail), "not_json")
    yield table.kind("two values", "side by side", lambda _, r: _dump(r) * 2, "not_json")
    yield table.kind("two values", "on two lines", lambda _, r: _dump(r) + b"\n" + _dump(r), "not_json")
    yield table.kind("single quotes", "all of them", lambda _, r: _dump(r).replace(b'"', b"'"), "not_json")
    for case, broken in (
        ("a bare name", "{{{0}:1}}"),
        ("a last comma", '{{"{0}":1,}}'),
        ("012", '{{"{0}":012}}'),
    ):
        text = broken.format(table.text_field).encode()
        yield table.kind("not quite JSON", case, lambda _, __, text=text: text, "not_json")  # type: ignore[misc]
    yield table.kind("words", "plain", lambda _, r: b"hello " + r[table.text_field].encode(), "not_json")


def _parser_kinds(table: _Table) -> Iterator[Kind]:
    def nested(rng: Random, record: dict[str, str]) -> bytes:
        depth = rng.randint(1_100, 5_000)
        return _dump(record | {"more": "[" * depth + "]" * depth})

    def nested_objects(rng: Random, record: dict[str, str]) -> bytes:
        depth = rng.randint(1_100, 5_000)
        return _dump(record | {"more": '{"a":' * depth + "1" + "}" * depth})

    yield table.kind("deep nesting", "arrays", nested, "not_json")
    yield table.kind("deep nesting", "objects", nested_objects, "not_json")
    yield table.replaced("deep nesting", table.text_field, "[" * 1_500 + "]" * 1_500, "not_json")
    for field in (*(one.name for one in table.fields), "more"):
        for word in ("NaN", "Infinity", "-Infinity"):
            yield table.replaced(word.lstrip("-"), field, word, "not_json")
    for control in ("\n", "\x01", "\x1f"):
        yield table.replaced("a control character", table.text_field, f'"a{control}b"', "not_json")
    for half in (r"\ud800", r"a\udc00"):
        yield table.replaced("half a surrogate pair", table.text_field, f'"{half}"', "not_json")
    yield table.replaced("a key twice within a field", table.text_field, '{"a":1,"a":2}', "not_json")
    yield table.replaced("too many digits", table.fields[-1].name, "1" * 1_001, "not_json")
    yield table.kind("a long name", "60,000", lambda _, r: _dump(r | {"n" * 60_000: "1"}), "not_json")
    for text in ("[]", "12.5", '"text"', "true", "null"):
        yield table.kind("no object", text, lambda _, __, text=text: text.encode(), "not_an_object")  # type: ignore[misc]
    yield table.kind("no object", "an array of one", lambda _, r: b"[" + _dump(r) + b"]", "not_an_object")


def _field_kinds(table: _Table) -> Iterator[Kind]:
    def without(*names: str) -> _Edit:
        return lambda _, r: _dump({name: text for name, text in r.items() if name not in names})

    required = [one for one in table.fields if one.required]
    yield table.kind("a missing field", "all", without(*(one.name for one in required)), "missing_field")
    yield table.kind("a missing field", "no field", lambda _, __: b"{}", "missing_field")
    for one in required:
        yield table.kind("a missing field", one.name, without(one.name), "missing_field")
        yield table.replaced("null", one.name, "null", "null_field")
        if one.type == _STRING:
            yield table.replaced("an empty string", one.name, '""', "empty_string")
        bad = '"x"' if one.type != _STRING else "[]"
        yield table.kind(
            "a key twice, the last one bad",
            one.name,
            lambda _, r, name=one.name, bad=bad: _dump(r)[:-1] + f',"{name}":{bad}}}'.encode(),  # type: ignore[misc]
            "wrong_type",
        )
    for one in table.fields:
        for text in _WRONG_TYPES[one.type]:
            yield table.replaced("a wrong JSON type", one.name, text, "wrong_type")
        for rule, texts in _OUT_OF_RANGE.get(one.type, {}).items():
            for text in texts:
                yield table.replaced("beyond the range", one.name, text, rule)
        if one.type == _AMOUNT:
            for text in ("0", "-0.0", "-12.5", "-0.000000001"):
                yield table.replaced("not positive", one.name, text, "not_positive")
    numbers = "[" + ",".join(["17"] * (MEGABYTE // 3 - 200)) + "]"
    yield table.replaced("1 MB", table.text_field, numbers, "wrong_type", huge=True)
    padding = json.dumps("p" * (MEGABYTE - 2_000))
    yield table.kind(
        "1 MB",
        "of an unknown field",
        lambda _, r: _dump(
            {name: text for name, text in r.items() if name != table.text_field} | {"more": padding}
        ),
        "missing_field",
        huge=True,
    )


def _time_kinds(table: _Table) -> Iterator[Kind]:
    for text in _WRONG_TYPES_OF_A_TIME:
        yield table.replaced("a wrong JSON type", "timestamp", text, "wrong_type")
    for text in _BAD_TIMES:
        yield table.replaced("a bad timestamp", "timestamp", text, "bad_timestamp")
    yield table.replaced("the future", "timestamp", '"9998-12-31T23:59:59.999Z"', "future")
    yield table.replaced("the future", "timestamp", "253370764799999", "future")

    def tomorrow(rng: Random, time_ms: int) -> Bytes:
        ahead_ms = time_ms + rng.randint(_DAY_MS, 300 * _DAY_MS)
        return Bytes(_dump(table.record(rng, time_ms) | {"timestamp": str(ahead_ms)}), b"k")

    yield Kind("the future", "tomorrow or later", tomorrow, frozenset({"future"}))
    yield table.kind(
        "several at once",
        "a name and the time",
        lambda _, r: _dump(r | {table.text_field: '""', "timestamp": '"noon"'}),
        "empty_string",
        "bad_timestamp",
    )
    yield table.kind(
        "several at once",
        "two fields and the future",
        lambda _, r: _dump(
            {name: text for name, text in r.items() if name != table.text_field}
            | {table.fields[1].name: "null", "timestamp": '"9998-12-31T23:59:59Z"'}
        ),
        "missing_field",
        "null_field",
        "future",
    )


def _null_kinds(name: str) -> Iterator[Kind]:
    if name != "sales_events":
        yield Kind("null value", "with a key", lambda _, __: Bytes(None, b"k"), frozenset({"value_null"}))
        yield Kind("null value", "without a key", lambda _, __: Bytes(None, None), frozenset({"value_null"}))
        return
    yield Kind("null value", "without a key", lambda _, __: Bytes(None, None), frozenset({"key_null"}))
    yield Kind("null value", "with an empty key", lambda _, __: Bytes(None, b""), frozenset({"key_empty"}))
    yield Kind(
        "null value",
        "with a key of bytes",
        lambda rng, _: Bytes(None, rng.randbytes(8) + b"\xff"),
        frozenset({"key_not_utf8"}),
    )


def _kinds(name: str) -> tuple[Kind, ...]:
    table = _Table(_FIELDS[name])
    makers = (_bytes_kinds, _text_kinds, _parser_kinds, _field_kinds, _time_kinds)
    return (*(kind for maker in makers for kind in maker(table)), *_null_kinds(name))


KINDS: Mapping[str, tuple[Kind, ...]] = {name: _kinds(name) for name in _FIELDS}
"""Every kind, by the silver table that must refuse it."""


class Poison(NamedTuple):
    """One malformed record: its table, its kind, and its bytes."""

    table: str
    kind: Kind
    bytes: Bytes


def valid(table: str, rng: Random, time_ms: int) -> Bytes:
    """Return a valid record."""
    record = _Table(_FIELDS[table]).record(rng, time_ms)
    return Bytes(_dump(record), json.loads(record[_FIELDS[table][0].name]).encode())


def endless(rng: Random, clock_ms: Callable[[], int], *, huge_every: int = 5) -> Iterator[Poison]:
    """Yield records of every kind and table in a shuffled order, over and over.

    Huge records come in the first round, and then in one of every `huge_every` rounds.
    """
    kinds = [(table, kind) for table, of_table in KINDS.items() for kind in of_table]
    turn = 0
    while True:
        rng.shuffle(kinds)
        for table, kind in kinds:
            if not kind.huge or turn % huge_every == 0:
                yield Poison(table, kind, kind.make(rng, clock_ms()))
        turn += 1
