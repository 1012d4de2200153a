"""Keys that consist of several names, as in messages and Redis rows."""

from __future__ import annotations

_HEX = {"25", "3A", "2D", "7B", "7D"}


def escaped(name: str, separators: str = ":") -> str:
    """Return the name with its separators, and any ambiguous percent sign, escaped as in URLs."""
    return "".join(
        f"%{ord(character):02X}"
        if character in separators or (character == "%" and name[place + 1 : place + 3] in _HEX)
        else character
        for place, character in enumerate(name)
    )


def joined(*names: str, separator: str = ":") -> str:
    """Return the key that consists of the names."""
    return separator.join(escaped(name, separator) for name in names)
