"""Generate a lakehouse.toml in which every key is commented out, with the key's default or an example."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap
from typing import Any

from lakehouse.settings.config_file import CONFIG_VARIABLE
from lakehouse.settings.keys import Key, all_keys
from lakehouse.settings.wording import EXAMPLES, as_text, in_toml

_HEAD = f"""\
# Settings for lakehouse. Every key is commented out, with its default or an example ("e.g.").
# A variable such as LAKEHOUSE_REDIS_TTL overrides its key; {CONFIG_VARIABLE} names another file.
# Secrets are refused here: set their variables, or set variables ending in _FILE to a file's path.
"""
_WIDTH = 100


def template() -> str:
    """Return the text of the lakehouse.toml: the top level first, then each section."""
    return _HEAD + "".join(f"{line}\n" for line in _lines())


def _lines() -> Iterator[str]:
    section = ""
    for key in all_keys().values():
        if key.section != section:
            section = key.section
            yield from ("", f"[{section}]")
        yield ""
        yield from (f"# {line}" for line in wrap(key.info.description or "", _WIDTH))
        yield f"# {_assignment(key)}"


def _assignment(key: Key) -> str:
    if key.is_secret:
        return f"Secret: {key.variable}, or {key.file_variable}."
    default: Any = as_text(key, key.info.get_default(call_default_factory=True))
    if default in (None, "", (), {}):
        return f"e.g. {key.name} = {in_toml(EXAMPLES[str(key)])}"
    return f"{key.name} = {in_toml(default if isinstance(default, bool | int | float) else _plain(default))}"


def _plain(value: Any) -> Any:
    return value if isinstance(value, list | tuple | dict) else str(value)
