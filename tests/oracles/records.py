"""The outcomes of records: the function in docs/decisions/what-a-record-becomes.md, in plain Python.

    found = outcomes(records, decisions, settings, taken)
    found["transactions", 0, 17]          row, or letter with its status and rules

This is slow on purpose: records are processed one by one, in order, and for each record, everything known
about its id is searched again. `records` are all records that have ever landed, including those that
retention has since deleted from bronze, which changes no outcome. Times are microseconds since 1970, UTC.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Literal

from tests.oracles.alone import NO_TIMESTAMP, Alone, Headers, Lateness, Place, Record, Settings, looked_at
from tests.oracles.judging import SECOND_US

_CLOSED = {"duplicate", "superseded", "deletion"}
__all__ = ["Decision", "Headers", "Lateness", "Outcome", "Place", "Record", "Settings", "Taken", "outcomes"]


@dataclass(frozen=True)
class Decision:
    """A person's decision about the record at `place`, when silver had processed everything until `after_us`.

    `at_us` is later than that of any earlier decision, and is the same for all decisions in one command. A
    replay may be recorded for any letter that was open; if its record does not pass, the replay changes
    nothing. `allows_late` is a replay's --allow-late. For a resolve, `by` is the record that was sent again.
    A skip is decided before silver has judged the record. `made_with` are `unique_by` and `sequence_by` at
    that time; None: the same as now, as are all settings. Otherwise, the letter was open then, whatever it
    would be by the current settings, and `has_admitted` says whether a replay admitted the record.

    A rebuild with --allow-late is recorded for each letter that it may find to be in time; the record then
    counts as in time when it landed. If the id settings change, such decisions end, and must not be passed
    in.
    """

    what: Literal["replay", "discard", "resolve", "skip", "in time"]
    place: Place
    after_us: int
    at_us: int
    by: Place | None = None
    allows_late: bool = False
    made_with: tuple[str | None, str | None] | None = None
    has_admitted: bool = False


@dataclass(frozen=True)
class Taken:
    """The deletions of one retention run, when silver had processed everything until `after_us`.

    No record that is processed later is accepted if its event time is before `before_us`, which is None if
    nothing was deleted from silver or gold. Rows were deleted from silver if they are before `silver_us` and
    their records are up to `gone`, the last offset deleted from bronze for each (topic, partition). `ids` are
    the first 16 bytes of the SHA-256 of each id whose letters were deleted. `sequence_by` is the setting at
    that time; None: the same as now. `at_us` is the run's place among decisions.
    """

    after_us: int
    before_us: int | None = None
    silver_us: int | None = None
    gone: Mapping[tuple[str, int], int] = field(default_factory=dict)
    ids: frozenset[bytes] = frozenset()
    sequence_by: str | None = None
    at_us: int = 0


@dataclass(frozen=True)
class Outcome:
    """The outcome of a record: a silver row or a letter.

    status    the letter's status; "replayed" for a row that a replay has admitted, None for any other row
    rules     the rules that refuse the record, or refused it before it was replayed, discarded or resent
    row       the columns of the contract, with `event_time` and `own_time`; None for a letter
    by        for a resent letter, the record that was sent again
    is_taken  whether retention has deleted the row from silver
    is_asked  whether a later record's outcome depends on the letter, so that retention must keep it
    """

    kind: Literal["row", "letter"]
    status: str | None = None
    rules: frozenset[str] = frozenset()
    row: Mapping[str, Any] | None = None
    by: Place | None = None
    is_taken: bool = False
    is_asked: bool = False


def outcomes(
    records: Iterable[Record], decisions: Iterable[Decision], settings: Settings, taken: Iterable[Taken] = ()
) -> dict[Place, Outcome]:
    """Return each record's current outcome."""
    decided = list(decisions)
    skipped = {one.place for one in decided if one.what == "skip"}
    commands: dict[tuple[int, int], list[Decision]] = defaultdict(list)
    for one in decided:
        if one.what != "skip":
            commands[one.after_us, one.at_us].append(one)
    events: list[Record | Taken | list[Decision]] = [*records, *taken, *commands.values()]
    beforehand: dict[Place, Decision] = {}
    while True:  # until no more decisions are found that change what happened before them
        source = _Source(settings, skipped, beforehand)
        for event in sorted(events, key=_order):
            if isinstance(event, Record):
                source.land(event)
            elif isinstance(event, Taken):
                source.retain(event)
            else:
                source.decide(event)
        if not source.found:
            return {place: source.outcome_of(one) for place, one in source.all.items()}
        beforehand |= source.found


def _order(event: Record | Taken | list[Decision]) -> tuple[Any, ...]:
    """Return the sort key: decisions follow everything that silver had processed, in their own order."""
    if isinstance(event, Record):
        return event.ingested_at_us, 0, event.place
    first = event if isinstance(event, Taken) else event[0]
    return first.after_us, 1, first.at_us


@dataclass
class _Known:
    """A landed record, and its outcome so far."""

    record: Record
    alone: Alone
    outcome: Outcome = Outcome("letter")

    @property
    def place(self) -> Place:
        return self.record.place

    @property
    def sequence(self) -> int:
        if self.alone.sequence is None:
            raise ValueError(f"{self.place} counts without a sequence")
        return self.alone.sequence

    @property
    def content(self) -> Mapping[str, Any]:
        return {name: value for name, value in self.alone.row.items() if name != "own_time"}

    @property
    def sent_us(self) -> int:
        stamp_ms = self.record.kafka_timestamp_ms
        return self.record.ingested_at_us if stamp_ms == NO_TIMESTAMP else stamp_ms * 1000

    @property
    def is_answerable(self) -> bool:
        """Whether a later record can answer the letter; deletions, conflicts and the like await a person."""
        stays = self.alone.is_deletion or self.outcome.rules & {"conflicting_id", "retained", "skipped"}
        return self.outcome.status == "open" and not stays

    def accept(self) -> None:
        """Make the record a row; if it had a letter, the letter is replayed."""
        status = None if self.outcome.status is None else "replayed"
        self.outcome = Outcome("row", status, self.outcome.rules, self.alone.row)

    def refuse(self, *rules: str) -> None:
        self.outcome = Outcome("letter", "open", frozenset(rules))

    def close(self, status: str) -> None:
        """Close the record's letter, because it repeats, is replaced by, or deletes another record."""
        self.outcome = Outcome("letter", status, frozenset({status}))

    def answer(self, status: str, by: Place | None) -> None:
        self.outcome = replace(self.outcome, status=status, by=by)


@dataclass
class _Id:
    """The records with an id (with only `unique_by`, an id and event time), in record order.

    Retention has deleted letters that decide about sequences up to `taken`, and about records sent up to
    `taken_us`; None if it has deleted none.
    """

    counting: list[_Known] = field(default_factory=list)
    deletions: list[_Known] = field(default_factory=list)
    row: _Known | None = None
    is_frozen: bool = False
    taken: int | None = None
    taken_us: int | None = None

    def is_retained(self, alone: Alone) -> bool:
        """Return whether a later record or deletion is refused: all are, or those up to the deleted ones."""
        return self.is_frozen or _is_up_to(alone.sequence, self.taken)

    def take(self) -> None:
        """Apply retention to the letters of an id without a row, whose counting records are all deleted."""
        taking = [one for one in self.deletions if _takes(one, self.counting)]
        bars = [_bar_of(one, self.counting) for one in taking]
        untold = [one.sent_us for one in taking if one.alone.sequence is None]
        self.taken = max((bar for bar in [self.taken, *bars] if bar is not None), default=None)
        self.taken_us = max((one for one in [self.taken_us, *untold] if one is not None), default=None)

    def is_asked(self, known: _Known) -> bool:
        """Return whether later records are compared with a closed letter for this id."""
        is_told = self.is_retained(known.alone)
        if known.alone.is_deletion and known.alone.sequence is None:
            is_told |= _is_up_to(known.sent_us, self.taken_us)
        return not is_told


class _Source:
    """The records of a source so far, and their outcomes."""

    def __init__(self, settings: Settings, skipped: set[Place], beforehand: Mapping[Place, Decision]) -> None:
        self.all: dict[Place, _Known] = {}
        self.found: dict[Place, Decision] = {}
        self._beforehand = beforehand
        self._settings = settings
        self._skipped = skipped
        self._ids: dict[object, _Id] = defaultdict(_Id)
        self._own_times: list[tuple[int, int]] = []  # landing times and own times of sound records
        self._closed_us = -(2**63)

    def land(self, record: Record) -> None:
        """Process the next bronze record."""
        known = _Known(record, looked_at(record, self._settings))
        self.all[record.place] = known
        alone = known.alone
        if record.place in self._skipped:
            known.refuse("skipped")
            return
        is_late = _is_before(alone.event_time_us, self._watermark_us(record))
        is_late &= not self._is_in_time(record.place)
        if alone.rules:
            is_late |= _is_before(alone.event_time_us, self._closed_us)
            known.refuse(*alone.rules, *(["late"] if is_late else []))
            return
        if alone.row.get("own_time") is not None:
            self._own_times.append((record.ingested_at_us, alone.row["own_time"]))
        if self._is_decided(record.place):  # it does not count until the decision, which may admit it
            known.refuse()
            return
        self._settle(known, is_late=is_late)

    def decide(self, command: Iterable[Decision]) -> None:
        """Process a command: one person's simultaneous decisions about open letters."""
        admitted = []
        for decision in command:
            known = self.all[decision.place]
            if decision.what == "in time":
                self._find_in_time(known, decision)
                continue
            has_effect = decision.what != "replay" or decision.has_admitted
            if has_effect and known.outcome.status != "open":
                self._find_decided(decision)
            if self._is_by_other_ids(decision) and (not has_effect or self._has_failed(decision)):
                continue
            if known.outcome.status == "open" and decision.what == "replay":
                admitted += self._replayed(known, decision)
            elif known.outcome.status == "open":
                self._ids[known.alone.id].deletions = [
                    one for one in self._ids[known.alone.id].deletions if one is not known
                ]
                known.answer("discarded" if decision.what == "discard" else "resent", decision.by)
                if self._is_by_other_ids(decision):  # the letter records the rules by which it was open then
                    known.outcome = replace(known.outcome, rules=frozenset())
        for known in admitted:
            known.answer("replayed", None)
        for known in sorted(admitted, key=lambda one: (one.record.ingested_at_us, one.place)):
            self._settle(known, is_late=False)

    def _find_decided(self, decision: Decision) -> None:
        """Record a decision about a letter that was open then, although by present knowledge it was not.

        The settings may have changed since: the record with the same id may be unsound by the current ones.
        """
        may_differ = decision.made_with is not None or any(map(self._is_in_time, self._beforehand))
        if may_differ and not self._is_decided(decision.place):
            self.found[decision.place] = decision

    def _has_failed(self, decision: Decision) -> bool:
        """Return whether a replay admitted no row, because a later decision found the letter open."""
        later = self._beforehand.get(decision.place)
        return decision.what == "replay" and later is not None and later.what in {"discard", "resolve"}

    def _find_in_time(self, known: _Known, decision: Decision) -> None:
        """Record that an open letter's record was in time, unless retention has deleted its period."""
        alone = known.alone
        is_closed = _is_before(alone.event_time_us, self._closed_us)
        if self._settings.sequence_by is not None and alone.id is not None:
            is_closed |= self._ids[alone.id].is_retained(alone)
        if known.outcome.status != "open" or is_closed or known.place in self._beforehand:
            return
        if alone.rules:  # only the letter records that it was in time, until another attempt
            known.refuse(*alone.rules)
        else:
            self.found[known.place] = decision

    def retain(self, taken: Taken) -> None:
        """Freeze the ids whose rows retention has deleted, and record what it deleted of the others."""
        self._closed_us = max(self._closed_us, taken.before_us or self._closed_us)
        for of_id in self._ids.values():
            row_us = None if of_id.row is None else of_id.row.alone.event_time_us
            of_id.is_frozen |= _is_before(row_us, self._closed_us)
        for id_ in [one for one in self._ids if self._ids[one].row is None]:
            if sha256(str(id_).encode()).digest()[:16] in taken.ids:
                self._ids[id_].take()
                are_others = taken.sequence_by not in {None, self._settings.sequence_by}
                self._ids[id_].is_frozen |= are_others or self._ids[id_].taken is None
        for one in self.all.values():
            topic, partition, offset = one.place
            is_gone = offset <= taken.gone.get((topic, partition), -1)
            if one.outcome.kind == "row" and is_gone and _is_before(one.alone.event_time_us, taken.silver_us):
                one.outcome = replace(one.outcome, is_taken=True)

    def outcome_of(self, known: _Known) -> Outcome:
        """Return a record's final outcome."""
        counts = self._settings.sequence_by is not None and known.outcome.status in _CLOSED
        return replace(known.outcome, is_asked=counts and self._ids[known.alone.id].is_asked(known))

    def _watermark_us(self, record: Record) -> int | None:
        """Return the front at the landing minus the lateness for the record's offset."""
        return _minus(self._front_us(record), self._allowed_s(record))

    def _front_us(self, record: Record) -> int | None:
        """Return the front at the landing, from sound records in earlier commits."""
        return max((own for landed, own in self._own_times if landed < record.ingested_at_us), default=None)

    def _allowed_s(self, record: Record) -> int | None:
        topic, partition, offset = record.place
        holding = [one for one in self._settings.lateness if offset >= one.begins.get((topic, partition), 0)]
        return holding[-1].seconds

    def _is_in_time(self, place: Place) -> bool:
        return place in self._beforehand and self._beforehand[place].what == "in time"

    def _is_decided(self, place: Place) -> bool:
        return place in self._beforehand and not self._is_in_time(place)

    def _is_by_other_ids(self, decision: Decision) -> bool:
        now = (self._settings.unique_by, self._settings.sequence_by)
        return decision.made_with is not None and decision.made_with != now

    def _replayed(self, known: _Known, decision: Decision) -> list[_Known]:
        """Return the record if the replay admits it; otherwise, update in its letter whether it is late."""
        if self._passes(known, decision):
            return [known]
        if known.alone.rules and not decision.allows_late and self._is_behind(known):
            known.refuse(*known.alone.rules, "late")
        return []

    def _passes(self, known: _Known, decision: Decision) -> bool:
        """Return whether a replay finds the record sound by itself, under the current settings."""
        alone = known.alone
        if self._is_by_other_ids(decision):
            return decision.has_admitted and not alone.rules and not alone.is_deletion
        if alone.rules or alone.is_deletion or _is_before(alone.event_time_us, self._closed_us):
            return False
        return decision.allows_late or not self._is_behind(known)

    def _is_behind(self, known: _Known) -> bool:
        """Return whether a record is late by both the lateness at its landing and the current lateness."""
        allowed = [self._allowed_s(known.record), self._settings.lateness[-1].seconds]
        most_s = None if None in allowed else max(one for one in allowed if one is not None)
        return _is_before(known.alone.event_time_us, _minus(self._front_us(known.record), most_s))

    def _settle(self, known: _Known, *, is_late: bool) -> None:
        """Decide the outcome of a sound record or a deletion among the others with its id."""
        settings, alone = self._settings, known.alone
        has_order = settings.sequence_by is not None and alone.id is not None
        if has_order and self._ids[alone.id].is_retained(alone):
            known.refuse("retained")
        elif _is_before(alone.event_time_us, self._closed_us):
            known.refuse("late")
        elif settings.unique_by is None or alone.id is None:
            known.refuse("late") if is_late else known.accept()
        elif settings.sequence_by is None:
            self._repeated(known, self._ids[alone.id, alone.event_time_us], is_late=is_late)
        else:
            self._corrected(known, self._ids[alone.id], is_late=is_late)

    def _repeated(self, known: _Known, of_id: _Id, *, is_late: bool) -> None:
        """Settle a record with only `unique_by`: the first sound record is the row."""
        if of_id.row is not None:
            _repeat(known, of_id.row)
        elif is_late:
            known.refuse("late")
        else:
            of_id.row = known
            known.accept()
            self._answer_letters(known)

    def _corrected(self, known: _Known, of_id: _Id, *, is_late: bool) -> None:
        """Settle a record with `sequence_by`: the one with the greatest sequence above the bar is the row."""
        is_first = not of_id.counting
        if is_late and is_first and not known.alone.is_deletion:
            known.refuse("late")
            return
        before, repeats = of_id.row, False
        if known.alone.is_deletion:
            of_id.deletions.append(known)
        else:
            repeats = before is not None and known.sequence == before.sequence
            if before is not None and repeats:
                _repeat(known, before)
                if known.outcome.status == "open":
                    return  # it conflicts, so it does not count
            of_id.counting.append(known)
        of_id.row = _row_of(of_id)
        if before is not None and before is not of_id.row:
            before.close("superseded")
        if of_id.row is known:
            known.accept()
            self._answer_letters(known)
        elif not known.alone.is_deletion and not repeats:
            known.close("superseded")
        for deletion in of_id.deletions:
            if _takes(deletion, of_id.counting):
                deletion.close("deletion")
            else:
                deletion.refuse("nothing_to_delete")

    def _answer_letters(self, row: _Known) -> None:
        """Close the open letters that a record answers by becoming a row."""
        for letter in self.all.values():
            is_decided = self._is_decided(letter.place)
            if letter.alone.id != row.alone.id or not letter.is_answerable or is_decided:
                continue
            if self._settings.sequence_by is None:
                answers = letter.alone.event_time_us == row.alone.event_time_us
            else:
                answers = letter.alone.sequence is not None and letter.sequence <= row.sequence
            if answers:
                letter.answer("resent", row.place)


def _repeat(known: _Known, row: _Known) -> None:
    if known.content == row.content:
        known.close("duplicate")
    else:
        known.refuse("conflicting_id")


def _row_of(of_id: _Id) -> _Known | None:
    """Return the record with the greatest sequence, if that is above the bar (the first one of several)."""
    bars = [bar for one in of_id.deletions if (bar := _bar_of(one, of_id.counting)) is not None]
    above = [one for one in of_id.counting if not bars or one.sequence > max(bars)]
    greatest = max((one.sequence for one in above), default=None)
    return next((one for one in above if one.sequence == greatest), None)


def _bar_of(deletion: _Known, counting: Sequence[_Known]) -> int | None:
    """Return the deletion's own sequence, or the greatest sequence of the records sent no later than it."""
    if deletion.alone.sequence is not None:
        return deletion.sequence
    return max((one.sequence for one in counting if one.sent_us <= deletion.sent_us), default=None)


def _takes(deletion: _Known, counting: Iterable[_Known]) -> bool:
    """Return whether a counting record has a sequence up to the deletion's own."""
    listed = list(counting)
    bar = _bar_of(deletion, listed)
    return bar is not None and any(one.sequence <= bar for one in listed)


def _is_up_to(number: int | None, last: int | None) -> bool:
    return number is not None and last is not None and number <= last


def _is_before(moment_us: int | None, limit_us: int | None) -> bool:
    return moment_us is not None and limit_us is not None and moment_us < limit_us


def _minus(front_us: int | None, seconds: int | None) -> int | None:
    return None if front_us is None or seconds is None else front_us - seconds * SECOND_US
