"""Everything that Redis contains of any lake: the keys below the export's prefix, of any type."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import redis

from lakehouse.sinks.port import Stored
from lakehouse.sinks.redis.client import redis_client, reported

PREFIXES = ("lakehouse:", "{lakehouse:")
"""The beginnings of the export's keys. A key in braces is kept beside the key that the braces contain."""
_SCANNED = 1_000
_CHUNK = 1_000


def contents(url: str) -> Iterator[Stored]:
    """Yield every key, field, member and value below the prefixes, also of tables that no stream has.

    Includes everything that exists throughout the scan. Raises ServiceError if Redis is unreachable or denies
    a command.
    """
    with reported(), redis_client(url) as client:
        for prefix in PREFIXES:
            names = client.scan_iter(f"{prefix}*", count=_SCANNED)
            while chunk := list(islice(names, _CHUNK)):
                yield from _of_keys(client, chunk)


def _of_keys(client: Any, names: list[bytes]) -> Iterator[Stored]:
    with client.pipeline(transaction=False) as pipeline:
        for name in names:
            pipeline.type(name)
            pipeline.pttl(name)
        answers = pipeline.execute()
    now = datetime.now(UTC)
    kinds = [one.decode() for one in answers[::2]]
    texts = [name for name, kind in zip(names, kinds, strict=True) if kind == "string"]
    values = dict(zip(texts, client.mget(texts), strict=True)) if texts else {}
    for name, kind, left_ms in zip(names, kinds, answers[1::2], strict=True):
        place = name.decode(errors="backslashreplace")
        until = now + timedelta(milliseconds=left_ms) if left_ms >= 0 else None
        parts: Iterator[tuple[str, list[bytes]]]
        if kind == "string":
            parts = iter([("value", [one for one in [values[name]] if one is not None])])
        else:
            parts = _parts(client, name, kind)
        yield Stored(place, kind, "key", [name], until)
        for part, found in parts:
            yield Stored(place, kind, part, found, until)


def _parts(client: Any, name: bytes, kind: str) -> Iterator[tuple[str, list[bytes]]]:
    """Yield the fields, members and values of a key, or nothing if it has expired in the meantime.

    Raises redis.ResponseError for a type that it cannot read.
    """
    if kind == "hash":
        for chunk in _chunks(client.hscan_iter(name, count=_SCANNED)):
            yield "field", [one for one, _ in chunk]
            yield "value", [one for _, one in chunk]
    elif kind == "set":
        for members in _chunks(client.sscan_iter(name, count=_SCANNED)):
            yield "member", members
    elif kind == "zset":
        for chunk in _chunks(client.zscan_iter(name, count=_SCANNED)):
            yield "member", [one for one, _ in chunk]
            yield "score", [f"{one:.17g}".encode() for _, one in chunk]
    elif kind in {"list", "stream"}:
        yield from _in_order(client, name, kind)
    elif kind != "none":
        raise redis.ResponseError(f"a key has the type {kind}, which cannot be read")


def _in_order(client: Any, name: bytes, kind: str) -> Iterator[tuple[str, list[bytes]]]:
    """Yield the elements of a list, or the fields and values of a stream's entries."""
    first, after = 0, b"-"
    while kind == "list" and (elements := client.lrange(name, first, first + _CHUNK - 1)):
        yield "element", list(elements)
        first += _CHUNK
    while kind == "stream" and (entries := client.xrange(name, min=after, count=_CHUNK)):
        yield "field", [field for _, fields in entries for field in fields]
        yield "value", [value for _, fields in entries for value in fields.values()]
        after = b"(" + entries[-1][0]


def _chunks(items: Iterator[Any]) -> Iterator[list[Any]]:
    while chunk := list(islice(items, _CHUNK)):
        yield chunk
