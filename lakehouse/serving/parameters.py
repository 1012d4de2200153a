"""Request parameters for times and paging: time formats, and cursors to the next page."""

from __future__ import annotations

import base64
import hmac
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Query

from lakehouse.serving.problems import Problem, unprocessable
from lakehouse.storage.tables.specs import EPOCH

_MILLIS = re.compile(r"-?\d{1,15}", re.ASCII)
_MOST_MILLIS = 253_402_300_800_000  # the year 10000
_SIGNED = 16
_KEY = secrets.token_bytes(32)
"""The key that signs cursors. It is new in each process, so cursors become invalid when the server stops."""


def micros(parameter: str, text: str) -> int:
    """Convert epoch milliseconds, or an ISO 8601 string with an offset, to microseconds since the epoch.

    Raises Problem for any other string, and for times in or after the year 10000.
    """
    text = text.strip()
    if _MILLIS.fullmatch(text):
        millis = int(text)
        if -_MOST_MILLIS < millis < _MOST_MILLIS:
            return millis * 1000
    try:
        moment = datetime.fromisoformat(text.replace(" ", "+"))  # a plus in a query decodes to a space
        if moment.tzinfo is not None:
            return (moment - EPOCH) // timedelta(microseconds=1)
    except (ValueError, OverflowError):
        pass
    what = "expected epoch milliseconds or ISO 8601 with an offset, such as 2026-03-01T00:00:00Z"
    raise unprocessable(parameter, f"{text[:40]!r} is not a time; {what}")


def iso(millis: int | None) -> str | None:
    """Format epoch milliseconds as ISO 8601 UTC, or as plain digits for times outside the years 1 to 9999.

    Return None for None.
    """
    if millis is None:
        return None
    try:
        moment = EPOCH + timedelta(milliseconds=millis)
    except OverflowError:
        return str(millis)
    return moment.isoformat(timespec="milliseconds" if millis % 1000 else "seconds").replace("+00:00", "Z")


def cursor(table: str, values: Sequence[Any]) -> str:
    """Return a cursor: an opaque string that contains the sort values of a page's last row.

    A cursor does not pin a table version. The next page is read from the newest version, and repeats no row.
    """
    text = json.dumps([table, *values], ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
    return base64.urlsafe_b64encode(_signature(text) + text).rstrip(b"=").decode()


def from_cursor(table: str, text: str, types: Sequence[type]) -> tuple[Any, ...]:
    """Return the values in a cursor. Raises Problem 400 unless this process issued it for this table."""
    try:
        packed = base64.urlsafe_b64decode(text.encode() + b"=" * (-len(text) % 4))
        signature, content = packed[:_SIGNED], packed[_SIGNED:]
        is_own = hmac.compare_digest(signature, _signature(content))
        name, *values = json.loads(content) if is_own else [None]
    except (ValueError, TypeError, RecursionError):
        name, values = None, []
    if name != table or list(map(type, values)) != list(types):
        detail = f"this server has not issued this cursor for {table} since it started; omit it to start over"
        found = [{"parameter": "cursor", "detail": detail}]
        raise Problem(HTTPStatus.BAD_REQUEST, f"cursor: {detail}", errors=found)
    return tuple(values)


def _signature(content: bytes) -> bytes:
    return hmac.digest(_KEY, content, "sha256")[:_SIGNED]


MOST = 1_000
_T = TypeVar("_T")

Limit = Annotated[int, Query(ge=1, le=MOST, description="Maximum number of items.")]
Cursor = Annotated[
    str | None,
    Query(
        max_length=60_000,
        description="The value of `next` in the previous page. Repeat all other parameters unchanged.",
    ),
]


@dataclass(frozen=True)
class Paging:
    """The requested page: the maximum number of items, and a cursor, which is None for the first page."""

    limit: int
    cursor: str | None

    def after(self, name: str, types: Sequence[type]) -> tuple[Any, ...] | None:
        """Return the cursor's values, or None for the first page. Raises Problem 400 for a bad cursor."""
        return None if self.cursor is None else from_cursor(name, self.cursor, types)

    def of(self, name: str, items: Sequence[_T]) -> tuple[Sequence[_T], Mapping[str, str | None]]:
        """Return the requested page of a complete list, and `next`, the cursor of the following page.

        `next` is None on the last page. A cursor contains the number of items before its page.
        """
        (first,) = self.after(name, [int]) or (0,)
        end = first + self.limit
        following = cursor(name, [end]) if end < len(items) else None
        return items[first:end], {"next": following}


async def _paging(limit: Limit = MOST, cursor: Cursor = None) -> Paging:
    return Paging(limit, cursor)


Page = Annotated[Paging, Depends(_paging)]
