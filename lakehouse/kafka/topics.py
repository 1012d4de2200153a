"""Kafka topics: whether the broker answers, which topics it has, and their offsets."""

from __future__ import annotations

import socket
import time
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import mean
from typing import TYPE_CHECKING, Any

from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.admin import ConfigFilterType, ConfigResource, ConfigResourceType, OffsetSpec
from kafka.errors import (
    InvalidConfigurationError,
    KafkaError,
    KafkaTimeoutError,
    LeaderNotAvailableError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
    for_code,
)

from lakehouse.errors import ServiceError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

_REQUEST_TIMEOUT_S = 30.0
_DEFAULT_PORT = 9092
_REQUEST_OVERHEAD = 64 * 1024  # a request needs less than this beside its one record, including topic names
_POLL_S = 0.1
_LOOKED_AT = 50  # records, to judge the size of those that follow
_LOOKED_AT_BYTES = 64 * 1024  # of a fetch; a broker sends a whole batch, however large
_METADATA_MS = 5_000  # so soon a new partition is seen
_UNPACKED = {"compression.type": "uncompressed"}  # so limits of size hold for readers, too
_BEFORE, _AFTER = "message.timestamp.before.max.ms", "message.timestamp.after.max.ms"
_DATED = {_BEFORE: str(100 * 8_766 * 3_600_000), _AFTER: str(24 * 3_600_000)}  # a century; a day
_ANY_TIME = str(2**63 - 1)
_NO_IDS = (None, "00000000-0000-0000-0000-000000000000")  # of brokers before 2.8


def require_broker(bootstrap_servers: str, timeout_s: float = 15.0) -> None:
    """Raise ServiceError unless a broker answers and is ready for topics."""
    with _admin(bootstrap_servers, timeout_s=timeout_s) as admin:
        brokers = admin.describe_cluster()["brokers"]
    if not brokers:
        raise _unreachable(bootstrap_servers, "it answers, but no broker is ready")


def require_listening(bootstrap_servers: str, timeout_s: float = 1.0) -> None:
    """Raise ServiceError at once unless something listens at one of the addresses."""
    # A client retries a refused connection until its timeout, and goes on after giving up.
    if not any(accepts_connections(*address, timeout_s) for address in _addresses(bootstrap_servers)):
        raise _unreachable(bootstrap_servers, "nothing accepts connections there")


def create_topics(
    bootstrap_servers: str, partitions: Mapping[str, int], configs: Mapping[str, str] | None = None
) -> list[str]:
    """Create missing topics, with the broker's replication factor; return their names.

    `configs` are topic properties that override the broker's. By default the broker unpacks records and
    limits their real size, at the price of its CPU and disk. It refuses timestamps of more than a century ago
    or more than a day ahead, unless it is older than Kafka 3.6.

    An existing topic is left alone, whatever its number of partitions. Several processes may call this at the
    same time.
    """
    with _admin(bootstrap_servers, timeout_s=_REQUEST_TIMEOUT_S) as admin:
        existing = set(admin.list_topics())
        missing = {name: count for name, count in partitions.items() if name not in existing}
        if not missing:
            return []
        own = configs or {}
        created, answers = [], _create(admin, missing, {**_UNPACKED, **_DATED, **own})
        unknown = {one["name"] for one in answers if for_code(one["error_code"]) is InvalidConfigurationError}
        if unknown:
            again = {name: count for name, count in missing.items() if name in unknown}
            answers = [one for one in answers if one["name"] not in unknown]
            answers += _create(admin, again, {**_UNPACKED, **own})
        for topic in answers:
            error = for_code(topic["error_code"])
            if topic["error_code"] == 0:
                created.append(str(topic["name"]))
            elif error is not TopicAlreadyExistsError:
                raise ServiceError(
                    f"the broker at {bootstrap_servers} refused to create the topic {topic['name']} with "
                    f"{missing[topic['name']]} partitions: {topic['error_message'] or error.__name__}"
                )
        # Creation is asynchronous: a producer may otherwise be told that the topic is unknown.
        admin.wait_for_topics(list(missing), timeout_ms=int(_REQUEST_TIMEOUT_S * 1000))
    return created


def _create(
    admin: KafkaAdminClient, partitions: Mapping[str, int], configs: Mapping[str, str]
) -> list[dict[str, Any]]:
    wanted = {name: {"num_partitions": count, "configs": dict(configs)} for name, count in partitions.items()}
    return list(admin.create_topics(wanted, raise_errors=False)["topics"])


@dataclass(frozen=True)
class Unlimited:
    """Topics without limits: `packed` for the size of records in memory, `undated` for their timestamps."""

    packed: list[str]
    undated: list[str]


def unlimited(bootstrap_servers: str, topics: Collection[str]) -> Unlimited:
    """Return the topics whose records the broker keeps compressed, and those that take any timestamp.

    A topic is left out if the broker does not tell, because that needs a permission or a later Kafka. Raises
    ServiceError if it does not answer.
    """
    (packing,) = _UNPACKED
    names = [packing, _BEFORE, _AFTER, "message.timestamp.type"]
    asked = [ConfigResource(ConfigResourceType.TOPIC, topic, names) for topic in topics]
    with _admin(bootstrap_servers, timeout_s=_REQUEST_TIMEOUT_S) as admin:
        answer = admin.describe_configs(asked, config_filter=ConfigFilterType.ALL) if asked else {}
    found = {
        topic: {name: config["value"] for name, config in configs.items()}
        for topics_ in answer.values()
        for topic, configs in sorted(topics_.items())
    }
    return Unlimited(
        [topic for topic, said in found.items() if said.get(packing) not in (None, _UNPACKED[packing])],
        [
            topic
            for topic, said in found.items()
            if _ANY_TIME in (said.get(_BEFORE), said.get(_AFTER))
            and said.get("message.timestamp.type") != "LogAppendTime"
        ],
    )


def ends_of(
    consumer: KafkaConsumer, partitions: Collection[TopicPartition], patience_s: float = 3.0
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Return partitions' first existing offsets, and those after their last records.

    A new partition has no leader for a moment, which makes the client raise a KeyError. Raises
    LeaderNotAvailableError if that lasts, and other KafkaErrors.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
        except KeyError as error:
            if time.monotonic() >= deadline:
                raise LeaderNotAvailableError(str(error)) from error
        time.sleep(_POLL_S)


def records_up_to(
    consumer: KafkaConsumer, begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> Iterator[Any]:
    """Yield the records of assigned partitions from some offsets up to others, which exist.

    Raises KafkaTimeoutError if nothing arrives for long, and other KafkaErrors.
    """
    for partition, begin in begins.items():
        consumer.seek(partition, begin)
    arrived = time.monotonic()
    while any(consumer.position(partition) < end for partition, end in ends.items()):
        found = consumer.poll(timeout_ms=int(1000 * _POLL_S))
        if found:
            arrived = time.monotonic()
        elif time.monotonic() - arrived > _REQUEST_TIMEOUT_S:
            raise KafkaTimeoutError(f"no record has arrived for {_REQUEST_TIMEOUT_S:g} s")
        for records in found.values():
            yield from records


def offset_ranges(bootstrap_servers: str, topic: str) -> dict[int, tuple[int, int]]:
    """Return for each partition the first existing offset and the one after the last committed record.

    Empty if there is no such topic.
    """
    require_broker(bootstrap_servers)
    consumer = KafkaConsumer(bootstrap_servers=bootstrap_servers.split(","), isolation_level="read_committed")
    try:
        partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
        first, end = ends_of(consumer, partitions)
        return {one.partition: (first[one], end[one]) for one in partitions}
    except KafkaError as error:
        raise ServiceError(f"the broker at {bootstrap_servers} failed a request: {error}") from error
    finally:
        consumer.close()


class OffsetLooker:
    """Looks again and again at a topic's offsets, over one connection. For one thread at a time."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._topic = topic
        require_listening(bootstrap_servers)
        try:
            self._consumer = KafkaConsumer(
                bootstrap_servers=bootstrap_servers.split(","),
                isolation_level="read_committed",
                enable_auto_commit=False,
                metadata_max_age_ms=_METADATA_MS,
                auto_offset_reset="none",
                max_partition_fetch_bytes=_LOOKED_AT_BYTES,
            )
        except KafkaError as error:
            raise _unreachable(bootstrap_servers, f"what listens there is not Kafka: {error}") from error

    def look(self) -> dict[int, tuple[int, int]]:
        """Return for each partition the first existing offset and the one after the last committed record.

        Empty if there is no such topic. Raises ServiceError if the broker does not answer.
        """
        try:
            numbers = self._consumer.partitions_for_topic(self._topic) or ()
            partitions = [TopicPartition(self._topic, number) for number in numbers]
            first, end = ends_of(self._consumer, partitions) if partitions else ({}, {})
            return {one.partition: (first[one], end[one]) for one in partitions}
        except KafkaError as error:
            raise ServiceError(
                f"the broker at {self._bootstrap_servers} failed a request: {type(error).__name__}: {error}"
            ) from error

    def record_bytes(self, partition: int, offset: int) -> float | None:
        """Return the mean size of key and value, unpacked, of some records from an offset on.

        Null if none comes at once, or Kafka's client does not take them.
        """
        place = TopicPartition(self._topic, partition)
        try:
            self._consumer.assign([place])
            self._consumer.seek(place, offset)
            found = self._consumer.poll(_POLL_S * 1000, max_records=_LOOKED_AT).get(place, ())
        except Exception:  # noqa: BLE001 - whoever reads the records will tell what is the matter with them
            return None
        finally:
            self._consumer.assign([])
        sizes = [max(0, one.serialized_key_size) + max(0, one.serialized_value_size) for one in found]
        return mean(sizes) if sizes else None

    def close(self) -> None:
        """Disconnect."""
        self._consumer.close()


@dataclass(frozen=True)
class Topic:
    """A topic on the broker: its id (null from brokers without ids), and each partition's records.

    `earliest` is the offset of the first existing record, `ends` the one after the last.
    """

    id: str | None
    earliest: Mapping[int, int]
    ends: Mapping[int, int]


def describe_topic(bootstrap_servers: str, name: str) -> Topic | None:
    """Return what the broker knows of the topic, null if it does not exist."""
    with _admin(bootstrap_servers, timeout_s=_REQUEST_TIMEOUT_S) as admin:
        (found,) = admin.describe_topics([name])
        error = for_code(found["error_code"])
        if error is UnknownTopicOrPartitionError:
            return None
        if found["error_code"]:
            raise ServiceError(
                f"the broker at {bootstrap_servers} does not describe topic {name}: {error.__name__}"
            )
        partitions = [TopicPartition(name, one["partition_index"]) for one in found["partitions"]]
        earliest, ends = (
            admin.list_partition_offsets(dict.fromkeys(partitions, place))
            for place in (OffsetSpec.EARLIEST, OffsetSpec.LATEST)
        )
    return Topic(
        None if found["topic_id"] in _NO_IDS else str(found["topic_id"]),
        {one.partition: earliest[one].offset for one in partitions},
        {one.partition: ends[one].offset for one in partitions},
    )


@dataclass(frozen=True)
class Limits:
    """A topic's limits for producers; the defaults are Kafka's own.

    `record_bytes` is the size of a record in a batch of its own, `transaction_ms` how long a transaction may
    be open.
    """

    record_bytes: int = 1_048_588
    transaction_ms: int = 900_000


def limits_of(bootstrap_servers: str, topic: str) -> Limits:
    """Return the topic's current limits for producers.

    If the broker does not tell, because that needs a permission, Kafka's defaults apply. The brokers of a
    cluster are assumed to agree. Raises ServiceError if none answers.
    """
    with _admin(bootstrap_servers, timeout_s=_REQUEST_TIMEOUT_S) as admin:
        brokers = [one for one in admin.describe_cluster()["brokers"] if not one.get("is_fenced")]
        asked = [ConfigResource(ConfigResourceType.TOPIC, topic, ["max.message.bytes"])]
        if brokers:
            names = ["socket.request.max.bytes", "transaction.max.timeout.ms"]
            asked.append(ConfigResource(ConfigResourceType.BROKER, str(brokers[0]["broker_id"]), names))
        answer = admin.describe_configs(asked, config_filter=ConfigFilterType.ALL)
    said = {
        name: int(found["value"])
        for resources in answer.values()
        for configs in resources.values()
        for name, found in configs.items()
        if found["value"] is not None
    }
    record_bytes = said.get("max.message.bytes", Limits.record_bytes)
    request_bytes = said.get("socket.request.max.bytes", 100 * 1024 * 1024)
    return Limits(
        min(record_bytes, request_bytes - _REQUEST_OVERHEAD),
        said.get("transaction.max.timeout.ms", Limits.transaction_ms),
    )


def accepts_connections(host: str, port: int, timeout_s: float = 1.0) -> bool:
    """Whether something listens there."""
    try:
        with socket.create_connection((host, port), timeout=timeout_s):
            return True
    except (OSError, UnicodeError):  # the second is raised for a host name with an empty label
        return False


def admin_client(bootstrap_servers: str, timeout_s: float) -> KafkaAdminClient:
    """Connect to a broker, which has so long to answer; raises KafkaError if it does not."""
    return KafkaAdminClient(
        bootstrap_servers=bootstrap_servers.split(","),
        bootstrap_timeout_ms=int(timeout_s * 1000),
        request_timeout_ms=int(timeout_s * 1000),
    )


@contextmanager
def _admin(bootstrap_servers: str, *, timeout_s: float) -> Iterator[KafkaAdminClient]:
    require_listening(bootstrap_servers, timeout_s)
    try:
        admin = admin_client(bootstrap_servers, timeout_s)
    except KafkaError as error:
        raise _unreachable(bootstrap_servers, f"what listens there is not Kafka: {error}") from error
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
