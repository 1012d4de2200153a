r"""Text of records, tables and other systems, made printable: what a terminal or a log can show as it is.

Unprintable is what `str.isprintable` says: controls (C0, DEL, C1), so escape sequences; marks that turn the
direction of text, or take no room; line and paragraph separators; spaces but the ordinary one; lone
surrogates; code points without a character. They become `\n`, `\r`, `\t`, `\x1b` or `\u{202e}`. A backslash
stays one: escapes are for the eye. JSON, with escapes of its own, is exact.
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
    """Return the beginning of text, so many characters of it, escaped; `…` stands for the rest."""
    return printable(text if len(text) <= most else f"{text[:most]}…")


def indented(text: str) -> list[str]:
    """Return the lines of text, those after the first indented: none looks like a line of another's."""
    first, *others = (printable(line.expandtabs(4)) for line in text.rstrip("\n").split("\n"))
    return [first, *(f"    {line}" for line in others)]


def printable_json(value: Any, *, indent: int | None = None) -> str:
    """Return a value as JSON in which unprintable characters are escaped, and others are themselves."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one == "\n" else json.dumps(one)[1:-1] for one in text)


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    code = ord(character)
    return _ESCAPES.get(character) or (rf"\x{code:02x}" if code < _BYTE else rf"\u{{{code:x}}}")
