"""Describe, grant and look up Kafka permissions (ACLs), and print the commands that grant them.

`look_up` asks the broker which permissions this application has, and does not affect other applications.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient  # type: ignore[attr-defined]
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourceType,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from lakehouse.common.errors import ServiceError
from lakehouse.settings.kafka_access import KafkaAccess
from lakehouse.storage.kafka.clients import Producer
from lakehouse.storage.kafka.topics import administering

Operation = Literal["Read", "Write", "Create", "Describe", "DescribeConfigs"]
Kind = Literal["topic", "group", "transactional id"]

_CONSTANTS: Mapping[Operation, str] = {  # their names in both clients
    "Read": "READ",
    "Write": "WRITE",
    "Create": "CREATE",
    "Describe": "DESCRIBE",
    "DescribeConfigs": "DESCRIBE_CONFIGS",
}
_TYPES = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional id": ResourceType.TRANSACTIONAL_ID,
}


@dataclass(frozen=True)
class Right:
    """Permission for an operation on one resource or on all names with a prefix, and why it is needed."""

    operation: Operation
    kind: Kind
    name: str
    why: str
    is_prefix: bool = False
    is_required: bool = True

    def as_command(self, user: str) -> str:
        """Return the kafka-acls.sh arguments that grant the permission."""
        pattern = " --resource-pattern-type prefixed" if self.is_prefix else ""
        return (
            f"--add --allow-principal {shlex.quote(f'User:{user}')} --operation {self.operation} "
            f"--{self.kind.replace(' ', '-')} {shlex.quote(self.name)}{pattern}"
        )


def set_passwords(admin: KafkaAccess, passwords: Mapping[str, str]) -> None:
    """Set users' SCRAM-SHA-512 passwords as an administrator. Raises ServiceError on failure."""
    changes = [
        UserScramCredentialUpsertion(user, ScramMechanism.SCRAM_SHA_512, password.encode())
        for user, password in passwords.items()
    ]
    with administering(admin, "Alter") as client:
        client.alter_user_scram_credentials(changes)


def grant(admin: KafkaAccess, user: str, rights: Iterable[Right]) -> None:
    """Grant additional permissions to a user. Raises ServiceError on failure."""
    with administering(admin, "Alter") as client:
        client.create_acls([as_acl(user, right) for right in rights])


def as_acl(user: str, right: Right) -> ACL:
    """Return the permission as a kafka-python ACL."""
    pattern = ACLResourcePatternType.PREFIXED if right.is_prefix else ACLResourcePatternType.LITERAL
    return ACL(
        f"User:{user}",
        "*",
        ACLOperation[_CONSTANTS[right.operation]],
        ACLPermissionType.ALLOW,
        ResourcePattern(_TYPES[right.kind], right.name, pattern),
    )


_TIMEOUT_S = 10.0
_LOADING = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
}
_AGAIN_AFTER_S = 0.2
_ASKED_FOR = "doctor"  # appended to a prefix to name a group or a transactional id


@dataclass(frozen=True)
class Held:
    """A broker's answer: the permissions that are missing, and the topics that do not exist."""

    missing: tuple[Right, ...]
    absent_topics: tuple[str, ...]


def look_up(access: KafkaAccess, rights: Collection[Right]) -> Held:
    """Ask a reachable broker about these permissions. Raises ServiceError if the broker stops answering.

    A broker reports neither the permissions on a missing topic nor whether the topic may be created. To test
    the permission for transactional ids, this function initializes transactions with `lakehouse-doctor`, an
    id that no export uses. A broker that has just started loads its groups first, so this function waits.
    """
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        try:
            return _looked_up(access, rights)
        except KafkaException as error:
            why: KafkaError = error.args[0]
            if why.code() not in _LOADING or time.monotonic() >= deadline:
                raise ServiceError(
                    f"the Kafka broker at {access} did not report permissions: {why.name()}, {why.str()}"
                ) from error
        time.sleep(_AGAIN_AFTER_S)


def _looked_up(access: KafkaAccess, rights: Collection[Right]) -> Held:
    client = AdminClient(access.for_librdkafka() | {"log_level": 0})
    topics = sorted({right.name for right in rights if right.kind == "topic"})
    asked = client.describe_topics(
        TopicCollection(topics), include_authorized_operations=True, request_timeout=_TIMEOUT_S
    )
    allowed = {("topic", name): _allowed(future) for name, future in asked.items()}
    groups = {_named(right): right for right in rights if right.kind == "group"}
    members = client.describe_consumer_groups(
        sorted(groups), include_authorized_operations=True, request_timeout=_TIMEOUT_S
    )
    allowed |= {("group", name): _allowed(future) for name, future in members.items()}
    for name in {_named(right) for right in rights if right.kind == "transactional id"}:
        allowed["transactional id", name] = _of_transactions(access, name)
    absent = tuple(name for name in topics if allowed["topic", name] is None)
    return Held(tuple(_missing(rights, allowed)), absent)


def _missing(
    rights: Iterable[Right], allowed: dict[tuple[str, str], Collection[AclOperation] | None]
) -> Iterable[Right]:
    for right in rights:
        found = allowed[right.kind, _named(right)]
        # An existing topic needs the Create permission only after it has been deleted.
        wanted = AclOperation[_CONSTANTS[right.operation]]
        if found is not None and right.operation != "Create" and wanted not in found:
            yield right


def _named(right: Right) -> str:
    return f"{right.name}{_ASKED_FOR}" if right.is_prefix else right.name


def _allowed(future: Any) -> Collection[AclOperation] | None:
    """Return the operations allowed on a resource, or None if the resource does not exist.

    The result is empty if the user has no permission to describe the resource.
    """
    try:
        return future.result().authorized_operations or ()
    except KafkaException as error:
        code = error.args[0].code()
        if code in {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED}:
            return ()
        if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return None
        raise


def _of_transactions(access: KafkaAccess, name: str) -> Collection[AclOperation]:
    try:
        Producer(access, {"transactional.id": name}).init_transactions(_TIMEOUT_S)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            return ()
        raise
    return (AclOperation.WRITE,)
