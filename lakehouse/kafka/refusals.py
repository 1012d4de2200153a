"""Rights that the broker denies: said with the user, the operation and the resource.

Neither Spark's source nor kafka-python names all three. The caller knows the resource, so it is named here
what each kind of refusal would mean.
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

from lakehouse.errors import AccessDeniedError, ServiceError
from lakehouse.kafka.probe import require_broker
from lakehouse.settings.kafka_access import KafkaAccess

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
    """Return what the broker has denied, null if the error, or code of the protocol, is another.

    `wanted` says for each kind of resource what was asked for, such as {"topic": "Write to topic sales"}.
    """
    kind = _KINDS.get(error) if isinstance(error, int) else _kind_of(error)
    if kind is None or kind not in wanted:
        return None
    return AccessDeniedError(
        f"{access.principal} may not {wanted[kind]}, says the Kafka broker at {access}; docs/kafka.md "
        "lists the rights that are needed"
    )


@contextmanager
def asking(access: KafkaAccess, wanted: Wanted) -> Iterator[None]:
    """Translate the failures of kafka-python in the block.

    Raises AccessDeniedError for a right that is missing, and ServiceError for other failures of the broker,
    with the reason where the broker does not let this application in.
    """
    try:
        yield
    except KafkaError as error:
        raise failure(access, error, wanted) from error


def failure(access: KafkaAccess, error: Exception, wanted: Wanted) -> ServiceError:
    """Return the sentence for a failure of a Kafka client."""
    refused = denied(access, error, wanted)
    if refused is not None:
        return refused
    if _is_of_entry(error):
        try:
            require_broker(access, timeout_s=3.0)
        except ServiceError as reason:
            return reason
    return ServiceError(f"the broker at {access} failed a request: {type(error).__name__}: {error}")


def _is_of_entry(error: Exception) -> bool:
    """Whether the client may have been kept out, which kafka-python's mostly calls a timeout."""
    if isinstance(error, KafkaException):
        return error.args[0].code() in _ENTRY
    return isinstance(error, KafkaError) and (_code(error) is None or _code(error) in _ENTRY)


def _code(error: KafkaError) -> int | None:
    """Return the code of the protocol; null for what the client itself has found."""
    return getattr(error, "errno", None)


def _kind_of(error: BaseException) -> Kind | None:
    if isinstance(error, KafkaException):
        return _KINDS.get(error.args[0].code())
    if isinstance(error, KafkaError):
        return _KINDS.get(_code(error) or 0)
    text = str(error)
    return next((kind for name, kind in _IN_JAVA.items() if name in text), None)
