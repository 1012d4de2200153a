"""Messages about invalid settings: the place, the value unless it is secret, and the expected form."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import SecretStr, ValidationError
from pydantic_settings import SettingsError as UnreadableSetting

from lakehouse.common.nearest import did_you_mean, nearest, shown
from lakehouse.common.printable import printable
from lakehouse.settings.model import ENV_PREFIX, Settings
from lakehouse.settings.secrets import SUFFIX, secret_names

_FORMS: Mapping[str, str] = {
    "s3_endpoint": "a URL such as http://host:port, without a path",
    "metastore": "thrift://host:port, or several separated by commas",
    "max_bytes_per_batch": "digits, optionally followed by k, m or g",
    "driver_memory": "digits followed by m or g",
    "maintain_every": "never, or a number followed by s, m or h",
    "dead_letter_topic": "a topic name: letters, digits, dots, dashes and underscores",
    "alert_topic": "a topic name: letters, digits, dots, dashes and underscores",
}
"""The expected form of settings that have a pattern."""
EXAMPLES: Mapping[str, Any] = {
    "s3_endpoint": "http://127.0.0.1:9000",
    "schema_registry_url": "https://registry:8081",
    "kafka_oauth_token_url": "https://login.example.org/token",
    "metastore": "thrift://metastore:9083",
    "dead_letter_topic": "dead-letters",
    "formats": {"sales-topic": "avro"},
    "kafka_client_properties": {"client.id": "etl"},
    "topics": {"sales-topic": "shop.sales"},
    "start": {"sales-topic": "latest"},
    "unique_by": {"sales-topic": "orderId"},
    "sequence_by": {"sales-topic": "version"},
    "deletion_keys": {"sales-topic": "json:id"},
    "deleted_if": {"sales-topic": "op=d"},
    "kept_days": {"bronze.sales_events": 90},
    "emit": {"metrics_1m": "final"},
    "only_streams": "sales,calls",
    "alert_webhooks": ["https://example.org/hook"],
}
"""Example values of settings whose default is not a useful example."""
_TYPES: Mapping[type, str] = {
    int: "a whole number",
    float: "a number",
    Decimal: "a number",
    datetime: "a time in ISO 8601",
}


def unknown_variables(unknown: Collection[str], known: Collection[str]) -> str:
    """Return the message for unknown environment variables."""
    return "; ".join(f"unknown environment variable {_no(name, known)}" for name in sorted(unknown))


def unreadable(error: UnreadableSetting) -> str:
    """Return the message for a variable whose value is not valid JSON."""
    found = re.search(r'field "(\w+)"', str(error))
    if found is None:
        return str(error)
    name, cause = found[1], error.__cause__
    value = os.environ.get(_variable(name), "")
    where = f" at character {cause.pos + 1}" if isinstance(cause, json.JSONDecodeError) else ""
    what = f"{cause.msg}{where}" if isinstance(cause, json.JSONDecodeError) else "it is not JSON"
    return f"{_subject(name, value, None)} is not JSON ({what}): {_expected(name, in_file=False)}"


def explain(error: ValidationError, path: Path) -> str:
    """Return the message for invalid values; `path` is the file of values that no variable sets."""
    return "; ".join(_explain(dict(item), path) for item in error.errors(include_url=False))


def _explain(item: Mapping[str, Any], path: Path) -> str:
    name, *within = item["loc"]
    if item["type"] == "extra_forbidden":
        return f"unknown key {_no(str(name), Settings.model_fields)}".replace(",", f" in {path},", 1)
    is_in_file = not any(_variable(one) in os.environ for one in (name, name + SUFFIX))
    subject = _subject(name, item["input"], path if is_in_file else None, within)
    if item["type"] == "value_error":
        return f"{subject}: {item['ctx']['error']}"
    return f"{subject}: {_expected(name, within, in_file=is_in_file)}"


def _no(name: str, known: Collection[str]) -> str:
    """Return an unknown name with the known names that it resembles."""
    prefix = ENV_PREFIX if name.startswith(ENV_PREFIX) else ""
    near = nearest(name.removeprefix(prefix), [one.removeprefix(prefix) for one in known])
    if not near:
        return f"{printable(name)}, docs/settings.md lists all settings"
    return f"{printable(name)}, {did_you_mean([prefix + one for one in near])}"


def _variable(name: str) -> str:
    return ENV_PREFIX + name.upper()


def _subject(name: str, value: object, path: Path | None, within: Collection[int | str] = ()) -> str:
    """Return a setting as it was given, without a value that is secret or may contain a password."""
    place = "".join(f"[{printable(json.dumps(one))}]" for one in within)
    is_tree = isinstance(value, Mapping | list | tuple)
    text = json.dumps(value, default=str, ensure_ascii=False) if is_tree else str(value)
    is_shown = name not in secret_names(Settings) and "@" not in text
    if path is None:
        given = _variable(name) if _variable(name) in os.environ else _variable(name + SUFFIX)
        return f"{given}{place}" + (f"={shown(text)}" if is_shown else "")
    quoted = shown(text) if isinstance(value, str) else shown(text)[1:-1]
    return f"{name}{place}" + (f" = {quoted}" if is_shown else "") + f" in {path}"


def _expected(name: str, within: Collection[int | str] = (), *, in_file: bool) -> str:
    """Return the expected form of a setting, or of an element of it, with an example."""
    field = Settings.model_fields[name]
    kind, bounds = field.annotation, list(field.metadata)
    if within:
        kind = get_args(kind)[-1 if get_origin(kind) is dict else 0]
        if hasattr(kind, "__metadata__"):
            bounds = [one for info in kind.__metadata__ for one in getattr(info, "metadata", [info])]
            kind = get_args(kind)[0]
    what = _FORMS.get(name) or _kind(kind, bounds, in_file=in_file)
    default = field.get_default(call_default_factory=True)
    example = _given(name, EXAMPLES.get(name, default), in_file=in_file)
    return f"expected {what}" + (f", such as {example}" if example else "")


def _kind(kind: Any, bounds: Collection[Any], *, in_file: bool) -> str:
    """Return the expected type of a value, and its bounds."""
    if get_origin(kind) is Literal:
        return f"one of {', '.join(one or 'nothing' for one in get_args(kind))}"
    if kind is bool:
        return "true or false"
    if get_origin(kind) in (dict, tuple):
        what = "a table" if get_origin(kind) is dict else "a list"
        return what if in_file else f"{what} in JSON"
    least, most = (
        next((getattr(one, end) for one in bounds if hasattr(one, end)), None) for end in ("ge", "le")
    )
    above = next((one.gt for one in bounds if hasattr(one, "gt")), None)
    said = _TYPES.get(kind, "a path" if "Path" in str(kind) else "text")
    if above is not None:
        said = f"{said} above {above}"
    if least is not None and most is not None:
        return f"{said} from {least} to {most}"
    if least is not None:
        return f"{said} of at least {least}"
    return said if most is None else f"{said}, at most {most}"


def _given(name: str, value: Any, *, in_file: bool) -> str:
    """Return a value as written in a file or in a variable; empty if it is not a useful example."""
    if isinstance(value, SecretStr) or value in (None, "", (), {}):
        return ""
    if isinstance(value, datetime):
        value = value.isoformat().replace("+00:00", "Z")
    plain = value if isinstance(value, str) else json.dumps(value, default=str).strip('"')
    if not in_file:
        quote = "'" if isinstance(value, Mapping | list) or " " in plain else ""
        return f"{_variable(name)}={quote}{plain}{quote}"
    if isinstance(value, Mapping):
        inside = ", ".join(f"{json.dumps(key)} = {json.dumps(one)}" for key, one in value.items())
        return f"{name} = {{ {inside} }}"
    return f"{name} = {json.dumps(value, default=str)}"
