"""The schemas of a registry that has the API of Confluent's: one by its id, and those of a topic's values."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from lakehouse.errors import RegistryError, first_line
from lakehouse.extras import needed
from lakehouse.kafka.registry_access import RegistryAccess

SchemaKind = Literal["AVRO", "JSON", "PROTOBUF"]
_NO_SCHEMA, _NO_SUBJECT, _NO_VERSION = 40403, 40401, 40402
_INCOMPATIBLE = 409
_TIMEOUT_S = 10.0
_RETRIES = 1  # who asks waits, and asks again
_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class Registered:
    """A schema as the registry has it. `has_references`: it is not whole without others."""

    kind: SchemaKind
    text: str
    has_references: bool = False


def schema_of(access: RegistryAccess, schema_id: int) -> Registered | None:
    """Return the schema of this id; null if the registry says that there is none.

    Raises RegistryError if it says nothing, or something else.
    """
    return _asked(
        access,
        f"schema {schema_id}",
        lambda client: _registered(client.get_schema(schema_id)),
        none_for={_NO_SCHEMA},
    )


def newest_of(access: RegistryAccess, subject: str) -> Registered | None:
    """Return a subject's newest schema; null if it has none. Raises RegistryError as `schema_of` does."""
    return _asked(
        access,
        f"the newest schema of {subject}",
        lambda client: _registered(client.get_latest_version(subject).schema),
        none_for={_NO_SUBJECT, _NO_VERSION},
    )


def register(access: RegistryAccess, subject: str, schema: Registered) -> int:
    """Register a schema, unless the subject has it, and return its id.

    Raises RegistryError if the registry refuses it, as one that is not compatible.
    """
    made = _asked(
        access,
        f"to register a schema of {subject}",
        lambda client: int(client.register_schema(subject, _sent(schema))),
    )
    return cast("int", made)


def is_compatible(access: RegistryAccess, subject: str, schema: Registered) -> bool:
    """Tell whether the registry would take the schema, by its rules and the subject's newest one."""
    found = _asked(
        access,
        f"the compatibility of {subject}",
        lambda client: bool(client.test_compatibility(subject, _sent(schema))),
        none_for={_NO_SUBJECT, _NO_VERSION},
    )
    return found is not False


def _registered(schema: Any) -> Registered:
    return Registered(cast("SchemaKind", schema.schema_type), schema.schema_str, bool(schema.references))


def _sent(schema: Registered) -> Any:
    from confluent_kafka.schema_registry import Schema

    return Schema(schema.text, schema.kind)


def _asked(
    access: RegistryAccess,
    what: str,
    question: Callable[[Any], _Answer],
    none_for: Collection[int] = (),
) -> _Answer | None:
    """Return the answer of a client that is made anew, so that changed secrets count.

    Null for the codes that say there is nothing. Raises RegistryError for what else goes wrong.
    """
    # It takes a third of a second to import, and most starts need no schema that is not in the lake.
    with needed("formats", "a schema registry"):
        from confluent_kafka.schema_registry import SchemaRegistryClient
        from confluent_kafka.schema_registry.error import SchemaRegistryError
        from httpx2 import HTTPError

    if not access.url:
        raise RegistryError(f"{what} is needed, and no registry is named: set LAKEHOUSE_SCHEMA_REGISTRY_URL")
    try:
        with tempfile.TemporaryDirectory() as directory:
            client = SchemaRegistryClient(_configuration(access, Path(directory)))
        with client:
            return question(client)
    except SchemaRegistryError as error:
        if error.error_code in none_for:
            return None
        said = f"{error.http_status_code}, {first_line(error.error_message)}"
        then = "" if error.http_status_code == _INCOMPATIBLE else "; it is asked again until it answers"
        raise RegistryError(f"the schema registry at {access} refuses {what}: {said}{then}") from error
    except (HTTPError, OSError, ValueError) as error:
        raise RegistryError(
            f"the schema registry at {access} does not answer ({first_line(error) or type(error).__name__}), "
            f"and {what} is needed; it is asked again until it answers"
        ) from error


def _configuration(access: RegistryAccess, directory: Path) -> dict[str, Any]:
    """Return the client's properties; certificates lie in the directory, which it reads at once."""
    found: dict[str, Any] = {"url": access.url, "max.retries": _RETRIES, "timeout": _TIMEOUT_S}
    if access.username:
        found["basic.auth.user.info"] = f"{access.username}:{access.password.get_secret_value()}"
    if authorities := access.ca.get_secret_value():
        place = directory / "ca.pem"
        place.write_text(authorities, encoding="utf-8")
        found["ssl.ca.location"] = str(place)
    return found
