"""Find and read the configuration file, and check that only the user can change it.

LAKEHOUSE_CONFIG names the file. The default is `lakehouse.toml` in the working directory, or else in the
user's home. The file determines which streams are imported, and thus which code runs. It also determines
where passwords are sent. A file that another user can change is therefore refused.
"""

from __future__ import annotations

import os
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from lakehouse.common.errors import SettingsError
from lakehouse.common.ownership import ForeignError, read_own
from lakehouse.common.terminal import echo

CONFIG_VARIABLE = "LAKEHOUSE_CONFIG"
DEFAULT_CONFIG = Path("lakehouse.toml")


def read_config() -> tuple[Path, dict[str, Any]]:
    """Return the configuration file's path and values. Without a file, the values are empty.

    Raises SettingsError if the file named by LAKEHOUSE_CONFIG is missing, or if a file is unreadable, is not
    TOML, or can be changed by another user.
    """
    named = os.environ.get(CONFIG_VARIABLE)
    for path in [Path(named)] if named else [DEFAULT_CONFIG, *_of_home()]:
        try:
            return path, tomllib.loads(read_own(path).decode())
        except FileNotFoundError:
            continue
        except ForeignError as error:
            raise SettingsError(
                f"refusing to use {path.absolute()}: {error}. A configuration file decides which code runs. "
                "Make sure that only you can write to it and its directory (chown, chmod go-w), or set "
                f"{CONFIG_VARIABLE} to a file that belongs to you"
            ) from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
            raise SettingsError(f"{path} could not be read: {error}") from None
    if named:
        raise SettingsError(f"{CONFIG_VARIABLE} names {named}, which does not exist")
    return DEFAULT_CONFIG, {}


@cache
def say(path: Path) -> None:
    """Print the configuration file's path on standard error, once."""
    echo(f"settings from {path}", err=True)


def _of_home() -> list[Path]:
    home = os.environ.get("HOME", "")
    return [Path(home) / DEFAULT_CONFIG] if os.access(home, os.X_OK) and Path(home).is_dir() else []
