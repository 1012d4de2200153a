"""A dead letter's bytes: at most 256 KiB of its value, its key or a header, as hex, text and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from lakehouse.streams.messages.json_text import is_json_text
from lakehouse.streams.messages.layout import Row

MOST = 256 * 1024
_MOST_HEADERS = 100
_MOST_NAME = 1_000
_LONGEST_CHARACTER = 4

Part = Literal["value", "key", "header"]


def bytes_of(row: Row, part: Part, header: int) -> bytes | None:
    """Return a part of a record, null if it is null; raises IndexError if the header does not exist."""
    data: bytes | None = (row["headers"] or [])[header]["value"] if part == "header" else row[part]
    return data


def outline(row: Row) -> Mapping[str, Any]:
    """Return the length of each part, null if it is null; of the headers, only the first hundred."""
    headers = row["headers"] or []
    return {
        "valueLength": _length(row["value"]),
        "keyLength": _length(row["key"]),
        "headers": [
            {"key": one["key"][:_MOST_NAME], "length": _length(one["value"])}
            for one in headers[:_MOST_HEADERS]
        ],
        "headerCount": len(headers),
    }


def piece(data: bytes | None, offset: int) -> str:
    """Return JSON with the bytes from an offset on, and `next`, the offset of the following piece.

    The bytes are given as hex, as text if they are UTF-8, and as JSON if they are a whole part that is JSON.
    A piece of text ends between two characters.
    """
    if data is None:
        return "null"
    given = data[offset : offset + MOST]
    is_last = offset + len(given) >= len(data)
    given, text = _text(given) if not is_last else (given, _decoded(given))
    said = {
        "length": len(data),
        "offset": offset,
        "next": None if is_last else offset + len(given),
        "hex": given.hex(),
        "text": text,
    }
    is_json = is_last and offset == 0 and text is not None and is_json_text(text)
    return f'{json.dumps(said, ensure_ascii=False)[:-1]},"json":{text if is_json else "null"}}}'


def _text(given: bytes) -> tuple[bytes, str | None]:
    """Return the bytes up to the last whole character, and their text; all bytes and null if not UTF-8."""
    for cut in range(_LONGEST_CHARACTER):
        whole = given[: len(given) - cut]
        if (text := _decoded(whole)) is not None:
            return whole, text
    return given, None


def _decoded(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _length(data: bytes | None) -> int | None:
    return None if data is None else len(data)
