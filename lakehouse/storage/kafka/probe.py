"""Check whether a broker answers, using librdkafka because only that client reports the reason if not."""

from __future__ import annotations

import logging
import socket
import time
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from lakehouse.common.errors import ServiceError
from lakehouse.settings.kafka_access import KafkaAccess

_DEFAULT_PORT = 9092
_TURN_S = 0.5
# The settings to check, by librdkafka's error code. More specific codes come first.
_CAUSES = (
    (KafkaError._AUTHENTICATION, "kafka.sasl_mechanism, kafka.sasl_username and kafka.sasl_password"),
    (KafkaError._SSL, "kafka.ssl_ca, kafka.ssl_certificate and kafka.ssl_key"),
    (KafkaError._RESOLVE, "kafka.bootstrap_servers"),
    (KafkaError._TRANSPORT, "kafka.security_protocol"),
)


def require_broker(access: KafkaAccess, timeout_s: float = 15.0) -> None:
    """Raise ServiceError unless a broker accepts this application and can serve topics."""
    require_listening(access, min(timeout_s, 5.0))
    reason = why_not(access, timeout_s)
    if reason is not None:
        raise ServiceError(reason)


def why_not(access: KafkaAccess, timeout_s: float = 5.0) -> str | None:
    """Return None if a broker accepts this application, or else the reason and the settings to check."""
    told: dict[int, str] = {}

    def note(error: KafkaError) -> None:
        # The broker's TLS errors are reported as connection errors.
        code = KafkaError._SSL if "SSL routines" in error.str() else error.code()
        told.setdefault(code, error.str())

    log = logging.Logger("probe")
    log.addHandler(_Disconnections(told))
    options: dict[str, Any] = {**access.for_librdkafka(), "error_cb": note}
    client = AdminClient(options, logger=log)
    deadline, decisive, is_empty = time.monotonic() + timeout_s, {one for one, _ in _CAUSES[:2]}, False
    while not told.keys() & decisive and (left := deadline - time.monotonic()) > 0:
        with suppress(KafkaException):
            if client.list_topics(timeout=min(_TURN_S, left)).brokers:
                return None
            is_empty = True
        client.poll(0)
    if is_empty:
        return unreachable(access, "the address answers, but no broker is ready")
    for code, settings in _CAUSES:
        if code in told:
            return refusal(access, told[code], settings)
    return unreachable(access, f"it accepts connections, but did not answer within {timeout_s:g} s")


class _Disconnections(logging.Handler):
    """A log handler that records why a connection ended. librdkafka sometimes only logs the reason."""

    def __init__(self, told: dict[int, str]) -> None:
        super().__init__()
        self._told = told

    def emit(self, record: logging.LogRecord) -> None:
        """Record the reason from the log, unless an earlier reason has been recorded."""
        _, found, why = record.getMessage().partition("Disconnected: ")
        if found:
            self._told.setdefault(KafkaError._TRANSPORT, why)


def require_listening(access: KafkaAccess, timeout_s: float = 1.0) -> None:
    """Raise ServiceError immediately unless one of the addresses accepts connections."""
    # A client would retry a refused connection until its timeout, or even longer.
    if not any(accepts_connections(*address, timeout_s) for address in _addresses(access.servers)):
        raise ServiceError(unreachable(access, "nothing accepts connections there"))


def accepts_connections(host: str, port: int, timeout_s: float = 1.0) -> bool:
    """Return whether the address accepts connections."""
    try:
        with socket.create_connection((host, port), timeout=timeout_s):
            return True
    except (OSError, UnicodeError):  # UnicodeError is raised for a host name with an empty label
        return False


def unreachable(access: KafkaAccess, why: str) -> str:
    """Return the error message for unreachable brokers; `why` is the reason."""
    return (
        f"no Kafka broker at {access} ({why}); start one with `lakehouse services up` or set "
        "kafka.bootstrap_servers (LAKEHOUSE_KAFKA_BOOTSTRAP_SERVERS)"
    )


def refusal(access: KafkaAccess, said: str, settings: str) -> str:
    """Return the error message for brokers that reject this application; `said` is librdkafka's message."""
    who = f" as {access.principal}" if access.is_sasl else ""
    return f"the Kafka broker at {access} cannot be used{who}: {_brief(said)}; check {settings}"


def _brief(said: str) -> str:
    """Return librdkafka's message without the address and the duration."""
    where, separator, what = said.partition(": ")
    return (what if separator and "://" in where else said).split(" (after ")[0].strip()


def _addresses(servers: str) -> list[tuple[str, int]]:
    addresses = []
    for server in servers.split(","):
        host, separator, port = server.strip().rpartition(":")
        if not separator:
            host, port = port, str(_DEFAULT_PORT)
        if not host or not port.isascii() or not port.isdecimal() or int(port) > 65_535:  # noqa: PLR2004
            raise ServiceError(
                f"kafka.bootstrap_servers is {servers!r}; expected host:port, or several separated by commas"
            )
        addresses.append((host.strip("[]"), int(port)))
    return addresses
