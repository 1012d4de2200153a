"""A client for schema registries with Confluent's API.

The client distinguishes answers about one id or subject from failures of the whole registry:

| answer | means |
| --- | --- |
| 404 with code 40403 | the schema does not exist |
| another 4xx, or an invalid schema | the schema does not exist, provided that the server is a registry |
| 407, 408, 425, 429, 5xx, a redirect, no answer | unknown: RegistryError |

For the second row, a client checks once that the server is a registry: `GET /schemas/types` returns a list of
names to every user who may read schemas. The check detects a wrong path in the URL, a proxy's own page, and a
user without permissions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self, cast, get_args
from urllib.parse import quote

from lakehouse.common import web
from lakehouse.common.errors import RegistryError
from lakehouse.settings.registry_access import RegistryAccess

SchemaKind = Literal["AVRO", "JSON", "PROTOBUF"]
_JSON = "application/vnd.schemaregistry.v1+json"
_MEDIA = {"Accept": f"{_JSON}, application/json; q=0.9", "Content-Type": _JSON}
_NO_SCHEMA, _NO_SUBJECT, _NO_VERSION = 40403, 40401, 40402
_OK = 200
_OF_THE_REGISTRY = {407, 408, 425, 429}
_CLIENT_ERRORS = range(400, 500)


@dataclass(frozen=True)
class Registered:
    """A schema as stored in the registry. `has_references` is true if the schema refers to other schemas."""

    kind: SchemaKind
    text: str
    has_references: bool = False


@dataclass(frozen=True)
class Missing:
    """An answer without a schema. `answered` describes the answer, or is empty if there is no such schema."""

    answered: str = ""


class RegistryClient:
    """A registry client that reuses one connection during a `with` block. `asked` counts the requests.

    Methods raise RegistryError if no registry is configured, if the server does not answer or is not a
    registry, or if the server refuses a request.
    """

    def __init__(self, access: RegistryAccess) -> None:
        self._access = access
        self.asked = 0
        self._client: web.WebClient | None = None
        self._is_one: bool | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is not None:
            self._client.close()

    def schema(self, schema_id: int) -> Registered | Missing:
        """Return the schema with this id, or Missing if the registry does not have one."""
        what = f"schema {schema_id}"
        answer = self._ask(what, "GET", f"/schemas/ids/{schema_id}")
        found = _registered(answer)
        if found is not None:
            return found
        if _code(answer) == _NO_SCHEMA:
            return Missing()
        self._require_answer(what, answer)
        kinds = f"no schema ({', '.join(get_args(SchemaKind))}), but " if answer.is_success else ""
        return Missing(f"{kinds}{_shown(answer)}")

    def newest(self, subject: str) -> Registered | None:
        """Return a subject's newest schema, or None if the subject has no schema."""
        what = f"the newest schema of {subject}"
        answer = self._ask(what, "GET", f"/subjects/{quote(subject, safe='')}/versions/latest")
        if _code(answer) in {_NO_SUBJECT, _NO_VERSION}:
            return None
        found = _registered(answer)
        if found is None:
            raise self._refused(what, answer)
        return found

    def register(self, subject: str, schema: Registered) -> int:
        """Register a schema, unless the subject already has it, and return its id."""
        what = f"the registration of a schema for {subject}"
        answer = self._ask(what, "POST", f"/subjects/{quote(subject, safe='')}/versions", schema)
        made = _object(answer).get("id") if answer.is_success else None
        if type(made) is not int:
            raise self._refused(what, answer)
        return made

    def is_compatible(self, subject: str, schema: Registered) -> bool:
        """Return whether the registry would accept this schema as the subject's next version."""
        what = f"the compatibility check for {subject}"
        path = f"/compatibility/subjects/{quote(subject, safe='')}/versions/latest"
        answer = self._ask(what, "POST", path, schema)
        if _code(answer) in {_NO_SUBJECT, _NO_VERSION}:
            return True
        found = _object(answer).get("is_compatible") if answer.is_success else None
        if not isinstance(found, bool):
            raise self._refused(what, answer)
        return found

    def _ask(self, what: str, method: str, path: str, schema: Registered | None = None) -> web.Answer:
        access = self._access
        if not access.url:
            raise RegistryError(
                f"no schema registry is configured, but {what} needs one: set schema_registry.url "
                "(LAKEHOUSE_SCHEMA_REGISTRY_URL)"
            )
        sent = None if schema is None else {"schema": schema.text, "schemaType": schema.kind}
        headers = _MEDIA | web.authorization(access.username, access.password.get_secret_value())
        body = None if sent is None else json.dumps(sent).encode()
        self.asked += 1
        try:
            if self._client is None:
                self._client = web.WebClient(access.url, tls=web.trusted(access.ca.get_secret_value()))
            answer = self._client.ask(method, path, headers=headers, body=body)
        except (web.WebError, ValueError) as error:
            raise RegistryError(
                f"the schema registry at {access} does not answer the request for {what}: {error}"
            ) from error
        if answer.is_success or (answer.status in _CLIENT_ERRORS and answer.status not in _OF_THE_REGISTRY):
            return answer
        raise self._refused(what, answer)

    def _require_answer(self, what: str, answer: web.Answer) -> None:
        """Raise RegistryError unless the server is a registry, so that `answer` really is about `what`."""
        if self._is_one is None:
            types = self._ask(what, "GET", "/schemas/types")
            found = _json(types) if types.status == _OK else None
            kinds = found if isinstance(found, list) else []
            self._is_one = bool(kinds) and all(isinstance(one, str) for one in kinds)
            if not self._is_one:
                raise RegistryError(
                    f"{self._access} is not a schema registry, or it rejects this user: it answered "
                    f"{_shown(answer)} when asked for {what}, and {_shown(types)} when asked for its "
                    "schema types; check schema_registry.url, schema_registry.username and "
                    "schema_registry.password"
                )

    def _refused(self, what: str, answer: web.Answer) -> RegistryError:
        return RegistryError(
            f"the schema registry at {self._access} refuses the request for {what}: {_shown(answer)}"
        )


def newest_of(access: RegistryAccess, subject: str) -> Registered | None:
    """Return a subject's newest schema, or None. Raises RegistryError in the same cases as RegistryClient."""
    with RegistryClient(access) as client:
        return client.newest(subject)


def register(access: RegistryAccess, subject: str, schema: Registered) -> int:
    """Register a schema, unless the subject already has it, and return its id.

    Raises RegistryError if the registry refuses the schema, for example as incompatible.
    """
    with RegistryClient(access) as client:
        return client.register(subject, schema)


def is_compatible(access: RegistryAccess, subject: str, schema: Registered) -> bool:
    """Return whether the registry would accept this schema as the subject's next version."""
    with RegistryClient(access) as client:
        return client.is_compatible(subject, schema)


def registered(fields: Mapping[str, Any]) -> Registered | None:
    """Return a schema built from fields in an answer or a file, or None if the fields are invalid."""
    kind, text, references = fields["kind"], fields["text"], fields["has_references"]
    if kind not in get_args(SchemaKind) or not _is_text(text) or not isinstance(references, bool):
        return None
    return Registered(cast("SchemaKind", kind), text, references)


def _is_text(value: object) -> bool:
    try:
        return isinstance(value, str) and bool(value.encode())
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can encode
        return False


def _registered(answer: web.Answer) -> Registered | None:
    """Return the schema in an answer, or None if the answer contains no schema of a known kind."""
    if not answer.is_success:
        return None
    said = _object(answer)
    fields = {
        "kind": said.get("schemaType") or "AVRO",
        "text": said.get("schema"),
        "has_references": bool(said.get("references")),
    }
    return registered(fields)


def _object(answer: web.Answer) -> Mapping[str, Any]:
    found = _json(answer)
    return found if isinstance(found, dict) else {}


def _json(answer: web.Answer) -> Any:
    try:
        return json.loads(answer.body)
    except (RecursionError, ValueError):
        return None


def _code(answer: web.Answer) -> int | None:
    code = None if answer.is_success else _object(answer).get("error_code")
    return code if type(code) is int else None


def _shown(answer: web.Answer) -> str:
    """Return text that describes an answer: its status, and the server's message if there is one."""
    message = _object(answer).get("message")
    said = web.cut(message) if isinstance(message, str) and message.strip() else web.said(answer)
    return f"{answer.status}, {said}"
