"""Evaluate the rules repeatedly, and send notifications for alerts that fire or resolve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from lakehouse.common.events import Kind, note
from lakehouse.operations.alerts.evaluating import Alert, AlertStatus, Key, Notification
from lakehouse.operations.alerts.facts import Facts, step
from lakehouse.operations.alerts.gathering import gather
from lakehouse.operations.alerts.publishing import Beat, Publisher
from lakehouse.operations.alerts.rules import Rules
from lakehouse.operations.alerts.webhook import Webhook
from lakehouse.operations.telemetry import Observation, Observer
from lakehouse.operations.telemetry.server import Readiness
from lakehouse.settings import Settings
from lakehouse.storage.kafka.transactions import FencedError
from lakehouse.storage.spark.query_errors import what_of
from lakehouse.streams.definition import Stream


class Watcher:
    """An evaluator of alerting rules. After a broker outage, it continues from the state in the state topic.

    `warn` is called with a message, once for each new problem.
    """

    def __init__(
        self,
        settings: Settings,
        streams: Sequence[Stream],
        rules: Rules,
        warn: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._streams = streams
        self._rules = rules
        self._warn = warn
        self._troubles: set[str] = set()
        self._observer = Observer(streams, settings)
        self._told = set[str]()
        self._publisher = Publisher(settings.kafka.access, settings.alerts.topic, self._warn_once)
        self._state: dict[Key, Alert] | None = None
        self._away: str | None = None
        self.every_s = 0.0
        """The evaluation interval in seconds, as published in the beat."""
        self.facts: Facts | None = None
        """The facts of the latest evaluation."""

    @property
    def firing(self) -> list[Alert]:
        """The firing alerts, oldest first."""
        alerts = (self._state or {}).values()
        return sorted((one for one in alerts if one.fires), key=lambda one: (one.since, one.key))

    def start(self) -> None:
        """Take over from any earlier watcher. Raises ServiceError if the broker does not answer."""
        self._state = self._publisher.start()

    def look(self, now: datetime) -> list[Notification]:
        """Evaluate all rules, and return the notifications that were sent.

        Raises ServiceError if the broker does not answer. After an error, the next call rereads the state,
        because the transaction could have been committed.
        """
        try:
            told = self._look(now)
        except Exception as error:
            self._away = what_of(error)
            raise
        self._away = None
        return told

    def observation(self) -> Observation:
        """Return an observation of the streams that is at most a second old."""
        return self._observer.latest()

    @property
    def reasons(self) -> list[str]:
        """The problems that currently prevent alerts from being evaluated or sent."""
        return [*([] if self._away is None else [self._away]), *sorted(self._troubles)]

    def _look(self, now: datetime) -> list[Notification]:
        if self.facts is None:
            self._observer.read_events()
        observation = self._observer.observe(now)
        reasons = [observation.events_reason, *(one.lake_reason for one in observation.streams)]
        troubles = {reason for reason in reasons if reason is not None}
        self.facts = facts = gather(
            observation,
            self._settings.lake,
            self._streams,
            self._rules.rules,
            warn=troubles.add,
        )
        if self._state is None:
            self.start()
        before = self._state or {}
        after, told = step(facts, self._rules.rules, before, now, troubles.add)
        for trouble in sorted(troubles - self._troubles):
            self._warn(trouble)
        self._troubles = troubles
        try:
            self._publisher.publish(before, after, told, Beat(now, self.every_s))
        except Exception:
            self._state = None
            raise
        self._state = after
        for one in told:
            _note(one)
        return told

    def close(self) -> None:
        """Disconnect from the broker."""
        self._publisher.close()
        self._observer.close()

    def _warn_once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._warn(text)


def readiness(watched: Watcher, webhooks: Sequence[Webhook]) -> Readiness:
    """Return whether alerts are being evaluated, sent and delivered, and the problems if they are not."""
    reasons = (*watched.reasons, *(one.trouble for one in webhooks if one.trouble is not None))
    return Readiness(not reasons, reasons)


def watch(
    watched: Watcher,
    now: Callable[[], datetime],
    pause: Callable[[], bool],
    on_told: Callable[[Notification], None],
    warn: Callable[[str], None],
) -> None:
    """Evaluate rules until `pause` returns true. A lasting failure, such as an outage, is reported only once.

    Raises FencedError if another process has taken over.
    """
    is_away = False
    while True:
        try:
            for one in watched.look(now()):
                on_told(one)
            if is_away:
                warn("alerts are being sent again")
            is_away = False
        except FencedError:
            raise
        except Exception as error:  # noqa: BLE001 - the next evaluation may succeed
            if not is_away:
                warn(f"alerts cannot be evaluated or sent; retrying: {what_of(error)}")
            is_away = True
        if pause():
            return


def _note(one: Notification) -> None:
    what = "fires" if one.status is AlertStatus.FIRING else "has resolved"
    note(
        Kind.ALERT,
        f"{one.alert.rule} {what}: {one.alert.what}",
        stream=dict(one.alert.labels).get("stream"),
        details={"event_id": one.id, "status": one.status.value, "severity": one.alert.severity},
    )
