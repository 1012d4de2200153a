"""Import streams written in Python: a module's object is a Stream, or a function that returns a Stream.

The working directory is searched last, so its modules cannot shadow installed packages. A module there is
imported only if no other user can change it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module, invalidate_caches
from pathlib import Path
from typing import Any

from lakehouse.common.errors import SettingsError, first_line
from lakehouse.common.nearest import no_such
from lakehouse.common.ownership import foreign
from lakehouse.streams.definition import Stream

_WAY_OUT = (
    "Make sure that you own it and only you can write to it (chown, chmod go-w), or install the package"
)


def by_address(address: str, arguments: Mapping[str, Any], said: str) -> Stream:
    """Return the stream at `module:OBJECT`. If OBJECT is a function, it is called with the arguments.

    The module can also be in the working directory. Error messages begin with the text `said`. Raises
    SettingsError for a failed import, unknown or missing arguments, and an object that is not a stream.
    """
    module, _, name = address.partition(":")
    here = str(Path.cwd())
    doubt = _doubt_of(Path.cwd(), module.partition(".")[0])
    if doubt is None and not {"", here}.intersection(sys.path):
        sys.path.append(here)
        invalidate_caches()
    return made(said, partial(_object, module, name), arguments, doubt)


def made(
    said: str, load: Callable[[], Any], arguments: Mapping[str, Any], doubt: str | None = None
) -> Stream:
    """Return the loaded stream. Any exception in the user's module becomes a SettingsError.

    `doubt` is the reason why the working directory is not searched.
    """
    try:
        value = load()
        if callable(value):
            _refuse_unfit(value, arguments)
            value = value(**arguments)
        elif arguments:
            raise TypeError("it is not a function and takes no arguments")  # noqa: TRY301 - reported below
    except SettingsError as error:
        raise SettingsError(f"{said}, {error}") from error.__cause__
    except Exception as error:
        why = first_line(error) or type(error).__name__
        if isinstance(error, ModuleNotFoundError):
            where = "the working directory, in PYTHONPATH and among"
            why += f" (looked for in {where if doubt is None else 'PYTHONPATH and among'} installed packages"
            why += ")" if doubt is None else f", not in the working directory: {doubt}. {_WAY_OUT})"
        raise SettingsError(f"{said}, which failed: {type(error).__name__}: {why}") from error
    if not isinstance(value, Stream):
        raise SettingsError(
            f"{said}, which is of type {type(value).__name__}, not a stream; expected a "
            "lakehouse.streams.Stream, or a function that returns one"
        )
    return value


def _refuse_unfit(function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Raise SettingsError for unknown and missing arguments."""
    known = inspect.signature(function).parameters
    is_open = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in known.values())
    for name in arguments:
        if name not in known and not is_open:
            raise SettingsError(f"with arguments.{name}: {no_such('argument', name, known)}")
    for name, one in known.items():
        is_variable = one.kind in {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}
        if name not in arguments and one.default is inspect.Parameter.empty and not is_variable:
            raise SettingsError(f"without arguments.{name}, which the function requires")


def _doubt_of(here: Path, name: str) -> str | None:
    """Return the reason why importing this module from a directory is unsafe, or None if it is safe."""
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
