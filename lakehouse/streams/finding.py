"""Discovery of streams: this package's own, those of installed packages, and those given as module:OBJECT.

A package offers a stream with an entry point of the group `lakehouse.streams`:

    [project.entry-points."lakehouse.streams"]
    orders = "shop.streams:ORDERS"

The entry point's name is informative only; the stream's own name is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol

from lakehouse.common.errors import SettingsError
from lakehouse.settings import Settings
from lakehouse.streams.builtin import TABLES
from lakehouse.streams.declared import built, merged
from lakehouse.streams.definition import Stream
from lakehouse.streams.loading import by_address, made

GROUP = "lakehouse.streams"
SETTING = "LAKEHOUSE_STREAMS"


class Make(Protocol):
    """Makes a stream under the settings."""

    def __call__(self, settings: Settings) -> Stream:
        """Return the stream."""


def _own(name: str, settings: Settings) -> Stream:
    given: dict[str, dict[str, Any]] = {
        "metrics": {
            "grace": f"{settings.grace_s}s",
            "idle_after": f"{settings.idle_after_s}s",
            "quantile_k": settings.quantile_k,
        },
        "calls": {"gap": f"{settings.call_gap_s}s", "grace": f"{settings.call_grace_s}s"},
        "sales": {"threshold": settings.sales_threshold, "notify": settings.sales_notify},
    }
    return built(name, merged(TABLES[name], given.get(name, {})))


OWN: Mapping[str, Make] = {name: partial(_own, name) for name in TABLES}
"""The streams of this package, in listed order."""


def found(settings: Settings) -> Iterator[Stream]:
    """Yield the streams that the settings list; if they list none, this package's and those offered.

    Raises SettingsError for an unknown name, a failed import, and an object that is not a stream.
    """
    if not settings.streams:
        yield from (make(settings) for make in OWN.values())
        yield from (_offered(entry) for entry in _entry_points())
        return
    offered: dict[str, Stream] | None = None
    for one in settings.streams:
        if one in OWN:
            yield OWN[one](settings)
        elif ":" in one:
            yield by_address(one, {}, f"{SETTING} names {one}")
        else:
            if offered is None:
                offered = {stream.name: stream for stream in (_offered(e) for e in _entry_points())}
            if one not in offered:
                known = ", ".join((*OWN, *offered))
                raise SettingsError(
                    f"{SETTING} names {one}, which no installed package offers; known: {known}. A stream in "
                    "a module is named as module:OBJECT"
                )
            yield offered[one]


def _entry_points() -> list[EntryPoint]:
    return sorted(entry_points(group=GROUP), key=lambda entry: entry.name)


def _offered(entry: EntryPoint) -> Stream:
    package = "a package" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
    return made(f"{package} offers {entry.value}", entry.load, {})
