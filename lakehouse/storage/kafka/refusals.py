"""Report that the broker denied a permission, with the user, the operation and the resource.

Neither Spark's Kafka source nor kafka-python names all three. The caller knows the operation and the
resource, so it passes both for each kind of resource that the broker might refuse.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

from confluent_kafka import KafkaError as ErrorCode
from confluent_kafka import KafkaException
from kafka.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    KafkaError,
    SaslAuthenticationFailedError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
)

from lakehouse.common.errors import AccessDeniedError, ServiceError
from lakehouse.settings.kafka_access import KafkaAccess
from lakehouse.storage.kafka.probe import require_broker

Kind = Literal["topic", "group", "transactional id", "cluster"]
Wanted = Mapping[Kind, str]

_KINDS: dict[int, Kind] = {
    TopicAuthorizationFailedError.errno: "topic",
    GroupAuthorizationFailedError.errno: "group",
    TransactionalIdAuthorizationFailedError.errno: "transactional id",
    ClusterAuthorizationFailedError.errno: "cluster",
}
_IN_JAVA: dict[str, Kind] = {"TopicAuthorizationException": "topic", "GroupAuthorizationException": "group"}
_ENTRY = {
    SaslAuthenticationFailedError.errno,
    ErrorCode._AUTHENTICATION,
    ErrorCode._SSL,
    ErrorCode._TIMED_OUT,
    ErrorCode._TRANSPORT,
    ErrorCode._ALL_BROKERS_DOWN,
}


def denied(access: KafkaAccess, error: BaseException | int, wanted: Wanted) -> AccessDeniedError | None:
    """Return an AccessDeniedError if `error`, an exception or a protocol code, is a denial, or else None.

    `wanted` maps each kind of resource to the operation that was requested, such as {"topic": "Write to topic
    sales"}.
    """
    kind = _KINDS.get(error) if isinstance(error, int) else _kind_of(error)
    if kind is None or kind not in wanted:
        return None
    return AccessDeniedError(
        f"{access.principal} may not {wanted[kind]}: denied by the Kafka broker at {access}; docs/kafka.md "
        "lists the required rights"
    )


@contextmanager
def asking(access: KafkaAccess, wanted: Wanted) -> Iterator[None]:
    """Translate kafka-python's errors in the block.

    Raises AccessDeniedError for a missing permission, and ServiceError for other broker failures. If the
    broker rejects this application's connection, the message contains the reason.
    """
    try:
        yield
    except KafkaError as error:
        raise failure(access, error, wanted) from error


def failure(access: KafkaAccess, error: Exception, wanted: Wanted) -> ServiceError:
    """Convert a Kafka client's failure to a ServiceError."""
    refused = denied(access, error, wanted)
    if refused is not None:
        return refused
    if _is_of_entry(error):
        try:
            require_broker(access, timeout_s=3.0)
        except ServiceError as reason:
            return reason
    return ServiceError(f"a request to the Kafka broker at {access} failed: {type(error).__name__}: {error}")


def _is_of_entry(error: Exception) -> bool:
    """Return whether the error, such as kafka-python's timeout, might mean a rejected connection."""
    if isinstance(error, KafkaException):
        return error.args[0].code() in _ENTRY
    return isinstance(error, KafkaError) and (_code(error) is None or _code(error) in _ENTRY)


def _code(error: KafkaError) -> int | None:
    """Return the broker's error code, or None if the client itself raised the error."""
    return getattr(error, "errno", None)


def _kind_of(error: BaseException) -> Kind | None:
    if isinstance(error, KafkaException):
        return _KINDS.get(error.args[0].code())
    if isinstance(error, KafkaError):
        return _KINDS.get(_code(error) or 0)
    text = str(error)
    return next((kind for name, kind in _IN_JAVA.items() if name in text), None)
