"""`/api/v1/status`, `history`, `happenings`, `audit`, `alerts`: the pipeline's state, for people on call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from lakehouse.common.errors import LakehouseError
from lakehouse.common.events import Kind
from lakehouse.operations.alerts.evaluating import Alert, AlertStatus
from lakehouse.operations.alerts.rules import load_rules
from lakehouse.operations.alerts.standing import Standing, standing, threshold_of
from lakehouse.operations.telemetry import (
    Observation,
    Observer,
    StreamState,
    backlogs_of,
    summary_of,
    waiting_of,
    worst_first,
)
from lakehouse.operations.telemetry.history import SLOT, Interval, intervals
from lakehouse.serving import parameters
from lakehouse.serving.answers import Origin, answered, camel, in_camel_case, plain
from lakehouse.serving.parameters import Cursor, Limit, Page
from lakehouse.serving.reading.delta import Found
from lakehouse.serving.reading.events import Ops, audit_of, told
from lakehouse.serving.reading.lookups import Lookups, away
from lakehouse.serving.reading.sharing import Shared
from lakehouse.serving.strictness import refuse_unknown
from lakehouse.settings import Settings
from lakehouse.storage.tables.specs import EPOCH
from lakehouse.streams.definition import Stream

_TOLD = 100
_MOST_HOURS = 7 * 24
_MOST_POINTS = 300
_FIRST = datetime.min.replace(tzinfo=UTC)

Kinds = Annotated[list[Kind], Query(max_length=50, description="Only events of this kind; may be repeated.")]
StreamName = Annotated[str, Query(min_length=1, max_length=200)]
Streams = Annotated[list[StreamName], Query(max_length=50, description="Only this stream; may be repeated.")]
Since = Annotated[str | None, Query(max_length=64, description="Only events at this time or later.")]


def router(
    lookups: Lookups, ops: Ops, settings: Settings, streams: Sequence[Stream], observer: Observer
) -> APIRouter:
    """Return the routes for the pipeline's state. The caller must close the observer."""
    routes = APIRouter(prefix="/api/v1", tags=["watch"])
    names = [stream.name for stream in streams]
    observed = Shared[Observation](lambda: observer.observe(datetime.now(UTC)))
    alerting = Shared[_Standing](partial(_alerts, settings, names))

    @routes.get("/status")
    async def status() -> Response:
        """Return the state of each stream, worst first, and a `summary`. The data is at most one second old.

        `backlogs` contains a stream's backlog in each layer. `waiting` is the backlog with the longest wait,
        as in `lakehouse status`, or null if it is unknown whether any record is waiting.
        """
        return plain(in_camel_case(_seen(await observed.seen())))

    @routes.get("/history")
    async def history(
        *,
        hours: Annotated[int, Query(ge=1, le=_MOST_HOURS, description="Hours of history.")] = 24,
        points: Annotated[int, Query(ge=1, le=_MOST_POINTS, description="Maximum number of intervals.")] = 48,
        stream: Streams = [],  # noqa: B006 - the framework copies it
    ) -> Response:
        """Return the history of each stream, which live runs record in ops.history, as one list per measure.

        A list has a value for each interval of `stepS` seconds, from `start` up to the current interval. Null
        means unknown. `word` is the worst health in the interval, `waitedS` is the longest wait of a record,
        and `openLetters` is the number of open dead letters at the end of the interval. An interval is at
        least five minutes long.
        """
        refuse_unknown("stream", stream, names, "stream")
        start, step, number = _spans(datetime.now(UTC), hours, points)

        def read() -> list[Mapping[str, Any]]:
            past = ops.history(start - 2 * SLOT).value
            return [
                {"name": name, **_columns(intervals(past.get(name, []), start, step, number))}
                for name in stream or names
            ]

        series = await lookups.scan(read)
        return plain({"start": in_camel_case(start), "stepS": step.total_seconds(), "streams": series})

    @routes.get("/happenings")
    async def happenings(
        request: Request,
        *,
        limit: Limit = 100,
        cursor: Cursor = None,
        kind: Kinds = [],  # noqa: B006 - the framework copies it
        stream: Streams = [],  # noqa: B006 - the framework copies it
        since: Since = None,
    ) -> Response:
        """Return events such as starts, stops, failures and refusals, newest first."""
        refuse_unknown("stream", stream, names, "stream")
        moment = None if since is None else _moment(parameters.micros("since", since))
        after = None if cursor is None else parameters.from_cursor("happenings", cursor, [int, str])
        before = None if after is None else (_moment(after[0]), after[1])
        found = await lookups.scan(
            lambda: ops.happenings(limit=limit + 1, since=moment, before=before, kinds=kind, streams=stream)
        )
        shown, following = found.value[:limit], None
        if len(found.value) > limit:
            place = (shown[-1].at - EPOCH) // timedelta(microseconds=1), shown[-1].id
            following = parameters.cursor("happenings", place)
        body = {"happenings": [told(event) for event in shown], "next": following}
        return answered(request, _origin(found), body)

    @routes.get("/audit")
    async def audit(request: Request, page: Page) -> Response:
        """Return the checks from each stream's latest audit, or null if there was no audit.

        `at` and `actor` come from the newest audit. Each check also has its own time.
        """
        found = await lookups.scan(lambda: ops.audits(names))
        audit = audit_of(found.value)
        checks, following = page.of("checks", [] if audit is None else audit["checks"])
        body = {"audit": None if audit is None else {**audit, "checks": checks}, **following}
        return answered(request, _origin(found), body)

    @routes.get("/alerts")
    async def alerts(page: Page) -> Response:
        """Return firing alerts, oldest first, then recently resolved alerts, newest first.

        If no process evaluates the rules, `isEvaluated` is false and `reason` explains why. In that case, an
        empty list does not mean that all is well.
        """
        try:
            found = await alerting.seen()
            shown, following = page.of("alerts", found.alerts)
            why = found.standing.unwatched(datetime.now(UTC))
            at = None if found.standing.beat is None else in_camel_case(found.standing.beat.at)
            said = {"isEvaluated": why is None, "evaluatedAt": at, "reason": why}
            return plain({"alerts": shown, **said, **following})
        except LakehouseError as error:
            raise away(str(error)) from error

    return routes


@dataclass(frozen=True)
class _Standing:
    """The alert topic's state, and the alerts as the API returns them."""

    standing: Standing
    alerts: Sequence[Mapping[str, Any]]


def _spans(now: datetime, hours: int, points: int) -> tuple[datetime, timedelta, int]:
    """Return the start of the first interval, the length of an interval, and the number of intervals.

    The last interval contains `now`. Intervals begin at multiples of their length, so that their values stay
    the same from one request to the next.
    """
    slots = max(1, -(-hours * timedelta(hours=1) // (points * SLOT)))
    step = slots * SLOT
    number = -(-hours * timedelta(hours=1) // step)
    return EPOCH + ((now - EPOCH) // step + 1 - number) * step, step, number


def _columns(found: Sequence[Interval]) -> Mapping[str, Sequence[Any]]:
    names = [field.name for field in fields(Interval)]
    return {camel(name): [getattr(one, name) for one in found] for name in names}


def _seen(seen: Observation) -> Mapping[str, Any]:
    states = worst_first(seen.streams)
    return {**asdict(seen), "summary": summary_of(states), "streams": list(map(_state, states))}


def _state(state: StreamState) -> Mapping[str, Any]:
    longest = waiting_of(state)
    return {
        **asdict(state),
        "backlogs": [asdict(one) for one in backlogs_of(state)],
        "waiting": None if longest is None else asdict(longest),
    }


def _origin(found: Found[Any]) -> Origin:
    return Origin("ops", found.generation, found.version)


def _moment(micros: int) -> datetime:
    """Convert epoch microseconds to a UTC time. Times before the year 1 become the start of that year."""
    try:
        return EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return _FIRST


def _alerts(settings: Settings, streams: Sequence[str]) -> _Standing:
    rules = load_rules(settings.alerts, streams).rules
    thresholds = {rule.name: threshold_of(rule) for rule in rules}
    found = standing(settings.kafka.access, settings.alerts.topic, _TOLD)
    resolved = [one for one in found.told if one["status"] == AlertStatus.RESOLVED.value]
    messages = [*(_message(one, found) for one in found.firing), *resolved]
    return _Standing(found, [_alert(one, thresholds.get(one["rule"])) for one in messages])


def _message(alert: Alert, found: Standing) -> Mapping[str, Any]:
    """Return a firing alert as it was sent. `at` and `value` are null if that message is too old to read."""
    last = next((one for one in found.told if one["alert_id"] == alert.id), {})
    return {
        "alert_id": alert.id,
        "status": AlertStatus.FIRING.value,
        "rule": alert.rule,
        "severity": alert.severity,
        "labels": dict(alert.labels),
        "what": alert.what,
        "value": last.get("value"),
        "since": alert.since.isoformat(),
        "at": last.get("at"),
    }


def _alert(message: Mapping[str, Any], threshold: float | None) -> Mapping[str, Any]:
    same = {name: message[name] for name in ("rule", "severity", "labels", "what", "value")}
    times = {name: _iso(message[name]) for name in ("since", "at")}
    return {"id": message["alert_id"], "state": message["status"], **same, **times, "threshold": threshold}


def _iso(text: str | None) -> str | None:
    said: str | None = in_camel_case(None if text is None else datetime.fromisoformat(text))
    return said
