"""The configuration file: where it is found, and that it is its user's own.

It is the one that LAKEHOUSE_CONFIG names, or else `lakehouse.toml` in the working directory, or else in the
user's home. It decides which streams are imported, so which code runs, and where passwords are sent. So a
file that somebody else may change is refused.
"""

from __future__ import annotations

import os
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from lakehouse.errors import SettingsError
from lakehouse.ownership import ForeignError, read_own
from lakehouse.terminal import echo

CONFIG_VARIABLE = "LAKEHOUSE_CONFIG"
DEFAULT_CONFIG = Path("lakehouse.toml")


def read_config() -> tuple[Path, dict[str, Any]]:
    """Return the configuration file and its values: none if there is no such file.

    Raises SettingsError for a file that is missing (if LAKEHOUSE_CONFIG names it), that is not TOML, or that
    somebody else may change.
    """
    named = os.environ.get(CONFIG_VARIABLE)
    for path in [Path(named)] if named else [DEFAULT_CONFIG, *_of_home()]:
        try:
            return path, tomllib.loads(read_own(path).decode())
        except FileNotFoundError:
            continue
        except ForeignError as error:
            raise SettingsError(
                f"{path.absolute()} is not read: {error}. A configuration file decides which code runs: make "
                "it and its directory yours (chown, chmod go-w), or name a file of your own in "
                f"{CONFIG_VARIABLE}"
            ) from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
            raise SettingsError(f"{path} could not be read: {error}") from None
    if named:
        raise SettingsError(f"{CONFIG_VARIABLE} names {named}, which does not exist")
    return DEFAULT_CONFIG, {}


@cache
def say(path: Path) -> None:
    """Tell on standard error, once, which file settings come from."""
    echo(f"settings from {path}", err=True)


def _of_home() -> list[Path]:
    home = os.environ.get("HOME", "")
    return [Path(home) / DEFAULT_CONFIG] if os.access(home, os.X_OK) and Path(home).is_dir() else []
