"""Looks at the pipeline again and again and tells what has begun and what is over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from lakehouse.alerts.evaluating import Alert, Key, Notification, Status
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


class Watch:
    """Judges the rules; where the broker is away it goes on from what the broker has, once it is back.

    `warn` is told each new trouble once.
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
        """What was found at the last look."""

    @property
    def firing(self) -> list[Alert]:
        """What fires now, the longest first."""
        alerts = (self._state or {}).values()
        return sorted((one for one in alerts if one.fires), key=lambda one: (one.since, one.key))

    def start(self) -> None:
        """Take over from whoever watched before. Raises ServiceError where the broker does not answer."""
        self._state = self._publisher.start()

    def look(self, now: datetime) -> list[Notification]:
        """Judge every rule, and return what has been told. Raises ServiceError as `start` does.

        After an error the state is read anew, because nobody knows whether its transaction is committed.
        """
        try:
            told = self._look(now)
        except ServiceError as error:
            self._away = str(error)
            raise
        self._away = None
        return told

    def observation(self) -> Observation:
        """Return how the streams are, as seen less than a second ago."""
        return self._observer.latest()

    def readiness(self) -> Readiness:
        """Return whether alerts are judged and told, and what keeps them from it."""
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
        """Let go of the broker."""
        self._publisher.close()
        self._observer.close()


def watch(
    watched: Watch,
    now: Callable[[], datetime],
    pause: Callable[[], bool],
    on_told: Callable[[Notification], None],
    warn: Callable[[str], None],
) -> None:
    """Look until `pause` says that it is to end; a broker that is away is told of once and asked again.

    Raises FencedError where another process has taken over.
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
                warn(f"alerts cannot be told, and are judged again once they can: {error}")
            is_away = True
        if pause():
            return


def _note(one: Notification) -> None:
    note(
        Kind.ALERT,
        f"{one.alert.rule} {'fires' if one.status is Status.FIRING else 'has resolved'}: {one.alert.what}",
        stream=dict(one.alert.labels).get("stream"),
        details={"event_id": one.id, "status": one.status.value, "severity": one.alert.severity},
    )
