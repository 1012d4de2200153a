"""Looks at the pipeline repeatedly, and reports what has begun and what has ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from lakehouse.alerts.evaluating import Alert, AlertStatus, Key, Notification
from lakehouse.alerts.facts import Facts, step
from lakehouse.alerts.gathering import Audits, gather
from lakehouse.alerts.publishing import Publisher
from lakehouse.alerts.rules import Rules
from lakehouse.errors import ServiceError
from lakehouse.events import Kind, note
from lakehouse.settings import Settings
from lakehouse.sinks.transactional import FencedError
from lakehouse.stream import Stream
from lakehouse.telemetry import Observation, Observer
from lakehouse.telemetry.server import Readiness


class Watcher:
    """Evaluates the rules. If the broker is away, it continues from the broker's state once it is back.

    `warn` gets each new problem once.
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
        self._audits = Audits()
        self._publisher = Publisher(settings.kafka_bootstrap_servers, settings.alert_topic)
        self._state: dict[Key, Alert] | None = None
        self._away: str | None = None
        self.facts: Facts | None = None
        """The findings of the last look."""

    @property
    def firing(self) -> list[Alert]:
        """What fires now, the longest first."""
        alerts = (self._state or {}).values()
        return sorted((one for one in alerts if one.fires), key=lambda one: (one.since, one.key))

    def start(self) -> None:
        """Take over from any earlier watcher. Raises ServiceError if the broker does not answer."""
        self._state = self._publisher.start()

    def look(self, now: datetime) -> list[Notification]:
        """Evaluate every rule, and return the notifications sent. Raises ServiceError as `start` does.

        After an error the state is read again, because it is unknown whether its transaction was committed.
        """
        try:
            told = self._look(now)
        except ServiceError as error:
            self._away = str(error)
            raise
        self._away = None
        return told

    def observation(self) -> Observation:
        """Return the state of the streams, as seen less than a second ago."""
        return self._observer.latest()

    def readiness(self) -> Readiness:
        """Return whether alerts are evaluated and sent, and what prevents it."""
        reasons = [*([] if self._away is None else [self._away]), *sorted(self._troubles)]
        return Readiness(not reasons, tuple(reasons))

    def _look(self, now: datetime) -> list[Notification]:
        observation = self._observer.observe(now)
        troubles = set[str]()
        self.facts = facts = gather(
            observation,
            self._settings.lake,
            self._streams,
            self._rules.rules,
            audits=self._audits,
            warn=troubles.add,
        )
        for trouble in sorted(troubles - self._troubles):
            self._warn(trouble)
        self._troubles = troubles
        if self._state is None:
            self.start()
        before = self._state or {}
        after, told = step(facts, self._rules.rules, before, now)
        try:
            self._publisher.publish(before, after, told)
        except ServiceError:
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


def watch(
    watched: Watcher,
    now: Callable[[], datetime],
    pause: Callable[[], bool],
    on_told: Callable[[Notification], None],
    warn: Callable[[str], None],
) -> None:
    """Look until `pause` says to stop; a broker that is away is reported once and asked again.

    Raises FencedError if another process has taken over.
    """
    is_away = False
    while True:
        try:
            for one in watched.look(now()):
                on_told(one)
            if is_away:
                warn("alerts are told again")
            is_away = False
        except FencedError:
            raise
        except ServiceError as error:
            if not is_away:
                warn(f"alerts cannot be sent; they are evaluated again once they can: {error}")
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
