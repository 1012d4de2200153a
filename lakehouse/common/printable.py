r"""Make text from records, tables and other systems printable for terminals and logs.

Unprintable characters are those that `str.isprintable` rejects: control characters (C0, DEL, C1), and thus
escape sequences; direction and zero-width marks; line and paragraph separators; spaces other than U+0020;
lone surrogates; unassigned code points. These characters become `\n`, `\r`, `\t`, `\x1b` or `\u{202e}`. A
backslash is not escaped, because the result is read by people, not parsed by programs. JSON output uses
JSON's own escapes and is exact.
"""

from __future__ import annotations

import json
from typing import Any

_BYTE = 0x100
_ESCAPES = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def printable(text: str) -> str:
    """Return text on one line, with unprintable characters escaped."""
    return text if text.isprintable() else "".join(map(_escaped, text))


def cut(text: str, most: int) -> str:
    """Return text escaped and, if it is longer than `most` characters, truncated, with `…` at the end."""
    return printable(text if len(text) <= most else f"{text[:most]}…")


def indented(text: str) -> list[str]:
    """Return the lines of text, indented except the first, so that no line looks like another log record."""
    first, *others = (printable(line.expandtabs(4)) for line in text.rstrip("\n").split("\n"))
    return [first, *(f"    {line}" for line in others)]


def printable_json(value: Any, *, indent: int | None = None) -> str:
    """Return a value as JSON in which only unprintable characters are escaped."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one == "\n" else json.dumps(one)[1:-1] for one in text)


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    code = ord(character)
    return _ESCAPES.get(character) or (rf"\x{code:02x}" if code < _BYTE else rf"\u{{{code:x}}}")
