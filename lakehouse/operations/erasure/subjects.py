"""The ids of the people whose data is searched for, and the bytes by which each id is recognized.

An id is personal data. It comes from a file or from standard input, and is never shown: messages and results
name the line on which it stands.
"""

from __future__ import annotations

import re
import unicodedata
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from lakehouse.common.errors import SettingsError
from lakehouse.operations.erasure.matching import LEAST_BYTES, Matcher
from lakehouse.operations.erasure.readings import readings

MOST_BYTES = 1_000
STATISTICS_CHARACTERS = 32
"""Delta truncates text in statistics to this number of characters."""
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,75})", re.ASCII)
_UUID = re.compile(r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}", re.ASCII | re.IGNORECASE)
_LONG = range(-(2**63), 2**63)
_INT = range(-(2**31), 2**31)
_MARK = "\ufeff"
_LEAST_POWER = 7
"""Java writes a double of at least ten to this power with an exponent."""
_DOUBLE_DIGITS = 16
_PACKED_BYTES = 5
"""Packed integers with fewer bytes occur by chance in any binary value."""

Lines = frozenset[int]
"""The lines of the ids that one sequence of bytes stands for."""


@dataclass(frozen=True)
class Needle:
    """Bytes to search for. `is_number` is true for the digits of an id that is a whole number.

    If `is_text` is false, the bytes are a UUID's 16 bytes, which never occur by chance. If they are only the
    beginning of an id, as in a Delta log's statistics, `is_prefix_sure` says whether it identifies the id;
    otherwise, it is None.
    """

    lines: Lines
    is_text: bool = True
    is_number: bool = False
    is_prefix_sure: bool | None = None


@dataclass(frozen=True)
class Subjects:
    """The ids to search for, each with the number of its line (from 1). Its repr does not show them.

    needles  bytes that are searched for anywhere
    wholes   bytes that count only if they are a whole key, column value or element: ids that are too short to
             be searched for anywhere, and whole numbers as big-endian integers of 4 or 8 bytes
    numbers  ids that are whole numbers, for columns and fields that contain numbers
    packed   whole numbers as variable-length integers of Avro and Protobuf, for binary values that cannot be
             decoded
    short    the lines of ids that are only compared with whole values
    """

    count: int
    needles: Mapping[bytes, Needle] = field(repr=False)
    wholes: Mapping[bytes, Lines] = field(repr=False)
    numbers: Mapping[int, Lines] = field(repr=False)
    packed: Mapping[bytes, Lines] = field(repr=False)
    short: tuple[int, ...] = ()

    @cached_property
    def matcher(self) -> Matcher:
        """The search for all needles."""
        return Matcher(self.needles)

    def masked(self, text: str) -> str:
        """Return text for a person, with `<line N>` in the place of every id, in whichever way it is escaped.

        Words that are a short id are replaced, too.
        """
        return self._masked(text.encode(errors="surrogateescape"))

    def _masked(self, text: bytes) -> str:
        for reading in readings(text):
            if found := list(self.matcher.find(reading)):
                return self._replaced(reading, found)
        return "".join(map(self._word, re.split(r"([^\w.-]+)", _shown(text))))

    def _word(self, word: str) -> str:
        lines = self.wholes.get(word.encode())
        return word if lines is None else f"<line {min(lines)}>"

    def _replaced(self, reading: bytes, found: list[tuple[int, bytes]]) -> str:
        said, end = list[str](), 0
        for start, needle in sorted(found, key=lambda one: (one[0], -len(one[1]))):
            if start + len(needle) <= end:
                continue
            said.append(self._masked(reading[end:start]))  # nothing, if this id overlaps the one before it
            said.append(f"<line {min(self.needles[needle].lines)}>")
            end = start + len(needle)
        return "".join([*said, self._masked(reading[end:])])


def subjects_in(data: bytes) -> Subjects:
    """Return the ids in a file: UTF-8, one a line. Blank lines and repeated ids are ignored.

    Raises SettingsError, which names the line, for data that is not UTF-8, and for an id that is too long or
    would not be found as it stands, such as one in quotation marks. Also raises it if there is no id.
    """
    ids = dict[str, int]()
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        try:
            text = line.removesuffix(b"\r").decode()
        except UnicodeDecodeError:
            raise SettingsError(f"--subject: line {number} is not UTF-8; save the file as UTF-8") from None
        if not text.strip():
            continue
        if (trouble := _trouble(text)) is not None:
            raise SettingsError(f"--subject: line {number} {trouble}")
        ids.setdefault(text, number)
    if not ids:
        raise SettingsError("--subject: there is no id; expected one id a line")
    return _subjects(ids)


def _trouble(text: str) -> str | None:
    """Return why an id would not be found as it stands, or None."""
    if text != text.strip():
        return "begins or ends with a space, and would not be found; remove it"
    if any(unicodedata.category(one) == "Cc" or one == _MARK for one in text):
        return "contains a tab, another control character or a byte order mark; expected UTF-8, one id a line"
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return "is in quotation marks, and would not be found; remove them"
    if len(text.encode()) > MOST_BYTES:
        return f"is longer than {MOST_BYTES:,} bytes; expected one id a line"
    return None


def _subjects(ids: Mapping[str, int]) -> Subjects:
    texts, raw, digits = _lines_of(ids, _texts), _lines_of(ids, _raw), {one for one in ids if is_number(one)}
    numbers = {int(one): frozenset({ids[one]}) for one in digits}
    spelled = _lines_of({one: ids[one] for one in digits}, _digits)
    texts |= {one: texts.get(one, frozenset()) | lines for one, lines in spelled.items()}
    long = {one: lines for one, lines in texts.items() if len(one) >= LEAST_BYTES}
    needles = {one: Needle(lines, is_number=one in spelled) for one, lines in long.items()}
    needles |= {one: Needle(lines, is_text=False) for one, lines in raw.items()}
    for one, lines in _lines_of(ids, _prefixes).items():
        is_sure = all(map(_UUID.fullmatch, (text for text, line in ids.items() if line in lines)))
        needles.setdefault(one, Needle(lines, is_prefix_sure=is_sure))
    wholes = {one: lines for one, lines in texts.items() if len(one) < LEAST_BYTES}
    short = tuple(sorted(frozenset[int]().union(*wholes.values())))
    packed = defaultdict[bytes, Lines](frozenset)
    for number, lines in numbers.items():
        if number not in _LONG:
            continue
        for whole in _big_endian(number):
            wholes[whole] = wholes.get(whole, frozenset()) | lines
        for encoded in (varint(number & (2**64 - 1)), varint(zigzag(number))):
            if len(encoded) >= _PACKED_BYTES:
                packed[encoded] |= lines
    return Subjects(len(ids), needles, wholes, numbers, dict(packed), short)


def is_number(text: str) -> bool:
    """Return whether an id is a whole number that a column of numbers can contain."""
    return _NUMBER.fullmatch(text) is not None and text != "-0"


def zigzag(number: int) -> int:
    """Return a number as Avro and Protobuf's sint64 store it before it is packed."""
    return (number << 1) if number >= 0 else (-number << 1) - 1


def varint(number: int) -> bytes:
    """Return a number (0 or more) as a variable-length integer."""
    packed = bytearray()
    while number > 0x7F:  # noqa: PLR2004 - seven bits a byte
        packed.append(number & 0x7F | 0x80)
        number >>= 7
    packed.append(number)
    return bytes(packed)


def _lines_of(ids: Mapping[str, int], forms: Callable[[str], Iterable[bytes]]) -> dict[bytes, Lines]:
    found = defaultdict[bytes, Lines](frozenset)
    for one, line in ids.items():
        for form in forms(one):
            found[form] |= {line}
    return dict(found)


def _texts(text: str) -> Iterator[bytes]:
    """Yield the spellings of an id.

    An accent can be part of a character (NFC) or follow it (NFD). SQL doubles apostrophes. A UUID also has
    upper and lower case, and can lack its dashes.
    """
    for form in {text, unicodedata.normalize("NFC", text), unicodedata.normalize("NFD", text)}:
        yield from {form.encode(), form.replace("'", "''").encode()}
    if _UUID.fullmatch(text):
        found = uuid.UUID(text)
        yield from {one.encode() for form in (str(found), found.hex) for one in (form, form.upper())}


def _digits(text: str) -> Iterator[bytes]:
    """Yield a whole number as it stands, and as Java and PostgreSQL write a large double: 4.7E8, 4.7e+15."""
    yield text.encode()
    sign, number = ("-", text[1:]) if text.startswith("-") else ("", text)
    power, kept = len(number) - 1, number.rstrip("0")
    if power >= _LEAST_POWER and len(kept) <= _DOUBLE_DIGITS:
        first, rest = kept[0], kept[1:]
        yield f"{sign}{first}.{rest or 0}E{power}".encode()
        yield f"{sign}{first}{rest and '.'}{rest}e+{power}".encode()


def _prefixes(text: str) -> Iterator[bytes]:
    """Yield the beginnings that a Delta log's statistics contain of an id that is too long for them."""
    for one in _texts(text):
        start = one.decode()[:STATISTICS_CHARACTERS].encode()
        if len(start) < len(one):
            yield start


def _raw(text: str) -> Iterator[bytes]:
    if _UUID.fullmatch(text):
        yield uuid.UUID(text).bytes


def _big_endian(number: int) -> Iterator[bytes]:
    yield number.to_bytes(8, "big", signed=True)
    if number in _INT:
        yield number.to_bytes(4, "big", signed=True)


def _shown(data: bytes) -> str:
    return data.decode(errors="backslashreplace")
