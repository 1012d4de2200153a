"""Alerts over a real broker: once to the topic, at least once to a webhook, whichever process is killed."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kafka import KafkaProducer

from lakehouse.dev.services.services import Endpoints
from lakehouse.operations.alerts.evaluating import MOST_FIRING, Alert, Key, Notification
from lakehouse.operations.alerts.facts import Facts, Window, step
from lakehouse.operations.alerts.publishing import Publisher, read_state
from lakehouse.operations.alerts.rules import MetricRule, Rules
from lakehouse.operations.alerts.standing import standing
from lakehouse.operations.alerts.watching import Watcher, readiness
from lakehouse.operations.alerts.webhook import Webhook
from lakehouse.operations.alerts.wording import as_message
from lakehouse.settings.alerts import state_topic
from lakehouse.storage.kafka.topics import create_topics
from lakehouse.storage.kafka.transactions import FencedError
from tests.operations.alerts.receiver import Receiver, receiving
from tests.support.pipeline import await_, read_topic
from tests.support.settings import MakeSettings

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
RULE = MetricRule(name="cpu", kind="metric", metric="cpu", over=90)


def look(
    state: dict[Key, Alert], minute: int, value: float, services: int = 1
) -> tuple[dict[Key, Alert], list[Notification]]:
    now = START + timedelta(minutes=minute)
    windows = [Window(f"{number}", now - timedelta(minutes=1), value) for number in range(services)]
    return step(Facts(windows={"cpu": windows}), [RULE], state, now)


def send_foreign(services: Endpoints, topic: str) -> None:
    """Write records that are not alerts to both topics; a compacted topic accepts none without a key."""
    producer = KafkaProducer(bootstrap_servers=services.kafka)
    for key, value in ((b"a", None), (b"cpu", b"{}"), (b'["cpu", []]', b"null"), (b"\xff", b"\xff")):
        for name in (topic, state_topic(topic)):
            producer.send(name, key=key, value=value, partition=0).get()
    producer.close()


@pytest.fixture
def topic() -> str:
    return f"alerts-{uuid.uuid4().hex}"


def messages(services: Endpoints, topic: str) -> list[dict[str, Any]]:
    return [json.loads(record.value) for record in read_topic(services.kafka, topic)]


def test_state_and_notifications_leave_together_and_the_next_process_goes_on(
    services: Endpoints, topic: str
) -> None:
    with closing(Publisher(services.access, topic)) as first:
        assert first.start() == {}
        fires, told = look({}, 0, 95)
        first.publish({}, fires, told)
        first.publish(fires, fires, [])

    with closing(Publisher(services.access, topic)) as second:
        state = second.start()
        assert state == fires
        still, nothing = look(state, 1, 96)
        assert (still, nothing) == (fires, [])
        over, resolved = look(still, 2, 5)
        second.publish(still, over, resolved)

    assert read_state(services.access, topic) == {}
    assert messages(services, topic) == [as_message(one) for one in (*told, *resolved)]
    (fired, ended) = read_topic(services.kafka, topic)
    assert dict(fired.headers) == {"event_id": f"{told[0].alert.id}-firing".encode()}
    assert fired.key == ended.key


def test_what_others_write_into_the_topics_is_named_and_stops_nothing(
    services: Endpoints, topic: str, receiver: Receiver
) -> None:
    said: list[str] = []
    with closing(Publisher(services.access, topic)) as publisher:
        publisher.start()
        hook = Webhook(services.access, topic, receiver.url, said.append)
        hook.start()
        fires, told = look({}, 0, 95)
        publisher.publish({}, fires, told)
        send_foreign(services, topic)
    with closing(Publisher(services.access, topic, said.append)) as publisher:
        assert publisher.start() == fires
        over, resolved = look(fires, 1, 5)
        publisher.publish(fires, over, resolved)
        await_(lambda: len(receiver.got) == 2)
        hook.close()

    assert hook.trouble is None
    assert [key for key, _ in receiver.got] == [one.id for one in (*told, *resolved)]
    assert sorted(line.split(" offset ")[0] for line in said) == [
        f"{topic}-state has foreign records, which were skipped:",
        "webhook at 127.0.0.1 skips",
    ]
    found = standing(services.access, topic, 10)
    assert (found.firing, [one["event_id"] for one in found.told]) == ((), [resolved[0].id, told[0].id])


def test_topics_that_somebody_has_made_to_pack_their_records_are_read(
    services: Endpoints, topic: str
) -> None:
    for name, codec in ((topic, "lz4"), (state_topic(topic), "zstd")):
        create_topics(services.access, {name: 1}, {"compression.type": codec})
    with closing(Publisher(services.access, topic)) as publisher:
        after, told = look(publisher.start(), 0, 95)
        publisher.publish({}, after, told)
    found = standing(services.access, topic, 10)
    assert (found.firing, len(found.told)) == (tuple(after.values()), 1)


def test_thousands_of_alerts_leave_at_once(services: Endpoints, topic: str) -> None:
    with closing(Publisher(services.access, topic)) as publisher:
        state = publisher.start()
        after, told = look(state, 0, 95, services=4_012)
        publisher.publish(state, after, told)
    assert read_state(services.access, topic) == after
    assert len(after) == 4_013
    assert messages(services, topic)[-1]["what"].startswith("and 3,912 more")
    assert len(messages(services, topic)) == MOST_FIRING + 1


def test_a_second_process_takes_over_and_the_first_is_told(services: Endpoints, topic: str) -> None:
    with (
        closing(Publisher(services.access, topic)) as first,
        closing(Publisher(services.access, topic)) as second,
    ):
        first.start()
        second.start()
        after, told = look({}, 0, 95)
        with pytest.raises(FencedError, match="taken over by another `lakehouse alert`"):
            first.publish({}, after, told)
        second.publish({}, after, told)

    assert messages(services, topic) == [as_message(one) for one in told]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


@pytest.mark.parametrize("answer", ["302, a redirect, which is not followed", "503"])
def test_a_webhook_that_is_away_is_told_of_and_gets_everything_in_order(
    services: Endpoints, topic: str, receiver: Receiver, make_settings: MakeSettings, answer: str
) -> None:
    said: list[str] = []
    watched = Watcher(make_settings(), [], Rules(), said.append)
    with closing(Publisher(services.access, topic)) as publisher:
        publisher.start()
        hook = Webhook(services.access, topic, receiver.url, said.append, first_pause_s=0.05)
        hook.start()
        receiver.status = int(answer[:3])
        fires, told = look({}, 0, 95)
        publisher.publish({}, fires, told)
        await_(lambda: len(said) == 1)
        assert readiness(watched, [hook]).reasons == (said[0],)
        over, resolved = look(fires, 1, 5)
        publisher.publish(fires, over, resolved)
        receiver.status = 200
        await_(lambda: len(receiver.got) == 2)
        assert readiness(watched, [hook]).is_ready
        hook.close()

    both = [*told, *resolved]
    assert receiver.got == [(one.id, as_message(one)) for one in both]
    assert said == [
        f"webhook at 127.0.0.1 is unavailable; its notifications are kept: it answered {answer}",
        "webhook at 127.0.0.1 answers again",
    ]


def test_a_webhook_gets_what_was_told_while_nobody_ran_but_nothing_from_before_it_was_named(
    services: Endpoints, topic: str, receiver: Receiver
) -> None:
    with closing(Publisher(services.access, topic)) as publisher:
        publisher.start()
        fires, before = look({}, 0, 95)
        publisher.publish({}, fires, before)
        first = Webhook(services.access, topic, receiver.url, print)
        first.start()
        first.close()
        over, resolved = look(fires, 1, 5)
        publisher.publish(fires, over, resolved)
        second = Webhook(services.access, topic, receiver.url, print)
        second.start()
        await_(lambda: len(receiver.got) == 1)
        second.close()

    assert receiver.got == [(resolved[0].id, as_message(resolved[0]))]
