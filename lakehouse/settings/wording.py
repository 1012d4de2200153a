"""Messages about invalid settings: the key or variable, its value unless secret, and the expected form."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import SecretStr, ValidationError

from lakehouse.common.nearest import did_you_mean, nearest, shown
from lakehouse.common.printable import printable
from lakehouse.common.quantities import show_duration, show_size
from lakehouse.settings.fields import duration_or_never_s, duration_s, is_read_by, size_bytes
from lakehouse.settings.keys import ENV_PREFIX, Key, all_keys, section_names

_TOPIC = "a topic name: letters, digits, dots, dashes and underscores"
_FORMS: Mapping[str, str] = {
    "s3.endpoint": "a URL such as http://host:port, without a path",
    "metastore": "thrift://host:port, or several separated by commas",
    "spark.driver_memory": "digits followed by m or g",
    "kafka.dead_letter_topic": _TOPIC,
    "alerts.topic": _TOPIC,
}
"""The expected form of each setting that must match a pattern."""
EXAMPLES: Mapping[str, Any] = {
    "server_home": "/var/lib/lakehouse",
    "lake": "s3a://lake/prod",
    "metastore": "thrift://metastore:9083",
    "only_streams": "sales,calls",
    "http_hosts": "minio,registry",
    "streams": {"sales": {"threshold": 2500}},
    "sinks": {"http": {"url": "https://example.org/rows"}},
    "topics": {"sales-topic": "shop.sales"},
    "kafka.bootstrap_servers": "broker-1:9092,broker-2:9092",
    "kafka.sasl_mechanism": "OAUTHBEARER",
    "kafka.sasl_username": "etl",
    "kafka.oauth_token_url": "https://login.example.org/token",
    "kafka.oauth_scope": "kafka",
    "kafka.ssl_ca": "/etc/ssl/ca.pem",
    "kafka.ssl_certificate": "/etc/ssl/etl.pem",
    "kafka.ssl_key": "/etc/ssl/etl-key.pem",
    "kafka.client_properties": {"client.id": "etl"},
    "kafka.dead_letter_topic": "dead-letters",
    "schema_registry.url": "https://registry:8081",
    "schema_registry.username": "etl",
    "schema_registry.ca": "/etc/ssl/ca.pem",
    "s3.endpoint": "http://127.0.0.1:9000",
    "s3.region": "eu-central-1",
    "s3.access_key": "etl",
    "spark.secret_file": "/etc/lakehouse/spark-secret",
    "maintenance.keep_rows": {"bronze.sales_events": "90d"},
    "alerts.webhooks": ["https://example.org/hook"],
    "alerts.in_gold": {"within_s": 30, "objective": 0.99},
    "alerts.rules": [{"name": "late", "kind": "freshness", "seconds": 600}],
    "alerts.webhook_ca": "/etc/ssl/ca.pem",
}
"""Example values for all settings whose default is not a useful example."""
_TYPES: Mapping[type, str] = {
    int: "a whole number",
    float: "a number",
    Decimal: "a number",
    datetime: "a time in ISO 8601",
}


def unknown_variables(unknown: Collection[str], known: Collection[str]) -> str:
    """Return the message for unknown environment variables."""
    return "; ".join(f"unknown environment variable {_no(name, known)}" for name in sorted(unknown))


def unreadable(key: Key, text: str, error: ValueError) -> str:
    """Return the message for a variable whose value is not valid JSON."""
    what = "it cannot be parsed"
    if isinstance(error, json.JSONDecodeError):
        what = f"{error.msg} at character {error.pos + 1}"
    return f"{_subject(key, text, None)} is not JSON ({what}): {_expected(key, in_file=False)}"


def secret_in_file(key: Key, path: Path) -> str:
    """Return the message for a secret in the configuration file."""
    return (
        f"{key} in {path} is a secret, which must not be in the file: set {key.variable}, or "
        f"{key.file_variable} to the path of a file containing the secret"
    )


def explain(error: ValidationError, path: Path) -> str:
    """Return the message for invalid values. A value that no variable sets is from the file at `path`."""
    return "; ".join(_explain(dict(item), path) for item in error.errors(include_url=False))


def _explain(item: Mapping[str, Any], path: Path) -> str:
    first, *rest = map(str, item["loc"])
    if first in section_names() and not rest:
        return f"{first} in {path}: expected a section, [{first}]"
    depth = 2 if first in section_names() else 1
    name, within = ".".join([first, *rest][:depth]), item["loc"][depth:]
    key = all_keys().get(name)
    if key is None:
        return f"unknown key {_no(name, [*section_names(), *all_keys()], f' in {path}')}"
    value = item["input"] if within else as_text(key, item["input"])
    is_in_file = not any(one in os.environ for one in (key.variable, key.file_variable))
    subject = _subject(key, value, path if is_in_file else None, within)
    if item["type"] == "value_error":
        return f"{subject}: {item['ctx']['error']}"
    return f"{subject}: {_expected(key, within, in_file=is_in_file)}"


def _no(name: str, known: Iterable[str], where: str = "") -> str:
    """Return text for an unknown name: where it was found, and similar known names."""
    prefix = ENV_PREFIX if name.startswith(ENV_PREFIX) else ""
    near = nearest(name.removeprefix(prefix), [one.removeprefix(prefix) for one in known])
    if not near:
        return f"{printable(name)}{where}: docs/settings.md lists all settings"
    return f"{printable(name)}{where}: {did_you_mean([prefix + one for one in near])}"


def _subject(key: Key, value: object, path: Path | None, within: Collection[int | str] = ()) -> str:
    """Return a setting as it was given. A value that is secret or could contain a password is omitted."""
    place = "".join(f"[{printable(json.dumps(one))}]" for one in within)
    is_tree = isinstance(value, Mapping | list | tuple)
    text = json.dumps(value, default=str, ensure_ascii=False) if is_tree else str(value)
    is_shown = not key.is_secret and "@" not in text
    if path is None:
        given = key.variable if key.variable in os.environ else key.file_variable
        return f"{given}{place}" + (f"={shown(text)}" if is_shown else "")
    quoted = shown(text) if isinstance(value, str) else shown(text)[1:-1]
    return f"{key}{place}" + (f" = {quoted}" if is_shown else "") + f" in {path}"


def _expected(key: Key, within: Collection[int | str] = (), *, in_file: bool) -> str:
    """Return text for the form that is expected of a setting, or of an element of it, with an example."""
    kind, bounds = key.info.annotation, list(key.info.metadata)
    if within:
        kind = get_args(kind)[-1 if get_origin(kind) is dict else 0]
        if hasattr(kind, "__metadata__"):
            bounds = [one for info in kind.__metadata__ for one in getattr(info, "metadata", [info])]
            bounds += [info for info in kind.__metadata__ if not hasattr(info, "metadata")]
            kind = get_args(kind)[0]
    what = _FORMS.get(str(key)) or _kind(kind, bounds, in_file=in_file)
    default = key.info.get_default(call_default_factory=True)
    example = _given(key, EXAMPLES.get(str(key), default), in_file=in_file)
    return f"expected {what}" + (f", such as {example}" if example else "")


def _kind(kind: Any, bounds: list[Any], *, in_file: bool) -> str:
    """Return text for a value's expected type and bounds, such as `a number from 0 to 1`."""
    if get_origin(kind) is Literal:
        return f"one of {', '.join(one or 'nothing' for one in get_args(kind))}"
    if kind is bool:
        return "true or false"
    if any(get_origin(one) in (dict, tuple) for one in (kind, *get_args(kind))):
        what = "a table" if get_origin(kind) is dict else "a list"
        return what if in_file else f"{what} in JSON"
    shown_as: Callable[[Any], str] = str
    said = _TYPES.get(kind, "a path" if "Path" in str(kind) else "text")
    if is_read_by(bounds, duration_s, duration_or_never_s):
        shown_as, said = show_duration, "a duration"
    elif is_read_by(bounds, size_bytes):
        shown_as, said = show_size, "a size"
    least, most = (
        next((shown_as(getattr(one, end)) for one in bounds if hasattr(one, end)), None)
        for end in ("ge", "le")
    )
    above = next((one.gt for one in bounds if hasattr(one, "gt")), None)
    if any(hasattr(one, "multiple_of") for one in bounds):
        said = f"{said} in whole days"
    if above is not None:
        said = f"{said} above {above}"
    if least is not None and most is not None:
        return f"{said} from {least} to {most}"
    if least is not None:
        return f"{said} of at least {least}"
    return said if most is None else f"{said}, at most {most}"


def as_text(key: Key, value: Any) -> Any:
    """Return a value as written in the configuration file, with durations, sizes and times as text."""
    metadata = list(key.info.metadata)
    if str(key) == "maintenance.keep_rows":
        return {name: one if isinstance(one, str) else show_duration(one) for name, one in value.items()}
    if isinstance(value, int) and is_read_by(metadata, duration_s, duration_or_never_s):
        return show_duration(value)
    if value is None and is_read_by(metadata, duration_or_never_s):
        return "never"
    if isinstance(value, int) and is_read_by(metadata, size_bytes):
        return show_size(value)
    return value.isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else value


def _given(key: Key, value: Any, *, in_file: bool) -> str:
    """Return a setting and its value as written in a file or variable, or an empty string if useless."""
    if isinstance(value, SecretStr) or value in (None, "", (), {}):
        return ""
    value = as_text(key, value)
    plain = value if isinstance(value, str) else json.dumps(value, default=str).strip('"')
    if not in_file:
        quote = "'" if isinstance(value, Mapping | list) or " " in plain else ""
        return f"{key.variable}={quote}{plain}{quote}"
    return f"{key.name} = {in_toml(value)}"


def in_toml(value: Any) -> str:
    """Return a value in TOML syntax."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(key)} = {in_toml(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(in_toml, value)) + "]"
    if isinstance(value, Decimal):
        return str(value)
    return json.dumps(value, default=str, ensure_ascii=False)
