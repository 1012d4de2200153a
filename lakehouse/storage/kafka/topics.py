"""Describe and create Kafka topics."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from kafka.admin import ConfigFilterType, ConfigResource, ConfigResourceType
from kafka.errors import (
    InvalidConfigurationError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
    for_code,
)

from lakehouse.common.errors import ServiceError
from lakehouse.settings.kafka_access import KafkaAccess
from lakehouse.storage.kafka.clients import Admin, OffsetSpec, TopicPartition
from lakehouse.storage.kafka.probe import require_listening
from lakehouse.storage.kafka.refusals import asking, denied

_REQUEST_TIMEOUT_S = 30.0
_REQUEST_OVERHEAD = 64 * 1024  # upper bound on a request's size without its one record
_UNPACKED = {"compression.type": "uncompressed"}  # makes size limits hold for readers as well
_BEFORE, _AFTER = "message.timestamp.before.max.ms", "message.timestamp.after.max.ms"
_DATED = {_BEFORE: str(100 * 8_766 * 3_600_000), _AFTER: str(24 * 3_600_000)}  # a century; a day
_ANY_TIME = str(2**63 - 1)
_NO_LEADER = -1
_NO_IDS = (None, "00000000-0000-0000-0000-000000000000")  # brokers before 2.8 have no ids


def create_topics(
    access: KafkaAccess, partitions: Mapping[str, int], configs: Mapping[str, str] | None = None
) -> list[str]:
    """Create missing topics, with the broker's replication factor, and return their names.

    `configs` are topic properties that override the broker's. By default the broker decompresses records and
    limits their uncompressed size, at a cost in CPU and disk. From Kafka 3.6 on, it refuses timestamps more
    than a century in the past or more than a day in the future.

    An existing topic is left unchanged, whatever its number of partitions. Several processes can call this
    function at the same time. If the broker refuses a topic, the remaining topics are still created.
    Afterwards, this function raises ServiceError, or AccessDeniedError if a permission is missing.
    """
    if not partitions:
        return []
    with administering(access) as admin:
        refused, missing = list[ServiceError](), dict[str, int]()
        for found in admin.describe_topics(list(partitions)):
            name, code = str(found["name"]), int(found["error_code"])
            if for_code(code) is UnknownTopicOrPartitionError:
                missing[name] = partitions[name]
            elif (no := denied(access, code, {"topic": f"Describe topic {name}"})) is not None:
                refused.append(no)
        created = _create(access, admin, missing, configs or {}, refused) if missing else []
        # Creation is asynchronous: without this wait, the broker may reject the topic as unknown.
        if created:
            admin.wait_for_topics(created, timeout_ms=int(_REQUEST_TIMEOUT_S * 1000))
    if refused:
        raise refused[0]
    return created


def _create(
    access: KafkaAccess,
    admin: Admin,
    missing: Mapping[str, int],
    own: Mapping[str, str],
    refused: list[ServiceError],
) -> list[str]:
    """Create topics, and return the names of the created ones. Append errors for the others to `refused`."""
    created, answers = [], _asked_to_create(admin, missing, {**_UNPACKED, **_DATED, **own})
    unknown = {one["name"] for one in answers if for_code(one["error_code"]) is InvalidConfigurationError}
    if unknown:
        again = {name: count for name, count in missing.items() if name in unknown}
        answers = [one for one in answers if one["name"] not in unknown]
        answers += _asked_to_create(admin, again, {**_UNPACKED, **own})
    for topic in answers:
        name, code = str(topic["name"]), int(topic["error_code"])
        error = for_code(code)
        if code == 0:
            created.append(name)
        elif (no := denied(access, code, {"topic": f"Create topic {name}"})) is not None:
            refused.append(no)
        elif error is not TopicAlreadyExistsError:
            refused.append(
                ServiceError(
                    f"the Kafka broker at {access} refused to create topic {name} with "
                    f"{missing[name]} partitions: {topic['error_message'] or error.__name__}"
                )
            )
    return created


def _asked_to_create(
    admin: Admin, partitions: Mapping[str, int], configs: Mapping[str, str]
) -> list[dict[str, Any]]:
    wanted = {name: {"num_partitions": count, "configs": dict(configs)} for name, count in partitions.items()}
    return list(admin.create_topics(wanted, raise_errors=False)["topics"])


@dataclass(frozen=True)
class Unlimited:
    """Topics without a limit on the uncompressed size of records (`packed`) or on timestamps (`undated`).

    `untold` contains the topics whose limits the broker does not report, because the DescribeConfigs
    permission is missing.
    """

    packed: list[str]
    undated: list[str]
    untold: list[str]


def unlimited(access: KafkaAccess, topics: Collection[str]) -> Unlimited:
    """Return the topics whose records the broker stores compressed, and the topics that accept any timestamp.

    Timestamp limits exist since Kafka 3.6. Raises ServiceError if the broker does not answer.
    """
    (packing,) = _UNPACKED
    names = [packing, _BEFORE, _AFTER, "message.timestamp.type"]
    asked = [ConfigResource(ConfigResourceType.TOPIC, topic, names) for topic in topics]
    with administering(access) as admin:
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
        [topic for topic in sorted(topics) if not found.get(topic)],
    )


@dataclass(frozen=True)
class Topic:
    """A topic on the broker: its id (None if the broker does not support ids), and its partitions' offsets.

    `earliest` contains the offset of the first existing record, and `ends` the offset after the last record.
    """

    id: str | None
    earliest: Mapping[int, int]
    ends: Mapping[int, int]


def describe_topic(access: KafkaAccess, name: str) -> Topic | None:
    """Return the broker's description of a topic, or None if the topic does not exist.

    Raises ServiceError if the broker does not answer, or AccessDeniedError if describing the topic is not
    permitted.
    """
    with administering(access) as admin:
        found = _described(admin, access, name)
        if found is None:
            return None
        partitions = [TopicPartition(name, one["partition_index"]) for one in found["partitions"]]
        earliest, ends = (
            admin.list_partition_offsets(dict.fromkeys(partitions, place))
            for place in (OffsetSpec.EARLIEST, OffsetSpec.LATEST)
        )
    return Topic(
        _id_in(found),
        {one.partition: earliest[one].offset for one in partitions},
        {one.partition: ends[one].offset for one in partitions},
    )


class IdLooker:
    """A reader of a topic's id. It keeps one connection open, and is not thread-safe."""

    def __init__(self, access: KafkaAccess, topic: str) -> None:
        self._access = access
        self._topic = topic
        self._admin: Admin | None = None

    def look(self) -> str | None:
        """Return the topic's id, or None if the topic does not exist or the broker does not support ids.

        Raises ServiceError as `describe_topic` does.
        """
        with asking(self._access, {"topic": f"Describe topic {self._topic}"}):
            if self._admin is None:
                self._admin = Admin(self._access, _REQUEST_TIMEOUT_S)
            found = _described(self._admin, self._access, self._topic)
        return None if found is None else _id_in(found)

    def close(self) -> None:
        """Disconnect."""
        if self._admin is not None:
            self._admin.close()


def _described(admin: Admin, access: KafkaAccess, name: str) -> Mapping[str, Any] | None:
    (found,) = admin.describe_topics([name])
    error = for_code(found["error_code"])
    if error is UnknownTopicOrPartitionError:
        return None
    if found["error_code"]:
        no = denied(access, int(found["error_code"]), {"topic": f"Describe topic {name}"})
        raise no or ServiceError(
            f"the Kafka broker at {access} does not describe topic {name}: {error.__name__}"
        )
    return dict(found)


def _id_in(described: Mapping[str, Any]) -> str | None:
    return None if described["topic_id"] in _NO_IDS else str(described["topic_id"])


@dataclass(frozen=True)
class Limits:
    """A topic's limits for producers. The defaults are Kafka's own.

    `record_bytes` is the maximum size of a record that is alone in its batch. `transaction_ms` is the maximum
    duration of a transaction.
    """

    record_bytes: int = 1_048_588
    transaction_ms: int = 900_000


def limits_of(access: KafkaAccess, topic: str) -> Limits:
    """Return the topic's current limits for producers.

    If the broker does not report a limit, because a permission is missing, Kafka's default is returned. All
    brokers in a cluster are assumed to have the same limits. Raises ServiceError if no broker answers.
    """
    with administering(access) as admin:
        # The client's describe_cluster does not work with brokers before 3.7.
        (described,) = admin.describe_topics([topic])
        leaders = {one["leader_id"] for one in described["partitions"]} - {_NO_LEADER}
        asked = [ConfigResource(ConfigResourceType.TOPIC, topic, ["max.message.bytes"])]
        if leaders:
            names = ["socket.request.max.bytes", "transaction.max.timeout.ms"]
            asked.append(ConfigResource(ConfigResourceType.BROKER, str(min(leaders)), names))
        answer = admin.describe_configs(asked, config_filter=ConfigFilterType.ALL)
    said = {name: int(value) for name, value in _reported(answer).items()}
    record_bytes = said.get("max.message.bytes", Limits.record_bytes)
    request_bytes = said.get("socket.request.max.bytes", 100 * 1024 * 1024)
    return Limits(
        min(record_bytes, request_bytes - _REQUEST_OVERHEAD),
        said.get("transaction.max.timeout.ms", Limits.transaction_ms),
    )


def properties_of(access: KafkaAccess, topic: str, names: Collection[str]) -> dict[str, str]:
    """Return some of a topic's properties. Those that the broker does not report are missing.

    A broker reports none without the DescribeConfigs permission. Raises ServiceError if it does not answer.
    """
    with administering(access) as admin:
        asked = [ConfigResource(ConfigResourceType.TOPIC, topic, list(names))]
        return _reported(admin.describe_configs(asked, config_filter=ConfigFilterType.ALL))


def _reported(answer: Mapping[Any, Mapping[str, Mapping[str, Any]]]) -> dict[str, str]:
    """Return the properties in a broker's answer, except those without a value."""
    return {
        name: str(config["value"])
        for resources in answer.values()
        for configs in resources.values()
        for name, config in configs.items()
        if config["value"] is not None
    }


@contextmanager
def administering(access: KafkaAccess, what: str = "Describe") -> Iterator[Admin]:
    """Yield an admin client for the operation `what` on the cluster. Raises ServiceError as `asking` does."""
    require_listening(access)
    with (
        asking(access, {"cluster": f"{what} the cluster"}),
        closing(Admin(access, _REQUEST_TIMEOUT_S)) as admin,
    ):
        yield admin
