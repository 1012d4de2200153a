"""Discovery of streams: this package's own, those of installed packages, and those given as module:OBJECT.

A package offers a stream with an entry point of the group `lakehouse.streams`:

    [project.entry-points."lakehouse.streams"]
    orders = "shop.streams:ORDERS"

The entry point's name is informative only; the stream's own name is used. The object is a Stream, or a
function that takes the settings and returns one.

Modules in the working directory are found last, so that none shadows an installed package, and only if
nobody but the user can change them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module, invalidate_caches
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from lakehouse.common.errors import SettingsError, first_line
from lakehouse.common.ownership import foreign
from lakehouse.settings import Settings
from lakehouse.streams.builtin import calls, metrics, sales, transactions
from lakehouse.streams.definition import Stream

_WAY_OUT = "Make it yours (chown, chmod go-w), or install the package"
GROUP = "lakehouse.streams"
SETTING = "LAKEHOUSE_ONLY_STREAMS"
OWN: Mapping[str, Callable[[Settings], Stream]] = {
    "metrics": lambda settings: metrics.make(settings.grace_s, settings.quantile_k, settings.idle_after_s),
    "calls": lambda settings: calls.make(settings.call_gap_s, settings.call_grace_s),
    "sales": lambda settings: sales.make(settings.sales_threshold, settings.sales_notify),
    "transactions": lambda _settings: transactions.TRANSACTIONS,
}
"""The streams of this package, in listed order."""


def found(settings: Settings) -> Iterator[Stream]:
    """Yield the streams that the settings list; if they list none, this package's and those offered.

    Raises SettingsError for an unknown name, a failed import, and an object that is not a stream.
    """
    if not settings.only_streams:
        yield from (make(settings) for make in OWN.values())
        yield from (_offered(entry, settings) for entry in _entry_points())
        return
    offered: dict[str, Stream] | None = None
    for one in settings.only_streams:
        if one in OWN:
            yield OWN[one](settings)
        elif ":" in one:
            yield by_address(one, settings, f"{SETTING} names {one}")
        else:
            if offered is None:
                offered = {stream.name: stream for stream in (_offered(e, settings) for e in _entry_points())}
            if one not in offered:
                known = ", ".join((*OWN, *offered))
                raise SettingsError(
                    f"{SETTING} names {one}, which no installed package offers; known: {known}. A stream in "
                    "a module is named as module:OBJECT"
                )
            yield offered[one]


def by_address(address: str, settings: Settings, said: str) -> Stream:
    """Return the stream at `module:OBJECT`; modules are also searched for in the working directory.

    `said` begins an error message. Raises SettingsError for a failed import, and for an object that is not a
    stream.
    """
    module, _, name = address.partition(":")
    here = str(Path.cwd())
    doubt = _doubt_of(Path.cwd(), module.partition(".")[0])
    if doubt is None and not {"", here}.intersection(sys.path):
        sys.path.append(here)
        invalidate_caches()
    return _made(said, partial(_object, module, name), settings, doubt)


def _doubt_of(here: Path, name: str) -> str | None:
    """Return in words why no module of this name is imported from a directory; null if it may be."""
    package = here / name
    for path in (here, package, package / "__init__.py", here / f"{name}.py"):
        try:
            reason = foreign(path)
        except (OSError, ValueError):  # no such file
            continue
        if reason is not None:
            return f"{path} is not trusted, because {reason}"
    return None


def _object(module: str, name: str) -> Any:
    value: Any = import_module(module)
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _entry_points() -> list[EntryPoint]:
    return sorted(entry_points(group=GROUP), key=lambda entry: entry.name)


def _offered(entry: EntryPoint, settings: Settings) -> Stream:
    package = "a package" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
    return _made(f"{package} offers {entry.value}", entry.load, settings)


def _made(said: str, load: Callable[[], Any], settings: Settings, doubt: str | None = None) -> Stream:
    """Return the loaded stream; any exception of the user's module becomes a SettingsError.

    `doubt` is the reason why the working directory is not searched.
    """
    try:
        value = load()
        stream = value(settings) if callable(value) else value
    except Exception as error:
        why = first_line(error) or type(error).__name__
        if isinstance(error, ModuleNotFoundError):
            where = "the working directory, in PYTHONPATH and among"
            why += f" (looked for in {where if doubt is None else 'PYTHONPATH and among'} installed packages"
            why += ")" if doubt is None else f", not in the working directory: {doubt}. {_WAY_OUT})"
        raise SettingsError(f"{said}, which failed: {type(error).__name__}: {why}") from error
    if not isinstance(stream, Stream):
        kind = type(stream).__name__
        raise SettingsError(
            f"{said}, which is a {kind}, not a stream; expected a lakehouse.streams.definition.Stream, or a "
            "function of the settings that returns one"
        )
    return stream
