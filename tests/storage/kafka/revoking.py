"""Only tests revoke rights."""

from __future__ import annotations

from contextlib import closing

from kafka.admin import ACLFilter, ResourcePatternFilter

from lakehouse.settings.kafka_access import KafkaAccess
from lakehouse.storage.kafka.clients import Admin
from lakehouse.storage.kafka.rights import Right, as_acl


def revoke(admin: KafkaAccess, user: str, right: Right) -> None:
    """Revoke a right of a user."""
    one = as_acl(user, right)
    pattern = one.resource_pattern
    gone = ACLFilter(
        one.principal,
        one.host,
        one.operation,
        one.permission_type,
        ResourcePatternFilter(pattern.resource_type, pattern.resource_name, pattern.pattern_type),
    )
    with closing(Admin(admin, timeout_s=30.0)) as client:
        client.delete_acls([gone])
