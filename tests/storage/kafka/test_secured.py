"""A broker with TLS, users and rights: who is let in, and how a missing right is reported."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from lakehouse.common.errors import AccessDeniedError, ServiceError
from lakehouse.dev.samples import Sample
from lakehouse.dev.samples.producing import produce
from lakehouse.dev.services import services
from lakehouse.dev.services.broker import by_certificate
from lakehouse.dev.services.certificates import Authority
from lakehouse.operations.telemetry.broker import Broker
from lakehouse.settings import load_settings
from lakehouse.settings.kafka_access import KafkaAccess
from lakehouse.sinks.kafka.rows import read_group
from lakehouse.storage.kafka.newest import newest_records
from lakehouse.storage.kafka.offsets import OffsetLooker, offset_ranges
from lakehouse.storage.kafka.probe import require_broker
from lakehouse.storage.kafka.rights import Held, Right, grant, look_up, set_passwords
from lakehouse.storage.kafka.topics import create_topics, describe_topic, unlimited
from lakehouse.storage.kafka.transactions import Reached, Record, Transactions
from tests.storage.kafka.revoking import revoke
from tests.support.pipeline import await_

GROUP = "lakehouse-export-a"
PATIENCE_S = 10.0


@dataclass(frozen=True)
class Secured:
    """A secured broker: how its user and its administrator reach it, and the files of their secrets."""

    user: KafkaAccess
    admin: KafkaAccess
    files: Path


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    settings = load_settings().changed({"home": tmp_path_factory.mktemp("secured")})
    with services.local_services(settings, brief=True, secure=True) as endpoints:
        admin = services.administrator(settings)
        assert admin is not None
        yield Secured(endpoints.access, admin, settings.home / "kafka" / "security")


@pytest.fixture
def topic(secured: Secured) -> str:
    name = f"secured-{uuid.uuid4().hex[:8]}"
    create_topics(secured.admin, {name: 2})
    return name


def test_a_user_is_let_in_by_a_password_or_a_certificate(secured: Secured) -> None:
    require_broker(secured.user)
    require_broker(by_certificate(secured.files, secured.admin.servers, "lakehouse"))


@pytest.mark.soak
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"password": SecretStr("wrong")},
            "cannot be used as User:lakehouse: .*invalid credentials.*check kafka.sasl_mechanism",
        ),
        (
            {"ca": SecretStr(Authority().pem)},
            "cannot be used as User:lakehouse: .*certificate verify failed.*check kafka.ssl_ca",
        ),
        ({"mechanism": "PLAIN"}, "cannot be used as User:lakehouse: .*SCRAM-SHA-512.*kafka.sasl_mechanism"),
        pytest.param(
            {"protocol": "PLAINTEXT"},
            "cannot be used: connection closed by peer.*check kafka.security_protocol",
            marks=pytest.mark.soak,  # librdkafka waits a few seconds
        ),
        ({"servers": "127.0.0.1:1"}, "no Kafka broker at 127.0.0.1:1 .nothing accepts connections there"),
    ],
    ids=["password", "authority", "mechanism", "protocol", "address"],
)
def test_whoever_is_kept_out_is_told_why(secured: Secured, change: dict[str, Any], said: str) -> None:
    kept_out = replace(secured.user, **change)

    with pytest.raises(ServiceError, match=said):
        require_broker(kept_out, timeout_s=2)
    with pytest.raises(ServiceError, match=said):
        Transactions(kept_out, GROUP, timeout_s=30, patience_s=0.5)


def test_a_certificate_that_has_expired_or_is_missing_is_named(secured: Secured) -> None:
    stranger = replace(secured.admin, certificate=SecretStr(""), key=SecretStr(""))
    certificate, key = Authority().issue("lakehouse", until=datetime.now(UTC) - timedelta(days=1))
    expired = replace(secured.admin, certificate=SecretStr(certificate), key=SecretStr(key))

    for one in (stranger, expired):
        with pytest.raises(ServiceError, match=r"cannot be used: .*check kafka.ssl_ca"):
            require_broker(one, timeout_s=5)


def test_a_new_password_in_the_file_is_used_by_the_next_client(secured: Secured) -> None:
    file = secured.files / "lakehouse.password"
    before = file.read_text(encoding="utf-8")
    set_passwords(secured.admin, {"lakehouse": "another"})
    with pytest.raises(ServiceError, match="invalid credentials"):
        require_broker(secured.user, timeout_s=5)

    file.write_text("another\n", encoding="utf-8")

    require_broker(secured.user)
    set_passwords(secured.admin, {"lakehouse": before})
    file.write_text(before, encoding="utf-8")
    require_broker(secured.user)


def send(access: KafkaAccess, topic: str) -> None:
    with closing(Transactions(access, GROUP, timeout_s=30, patience_s=PATIENCE_S)) as producer:
        producer.commit([Record(topic, b"k", b"v")], (topic, Reached(1, "note")))


def look(access: KafkaAccess, topic: str) -> object:
    with closing(OffsetLooker(access, topic)) as looker:
        return looker.look()


def denied_to_telemetry(access: KafkaAccess, topic: str) -> object:
    with closing(Broker(access)) as broker:
        broker.ends([topic])
        raise AccessDeniedError(broker.denied[topic])


def produced(access: KafkaAccess, topic: str) -> object:
    summary = produce(access, topic, [Sample(b"k", b"v", "valid")])
    if summary.first_error is not None:
        raise AccessDeniedError(summary.first_error)
    return summary.acknowledged


def sampled(access: KafkaAccess, topic: str) -> object:
    produced(access, topic)
    return newest_records(access, topic, 1)


ALL = (
    Right("Read", "topic", "{topic}", ""),
    Right("Write", "topic", "{topic}", ""),
    Right("Read", "group", "lakehouse-", "", is_prefix=True),
    Right("Write", "transactional id", "lakehouse-", "", is_prefix=True),
)
NONE: tuple[Right, ...] = ()


@pytest.mark.soak
@pytest.mark.parametrize(
    ("rights", "do", "said"),
    [
        (NONE, describe_topic, "Describe topic {topic}"),
        (NONE, look, "Describe topic {topic}"),
        (NONE, offset_ranges, "Describe topic {topic}"),
        (NONE, denied_to_telemetry, "Describe topic {topic}"),
        (NONE, lambda access, topic: create_topics(access, {topic: 1}), "Describe topic {topic}"),
        (NONE, lambda access, topic: newest_records(access, topic, 1), "Describe topic {topic}"),
        (ALL[1:2], sampled, "Read topic {topic}"),
        (ALL[:1], produced, "Write to topic {topic}"),
        (ALL[:2] + ALL[3:], lambda access, topic: read_group(access, GROUP, topic), f"Read group {GROUP}"),
        (ALL[:3], send, f"Write to transactional id {GROUP}"),
        (ALL[:2] + ALL[3:], send, f"Read group {GROUP}"),
        (ALL[:1] + ALL[2:], send, "Write to topic {topic}"),
        (ALL[1:], send, "Read topic {topic}"),
    ],
)
def test_a_missing_right_is_named_with_its_user_and_its_resource(
    secured: Secured,
    topic: str,
    rights: tuple[Right, ...],
    do: Callable[[KafkaAccess, str], object],
    said: str,
) -> None:
    given = [replace(one, name=one.name.format(topic=topic)) for one in rights]
    withdraw(secured, topic)
    grant(secured.admin, "lakehouse", given)

    with pytest.raises(AccessDeniedError) as refusal:
        do(secured.user, topic)

    assert str(refusal.value).startswith(
        f"User:lakehouse may not {said.format(topic=topic)}: denied by the Kafka broker at {secured.user}; "
    )


def test_with_these_rights_alone_rows_leave_and_topics_are_read(secured: Secured, topic: str) -> None:
    withdraw(secured, topic)
    grant(secured.admin, "lakehouse", [replace(one, name=one.name.format(topic=topic)) for one in ALL])

    send(secured.user, topic)

    assert read_group(secured.user, GROUP, topic) == Reached(1, "note")
    assert sum(end - first for first, end in offset_ranges(secured.user, topic).values()) > 0
    assert [record.value for record in newest_records(secured.user, topic, 9)] == [b"v"]
    assert unlimited(secured.user, [topic]).untold == [topic]
    grant(secured.admin, "lakehouse", [Right("DescribeConfigs", "topic", topic, "")])
    assert unlimited(secured.user, [topic]).untold == []


def test_what_may_not_be_made_is_named_after_the_rest_was_made(secured: Secured) -> None:
    mine, other = f"a-{uuid.uuid4().hex[:8]}", f"b-{uuid.uuid4().hex[:8]}"
    grant(secured.admin, "lakehouse", [Right(one, "topic", mine, "") for one in ("Create", "Describe")])
    grant(secured.admin, "lakehouse", [Right("Describe", "topic", other, "")])

    with pytest.raises(AccessDeniedError, match=f"User:lakehouse may not Create topic {re.escape(other)}: "):
        create_topics(secured.user, {other: 1, mine: 1})

    assert describe_topic(secured.user, mine) is not None
    assert describe_topic(secured.user, other) is None


@pytest.mark.soak
def test_the_doctor_lists_the_missing_rights_and_no_others(secured: Secured, topic: str) -> None:
    withdraw(secured, topic)
    rights = [
        *(Right(one, "topic", topic, "") for one in ("Read", "Write", "DescribeConfigs")),
        Right("Read", "group", "lakehouse-", "", is_prefix=True),
        Right("Write", "transactional id", "lakehouse-", "", is_prefix=True),
    ]
    absent = Right("Describe", "topic", f"{topic}-absent", "")
    grant(secured.admin, "lakehouse", [*rights, absent])
    assert look_up(secured.user, [*rights, absent]) == Held((), (absent.name,))
    for gone in (rights[1:], rights[:1], rights[2:4]):
        for right in gone:
            revoke(secured.admin, "lakehouse", right)
        await_(lambda gone=gone: look_up(secured.user, rights) == Held(tuple(gone), ()), PATIENCE_S)  # type: ignore[misc]
        grant(secured.admin, "lakehouse", gone)
    for right in rights:
        revoke(secured.admin, "lakehouse", right)


def withdraw(secured: Secured, topic: str) -> None:
    """Revoke what other tests have granted."""
    for right in ALL:
        revoke(secured.admin, "lakehouse", replace(right, name=right.name.format(topic=topic)))
