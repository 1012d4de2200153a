"""Recognise currencies, units, metric names, ids and sequences by the names and values of fields.

Each result says what was seen in the samples, and what follows from it. Currencies, units and metric names
become part of the key. Ids and sequences become only comments, since they affect which records are accepted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lakehouse.common.printable import cut
from lakehouse.dev.scaffold.samples import KEY_WORDS, TIME_WORDS, VALUE_WORDS, Seen, time_of
from lakehouse.streams.contract import FieldType

_CODES = (
    "AED AFN ALL AMD ANG AOA ARS AUD AWG AZN BAM BBD BDT BGN BHD BIF BMD BND BOB BRL BSD BTN BWP BYN BZD CAD "
    "CDF CHE CHF CHW CLF CLP CNY COP COU CRC CUP CVE CZK DJF DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS "
    "GIP GMD GNF GTQ GYD HKD HNL HRK HTG HUF IDR ILS INR IQD IRR ISK JMD JOD JPY KES KGS KHR KMF KPW KRW KWD "
    "KYD KZT LAK LBP LKR LRD LSL LYD MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MXV MYR MZN NAD NGN NIO "
    "NOK NPR NZD OMR PAB PEN PGK PHP PKR PLN PYG QAR RON RSD RUB RWF SAR SBD SCR SDG SEK SGD SHP SLE SLL SOS "
    "SRD SSP STN SVC SYP SZL THB TJS TMT TND TOP TRY TTD TWD TZS UAH UGX USD USN UYI UYU UZS VED VES VND VUV "
    "WST XAF XAG XAU XCD XCG XDR XOF XPF YER ZAR ZMW ZWG ZWL"
)
_ISO_4217 = frozenset(_CODES.split())
_CURRENCY = frozenset({"currency", "ccy", "curr"})
_UNIT = frozenset({"unit", "units", "uom"})
_METRIC = frozenset({"metric", "measurement", "measurand", "parameter", "indicator"})
_METRIC_NAME = re.compile(r"[a-z][a-z0-9]*([._/:-][a-z0-9]+)+")
_ID = frozenset({"id", "uuid", "guid", "uid", "ulid", "ref", "reference"})
_EVENT = frozenset({"event", "message", "msg", "record", "transaction", "txn", "payment", "order", "invoice"})
_SHARED = KEY_WORDS - {"id", "key", "name"} | {"session", "trace", "parent", "correlation", "tenant", "group"}
"""Words for things that many records have in common, such as a customer or a device."""
_SEQUENCE = frozenset({"version", "revision", "rev", "seq", "sequence", "lsn", "updated", "modified"})
_CODE = frozenset(
    {"code", "number", "no", "nr", "zip", "postcode", "postal", "plz", "phone", "mobile", "fax", "serial"}
    | {"ean", "gtin", "isbn", "upc", "iban", "bic", "barcode", "release", "build"}
)
"""Words for codes that consist of digits, but are not quantities."""
PARTS_OF_DATES = frozenset({"year", "month", "day", "hour", "minute"})
_PLACES = PARTS_OF_DATES | {"port", "status", "lat", "lon", "latitude", "longitude"}
"""Words for numbers that say where or when something was, or how it ended."""
_LABELS = _SHARED | KEY_WORDS | TIME_WORDS | _ID | _SEQUENCE | _CODE | _CURRENCY | _UNIT
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_KEYS = (FieldType.STRING, FieldType.LONG)
_FEW, _LONGEST_VALUE = 20, 40
_LEAST_SAMPLES = 3
_MOST_PER_ID = 4
_MOST_LISTED = 3


@dataclass(frozen=True)
class Part:
    """A field that separates values which must not be added up.

    `seen` and `values` are phrases such as "2 values (EUR, USD)" and "amounts in different currencies".
    """

    field: Seen
    seen: str
    values: str


@dataclass(frozen=True)
class Identity:
    """A field that looks like the id of a record, perhaps with a number that grows with each correction.

    `why` and `why_sequence` say what was seen, and when to set unique_by and sequence_by. `deletions` are
    further proposals: for each, the key in the stream's table, its value, and the reason.
    """

    id: Seen
    why: str
    sequence: Seen | None = None
    why_sequence: str = ""
    deletions: Sequence[tuple[str, str, str]] = ()

    @property
    def proposals(self) -> list[tuple[str, str, str]]:
        """For each proposal, the key in the stream's table, its value, and the reason."""
        found = [("unique_by", self.id.path, self.why)]
        if self.sequence is not None:
            found.append(("sequence_by", self.sequence.path, self.why_sequence))
        return [*found, *self.deletions]

    @property
    def fields(self) -> tuple[Seen, ...]:
        """The id, and the sequence if there is one."""
        return (self.id,) if self.sequence is None else (self.id, self.sequence)

    def firsts(self) -> frozenset[int]:
        """Return the index of the first sample with each id."""
        found: dict[str, int] = {}
        for at, value in zip(self.id.at, self.id.values, strict=True):
            found.setdefault(str(value), at)
        return frozenset(found.values())

    def another(self, value: Any) -> Any:
        """Return an id in the samples that differs from this one."""
        return next(one for one in self.id.values if str(one) != str(value))


def parts_of_key(fields: Sequence[Seen], value: Seen) -> list[Part]:
    """Return the fields with metric names, currencies and units, in this order.

    If an object contains both such a field and the value, fields of that kind elsewhere are ignored: they
    belong to other values.
    """
    found: list[Part] = []
    for see, values in _PARTS:
        seen = [(field, what) for field in fields if field is not value and (what := see(field)) is not None]
        beside = [one for one in seen if one[0].names[:-1] == value.names[:-1]]
        found += [Part(field, what, values) for field, what in beside or seen]
    return list({part.field.path: part for part in reversed(found)}.values())[::-1]


def identity_of(fields: Sequence[Seen], taken: Collection[Seen]) -> Identity | None:
    """Return the most likely id of a record, or None. Fields in `taken` have other roles.

    An id has a different value in each sample, except in repeated records. Different records may have the
    same id if their sequences differ.
    """
    free = [field for field in fields if field not in taken and field.is_required]
    likely = [field for field in free if _is_like_id(field)]
    sequences = [field for field in free if field.type is FieldType.LONG and field.words & _SEQUENCE]
    for field in sorted(likely, key=_id_rank):
        others = [one for one in sequences if one is not field]
        records = _records_by_id(field)
        if records is None:
            continue
        if all(len(found) == 1 for found in records):
            return _of_unique(field, len(records), others)
        for sequence in others:
            if all(_are_apart(sequence, found) for found in records):
                return _of_corrected(field, len(records), sequence)
    return None


def read_as_number(field: Seen) -> Seen:
    """Return a field whose numbers are written as text as a number, except ids, keys, times and codes."""
    if field.as_number is None or field.last_word in _ID | _CODE:
        return field
    is_quantity = bool(field.words & VALUE_WORDS) or not field.words & _LABELS
    return field.as_number if is_quantity else field


def is_label(field: Seen) -> bool:
    """Return whether the name or the values of a field are those of an id, key, time or code: no quantity."""
    is_time = bool(field.words & TIME_WORDS) and time_of(field) is not None
    is_named = bool(field.words & _LABELS) and not field.words & VALUE_WORDS
    return is_time or is_named or field.last_word in _ID | _CODE | _PLACES


def _of_unique(field: Seen, ids: int, sequences: Sequence[Seen]) -> Identity:
    every, repeats = len(field.values), len(field.values) - ids
    if repeats:
        what = "other one repeats a record" if repeats == 1 else f"{repeats:,} others repeat records"
        seen = f"{ids:,} values in {every:,} samples, and the {what}"
    else:
        seen = f"{'a different UUID' if _is_uuid(field) else 'a different value'} in all {every:,} samples"
    why = f"{seen}: to count a repeated record once, set unique_by"
    if not sequences:
        return Identity(field, why)
    path = sequences[0].path
    return Identity(
        field,
        why,
        sequences[0],
        f"a whole number with the name of a sequence: if a record with the same {field.path} and a greater "
        f"{path} is a correction, set sequence_by as well",
    )


def _of_corrected(field: Seen, ids: int, sequence: Seen) -> Identity:
    seen = f"{ids:,} values in {len(field.values):,} samples, and {sequence.path} tells their records apart"
    return Identity(
        field,
        f"{seen}: if these are corrections of one record, set unique_by and sequence_by",
        sequence,
        f"different in all records with the same {field.path}: the record with the greatest one is kept",
    )


def _currency(field: Seen) -> str | None:
    values = _short_values(field)
    if not values:
        return None
    is_named, is_single = bool(field.words & _CURRENCY), len(values) == 1
    if (is_named and {one.upper() for one in values} <= _ISO_4217) or (not is_single and values <= _ISO_4217):
        return f"{_listed(values)}, {'an ISO 4217 code' if is_single else 'all ISO 4217 codes'}"
    return _listed(values) if is_named else None


def _unit(field: Seen) -> str | None:
    values = _short_values(field)
    is_named = field.last_word in _UNIT
    return _listed(values) if is_named and 0 < len(values) <= _FEW else None


def _metric(field: Seen) -> str | None:
    values = _short_values(field)
    is_named = bool(field.words & _METRIC) and not field.words & _ID
    if values and not is_named and field.words == {"name"}:
        is_named = all(map(_METRIC_NAME.fullmatch, values))
    return _listed(values) if values and is_named else None


_PARTS: Sequence[tuple[Callable[[Seen], str | None], str]] = (
    (_metric, "values of different metrics"),
    (_currency, "amounts in different currencies"),
    (_unit, "values in different units"),
)
"""The heuristics for parts of a key. A field with several meanings has the first one."""


def _short_values(field: Seen) -> frozenset[str]:
    """Return the values of a field of short strings, or nothing for any other field."""
    if field.type is not FieldType.STRING or field.accepts_numbers:
        return frozenset()
    values = frozenset(field.values) - {""}
    return values if all(len(one) <= _LONGEST_VALUE for one in values) else frozenset()


def _listed(values: Collection[str]) -> str:
    first = ", ".join(cut(one, _LONGEST_VALUE) for one in sorted(values)[:_MOST_LISTED])
    more = len(values) - _MOST_LISTED
    listed = f"{first} and {more:,} more" if more > 0 else first
    return f"{len(values):,} value{'s' * (len(values) > 1)} ({listed})"


def _is_uuid(field: Seen) -> bool:
    return all(isinstance(one, str) and _UUID.fullmatch(one) for one in field.values)


def _is_like_id(field: Seen) -> bool:
    """Return whether a field has a name like that of a record's id, or UUIDs as values."""
    if field.type not in _KEYS or len(field.values) < _LEAST_SAMPLES or field.words & _SHARED:
        return False
    is_named = field.last_word in _ID or (
        field.last_word in {"number", "no", "nr"} and bool(field.words & _EVENT)
    )
    return is_named or _is_uuid(field)


def _id_rank(field: Seen) -> tuple[bool, bool, int]:
    """Return a rank for an id, the best first: by name, then by value, then by depth."""
    return not (field.words <= _ID or field.words & _EVENT), not _is_uuid(field), len(field.names)


def _records_by_id(field: Seen) -> list[list[int]] | None:
    """Return the samples of each id, without repeated records, or None if the field cannot be an id.

    It cannot if all samples have the same value, or if there are too many samples per value.
    """
    at_by_id: dict[str, list[int]] = {}
    for at, value in zip(field.at, field.values, strict=True):
        at_by_id.setdefault(str(value), []).append(at)
    if len(at_by_id) == 1 or len(at_by_id) * _MOST_PER_ID < len(field.values):
        return None
    return [list(_different(field, places)) for places in at_by_id.values()]


def _different(field: Seen, places: Sequence[int]) -> Iterator[int]:
    seen: set[str] = set()
    for at in places:
        text = json.dumps(field.samples[at].value, sort_keys=True, default=str)
        if text not in seen:
            seen.add(text)
            yield at


def _are_apart(sequence: Seen, places: Sequence[int]) -> bool:
    values = [sequence.values[at] for at in places]  # a required field has a value in each sample
    return len(set(values)) == len(values)
