"""Kafka rights (ACLs): as values, as commands for a person, and granted by an administrator."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

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

from lakehouse.settings.kafka_access import KafkaAccess
from lakehouse.storage.kafka.topics import administering

Operation = Literal["Read", "Write", "Create", "Describe", "DescribeConfigs"]
Kind = Literal["topic", "group", "transactional id"]

_OPERATIONS = {
    "Read": ACLOperation.READ,
    "Write": ACLOperation.WRITE,
    "Create": ACLOperation.CREATE,
    "Describe": ACLOperation.DESCRIBE,
    "DescribeConfigs": ACLOperation.DESCRIBE_CONFIGS,
}
_TYPES = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional id": ResourceType.TRANSACTIONAL_ID,
}


@dataclass(frozen=True)
class Right:
    """An operation on a resource, or with `is_prefix` on all with this prefix, and the reason (`why`)."""

    operation: Operation
    kind: Kind
    name: str
    why: str
    is_prefix: bool = False
    is_required: bool = True

    def as_command(self, user: str) -> str:
        """Return the arguments of kafka-acls.sh that grant the right."""
        pattern = " --resource-pattern-type prefixed" if self.is_prefix else ""
        return (
            f"--add --allow-principal {shlex.quote(f'User:{user}')} --operation {self.operation} "
            f"--{self.kind.replace(' ', '-')} {shlex.quote(self.name)}{pattern}"
        )


def set_passwords(admin: KafkaAccess, passwords: Mapping[str, str]) -> None:
    """Set users' SCRAM-SHA-512 passwords, as an administrator. Raises ServiceError."""
    changes = [
        UserScramCredentialUpsertion(user, ScramMechanism.SCRAM_SHA_512, password.encode())
        for user, password in passwords.items()
    ]
    with administering(admin, "Alter") as client:
        client.alter_user_scram_credentials(changes)


def grant(admin: KafkaAccess, user: str, rights: Iterable[Right]) -> None:
    """Grant rights to a user; existing ones stay. Raises ServiceError."""
    with administering(admin, "Alter") as client:
        client.create_acls([as_acl(user, right) for right in rights])


def as_acl(user: str, right: Right) -> ACL:
    """Return the right as kafka-python's ACL."""
    pattern = ACLResourcePatternType.PREFIXED if right.is_prefix else ACLResourcePatternType.LITERAL
    return ACL(
        f"User:{user}",
        "*",
        _OPERATIONS[right.operation],
        ACLPermissionType.ALLOW,
        ResourcePattern(_TYPES[right.kind], right.name, pattern),
    )
