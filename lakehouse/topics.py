"""Kafka topics: is the broker there, and does it have them."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kafka import KafkaAdminClient
from kafka.errors import KafkaError, TopicAlreadyExistsError, for_code

from lakehouse.errors import ServiceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_REQUEST_TIMEOUT_S = 30.0
_DEFAULT_PORT = 9092


def require_broker(bootstrap_servers: str, timeout_s: float = 5.0) -> None:
    """Raise ServiceError unless a broker answers that is ready to hold topics."""
    with _admin(bootstrap_servers, timeout_s=timeout_s) as admin:
        brokers = admin.describe_cluster()["brokers"]
    if not brokers:
        raise _unreachable(bootstrap_servers, "it answers, but has no broker ready")


def create_topics(bootstrap_servers: str, partitions: Mapping[str, int]) -> list[str]:
    """Create the topics that are missing, with the broker's replication factor; return their names.

    A topic that exists is left as it is, whatever its number of partitions. Safe to call at the same time
    from several processes.
    """
    with _admin(bootstrap_servers, timeout_s=_REQUEST_TIMEOUT_S) as admin:
        existing = set(admin.list_topics())
        missing = {name: count for name, count in partitions.items() if name not in existing}
        if not missing:
            return []
        answer = admin.create_topics(
            {name: {"num_partitions": count} for name, count in missing.items()}, raise_errors=False
        )
        created = []
        for topic in answer["topics"]:
            error = for_code(topic["error_code"])
            if topic["error_code"] == 0:
                created.append(str(topic["name"]))
            elif error is not TopicAlreadyExistsError:
                raise ServiceError(
                    f"the broker at {bootstrap_servers} refused to create the topic {topic['name']} with "
                    f"{missing[topic['name']]} partitions: {topic['error_message'] or error.__name__}"
                )
        # Creation is asynchronous: a producer may otherwise be told that the topic is unknown.
        admin.wait_for_topics(list(missing))
    return created


def accepts_connections(host: str, port: int, timeout_s: float = 1.0) -> bool:
    """Whether something listens there."""
    try:
        with socket.create_connection((host, port), timeout=timeout_s):
            return True
    except (OSError, UnicodeError):  # the second is how a host name with an empty label fails
        return False


@contextmanager
def _admin(bootstrap_servers: str, *, timeout_s: float) -> Iterator[KafkaAdminClient]:
    # The client would retry a refused connection until its timeout, and keep at it after it gave up.
    if not any(accepts_connections(*address, timeout_s) for address in _addresses(bootstrap_servers)):
        raise _unreachable(bootstrap_servers, "nothing accepts connections there")
    try:
        admin = KafkaAdminClient(
            bootstrap_servers=bootstrap_servers.split(","),
            bootstrap_timeout_ms=int(timeout_s * 1000),
            request_timeout_ms=int(timeout_s * 1000),
        )
    except KafkaError as error:
        raise _unreachable(
            bootstrap_servers, f"what listens there does not answer as Kafka: {error}"
        ) from error
    try:
        yield admin
    except KafkaError as error:
        raise ServiceError(f"the broker at {bootstrap_servers} failed a request: {error}") from error
    finally:
        admin.close()


def _addresses(bootstrap_servers: str) -> list[tuple[str, int]]:
    addresses = []
    for server in bootstrap_servers.split(","):
        host, separator, port = server.strip().rpartition(":")
        if not separator:
            host, port = port, str(_DEFAULT_PORT)
        if not host or not port.isascii() or not port.isdecimal() or int(port) > 65_535:  # noqa: PLR2004
            raise ServiceError(
                f"LAKEHOUSE_KAFKA_BOOTSTRAP_SERVERS is {bootstrap_servers!r}; expected host:port, or several "
                "with commas between"
            )
        addresses.append((host.strip("[]"), int(port)))
    return addresses


def _unreachable(bootstrap_servers: str, why: str) -> ServiceError:
    return ServiceError(
        f"no Kafka broker at {bootstrap_servers} ({why}); start one with `lakehouse services up` or set "
        "LAKEHOUSE_KAFKA_BOOTSTRAP_SERVERS"
    )
