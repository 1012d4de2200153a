r"""The readings of a text: as it stands, and without the escapes of JSON and of URLs.

The same id is `café` in a Parquet file, `caf\u00e9` in a record, `caf\\u00e9` in JSON inside JSON, such as
the statistics in a Delta log, and `caf%C3%A9` in a partition's directory. A reading removes one layer of
escapes from the whole text, JSON or not: it can only make more text visible.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import unquote_to_bytes

MOST_LAYERS = 4
"""Layers of JSON, and of percent encoding, that are removed."""
_HEX = rb"[0-9a-fA-F]"
_ESCAPE = re.compile(
    rb"\\(?:u([dD][89abAB]%(hex)s{2})\\u([dD][c-fC-F]%(hex)s{2})|u(%(hex)s{4})|([\"'\\/bfnrt]))"
    % {b"hex": _HEX}
)
_SIGNS = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t"}


def readings(text: bytes) -> Iterator[bytes]:
    """Yield the text, and then every reading that differs from those before it."""
    for _ in range(MOST_LAYERS + 1):
        yield text
        yield from _unquoted(text)
        plain = unescaped(text)
        if plain == text:
            return
        text = plain


def unescaped(text: bytes) -> bytes:
    """Return text without one layer of the escapes of JSON and SQL. Anything else is unchanged."""
    return _ESCAPE.sub(_sign, text) if b"\\" in text else text


def has_escapes(text: bytes) -> bool:
    """Return whether the text might have another reading."""
    return b"\\" in text or b"%" in text


def _unquoted(text: bytes) -> Iterator[bytes]:
    for _ in range(MOST_LAYERS):
        if b"%" not in text:
            return
        plain = unquote_to_bytes(text)
        if plain == text:
            return
        yield plain
        text = plain


def _sign(found: re.Match[bytes]) -> bytes:
    high, low, single, short = found.groups()
    if short is not None:
        return _SIGNS.get(short, short)
    if single is not None:
        return chr(int(single, 16)).encode(errors="surrogatepass")
    return bytes.fromhex((high + low).decode()).decode("utf-16-be").encode()
