"""docs/decisions/what-a-record-becomes.md, sentence by sentence: outcomes that were worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracles.judging import CONTRACTS, ENVELOPED, Contract, Field, Kind
from tests.oracles.records import Decision, Lateness, Outcome, Place, Record, Settings, Taken, outcomes

T0_S = 1_767_268_800  # 2026-01-01T12:00:00Z
HOUR = 3600
WITH_IDS = Contract(
    (
        *CONTRACTS["transactions"].fields,
        Field("id", "id", Kind.ID),
        Field("version", "version", Kind.LONG),
    )
)
PLAIN = Settings(CONTRACTS["transactions"], lateness=(Lateness(HOUR),), future_tolerance_s=9000)
UNIQUE = replace(PLAIN, contract=WITH_IDS, unique_by="id")
CORRECTED = replace(UNIQUE, sequence_by="version")
CHANGES = replace(
    CORRECTED,
    contract=replace(
        ENVELOPED,
        fields=(
            *ENVELOPED.fields,
            Field("after.id", "after_id", Kind.ID),
            Field("source.lsn", "source_lsn", Kind.LONG),
        ),
    ),
    unique_by="after.id",
    sequence_by="source.lsn",
    deletion_key="json:id",
    deleted_if="op=d",
)


def us(seconds: float) -> int:
    return round((T0_S + seconds) * 1_000_000)


def at(offset: int) -> Place:
    return "t", 0, offset


def sent(
    offset: int,
    *,
    landed: float,
    id_: object = "a",
    version: object = 1,
    amount: object = 10,
    time: float | None = 0,
    kafka: float = 0,
    partition: int = 0,
) -> Record:
    """Return a payment at `time`, sent at `kafka` and landed at `landed`, all in seconds from noon."""
    said: dict[str, Any] = {"userId": "u", "amount": amount, "id": id_, "version": version}
    said |= {} if time is None else {"timestamp": us(time) // 1000}
    kafka_ms = us(kafka) // 1000
    return Record(("t", partition, offset), us(landed), json.dumps(said).encode(), b"u", (), kafka_ms)


def deletion(offset: int, *, landed: float, key: bytes | None = b"a", kafka: float | None = 0) -> Record:
    return Record(at(offset), us(landed), None, key, (), -1 if kafka is None else us(kafka) // 1000)


def decided(what: Any, offset: int, *, after: float, number: int = 1, **more: Any) -> Decision:
    return Decision(what, at(offset), us(after), number, **more)


def become(
    records: Sequence[Record],
    settings: Settings,
    decisions: Sequence[Decision] = (),
    taken: Sequence[Taken] = (),
) -> list[str]:
    """Return the outcomes of records in offset order: row or a status, with rules if it is open."""
    found = outcomes(records, decisions, settings, taken)
    return [said(found[place]) for place in sorted(found, key=lambda place: place[::-1])]


def said(one: Outcome) -> str:
    if one.kind == "row":
        words = ["row", *(["replayed"] if one.status else []), *(["taken"] if one.is_taken else [])]
        return " ".join(words)
    rules = " ".join(sorted(one.rules)) if one.status == "open" else ""
    return f"{one.status} {rules}".strip()


# Order.


def test_records_are_in_the_order_of_landing_then_topic_partition_and_offset() -> None:
    records = [
        sent(0, landed=2, amount=1),
        sent(1, landed=1, amount=2),
        sent(2, landed=1, amount=3),
        sent(3, landed=1, amount=4, partition=1),
    ]

    assert become(records, UNIQUE) == [
        "open conflicting_id",
        "row",
        "open conflicting_id",
        "open conflicting_id",
    ]


def test_a_record_that_was_admitted_stands_after_everything_that_silver_had_processed() -> None:
    records = [
        sent(0, landed=1, id_="z", time=8000),
        sent(1, landed=2, version=2),  # late
        sent(2, landed=3, version=1, time=7000),
        sent(3, landed=5, version=2, amount=11, time=7000),
    ]
    replays = [decided("replay", 1, after=4, allows_late=True)]

    assert become(records, CORRECTED) == ["row", "resent", "superseded", "row"]
    assert become(records, CORRECTED, replays) == [
        "row",
        "row replayed",
        "superseded",
        "open conflicting_id",
    ]


def test_letters_replayed_one_by_one_stand_in_the_order_of_the_replays() -> None:
    records = [sent(0, landed=1, id_="z", time=8000), sent(1, landed=2), sent(2, landed=3)]
    second = decided("replay", 2, after=4, number=1, allows_late=True)
    first = decided("replay", 1, after=4, number=2, allows_late=True)

    assert become(records, UNIQUE, [second, first]) == ["row", "resent", "row replayed"]


def test_letters_replayed_at_once_stand_in_the_order_of_their_landing() -> None:
    records = [sent(0, landed=1, id_="z", time=8000), sent(1, landed=2), sent(2, landed=3)]
    replays = [decided("replay", offset, after=4, allows_late=True) for offset in (2, 1)]

    assert become(records, UNIQUE, replays) == ["row", "row replayed", "duplicate"]


# A single record.


@pytest.mark.parametrize(
    ("record", "becomes"),
    [
        (sent(0, landed=1), "row"),
        (sent(0, landed=1, amount="x"), "open wrong_type"),  # the contract
        (sent(0, landed=1, amount=-1), "open not_positive"),  # a rule
        (replace(sent(0, landed=1), value=b"{"), "open not_json"),  # the format
        (sent(0, landed=1, time=9002), "open future"),
        (sent(0, landed=1, time=9001), "row"),
        (replace(sent(0, landed=1), value=None), "open value_null"),
    ],
)
def test_without_ids_a_sound_record_is_a_row_and_any_other_one_an_open_letter(
    record: Record, becomes: str
) -> None:
    assert become([record], PLAIN) == [becomes]


def test_late_is_before_the_front_at_landing_minus_what_holds_for_the_offset() -> None:
    settings = replace(PLAIN, lateness=(Lateness(HOUR), Lateness(10, {("t", 0): 3})))
    records = [
        sent(0, landed=1, time=0),
        sent(1, landed=2, time=-HOUR),
        sent(2, landed=2, time=-HOUR - 1),
        sent(3, landed=2, time=-11),
        sent(4, landed=2, time=-10),
    ]

    assert become(records, settings) == ["row", "row", "open late", "open late", "row"]


def test_the_front_is_that_of_earlier_commits_only() -> None:
    records = [sent(0, landed=1, time=0), sent(1, landed=1, time=-2 * HOUR), sent(2, landed=2, time=-HOUR)]

    assert become(records, PLAIN) == ["row", "row", "row"]


def test_kafkas_time_and_unsound_records_do_not_move_the_front() -> None:
    far = [sent(0, landed=1, time=None, kafka=3 * HOUR), sent(1, landed=1, time=3 * HOUR, amount="x")]

    assert become([*far, sent(2, landed=2)], replace(PLAIN, future_tolerance_s=5 * HOUR)) == [
        "row",
        "open wrong_type",
        "row",
    ]


def test_the_front_does_not_go_back_when_its_record_is_deleted() -> None:
    records = [
        sent(0, landed=1, id_="z", time=8000),
        deletion(1, landed=2, key=b"z"),
        sent(2, landed=3),
    ]

    assert become(records, CORRECTED) == [
        "superseded",
        "deletion",
        "open late",
    ]


def test_the_front_is_also_that_of_records_which_are_refused_among_those_of_their_id() -> None:
    records = [
        sent(0, landed=1, time=1),
        sent(1, landed=2, version=1, time=8000),
        sent(2, landed=3, id_="b", time=0),
    ]

    assert become(records, CORRECTED) == ["row", "open conflicting_id", "open late"]
    discarded = [decided("discard", 1, after=3)]
    assert become(records, CORRECTED, discarded) == ["row", "discarded", "open late"]


def test_nothing_that_belongs_to_rows_which_retention_has_taken_is_accepted() -> None:
    taken = [Taken(us(1), before_us=us(0))]
    records = [
        sent(0, landed=1, time=-1),
        sent(1, landed=2, id_="b", time=-1),
        sent(2, landed=2, id_="c", time=0),
    ]

    assert become(records, PLAIN, taken=taken) == ["row", "open late", "row"]
    replayed = [decided("replay", 1, after=3, allows_late=True)]
    assert become(records, PLAIN, replayed, taken) == ["row", "open late", "row"]


# Records with the same id: only unique_by.


def test_records_are_compared_if_they_have_the_same_id_and_event_time() -> None:
    records = [
        sent(0, landed=1),
        sent(1, landed=2),
        sent(2, landed=2, amount=11),
        sent(3, landed=2, time=1),
        sent(4, landed=2, id_="b"),
    ]

    assert become(records, UNIQUE) == ["row", "duplicate", "open conflicting_id", "row", "row"]


def test_the_first_sound_one_is_the_row() -> None:
    assert become([sent(0, landed=1, amount="x"), sent(1, landed=2)], UNIQUE) == ["resent", "row"]


def test_a_later_one_is_compared_even_if_it_is_late() -> None:
    records = [
        sent(0, landed=1),
        sent(1, landed=2, id_="z", time=8000),
        sent(2, landed=3),
        sent(3, landed=3, amount=11),
        sent(4, landed=3, id_="b"),
    ]

    assert become(records, UNIQUE) == [
        "row",
        "row",
        "duplicate",
        "open conflicting_id",
        "open late",
    ]


# Records with the same id: also sequence_by.


def test_the_row_is_the_record_with_the_greatest_sequence() -> None:
    records = [
        sent(0, landed=1, version=1),
        sent(1, landed=2, version=3),
        sent(2, landed=3, version=2),
        sent(3, landed=4, version=3),
        sent(4, landed=5, version=3, amount=11),
    ]

    assert become(records, CORRECTED) == [
        "superseded",
        "row",
        "superseded",
        "duplicate",
        "open conflicting_id",
    ]


def test_a_whole_number_is_the_same_however_it_is_written() -> None:
    records = [
        sent(0, landed=1, id_=17),
        sent(1, landed=2, id_=17.0, version=1.0, amount=10.0),
        sent(2, landed=3, id_="17", version=2.0),
        sent(3, landed=4, id_="17.0"),
        sent(4, landed=5, id_=17.5),
        deletion(5, landed=6, key=b'{"id":17.00}', kafka=5),
    ]

    assert become(records, replace(CORRECTED, deletion_key="json:id")) == [
        "superseded",
        "duplicate",
        "superseded",
        "row",
        "open wrong_type",
        "deletion",
    ]


def test_a_late_record_counts_only_if_one_of_its_id_has_counted_before_it() -> None:
    records = [
        sent(0, landed=1),
        sent(1, landed=2, id_="z", time=8000),
        sent(2, landed=3, version=2),
        sent(3, landed=3, id_="b"),
        sent(4, landed=4, id_="b", version=2),
        deletion(5, landed=4, key=b"c"),
        sent(6, landed=5, id_="c"),
    ]

    assert become(records, CORRECTED) == [
        "superseded",
        "row",
        "row",
        "open late",
        "open late",
        "open nothing_to_delete",
        "open late",
    ]


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_a_deletion_takes_what_was_sent_no_later_than_it_whichever_landed_first(
    order: tuple[int, int],
) -> None:
    record, deleting = sent(0, landed=order[0], kafka=5), deletion(1, landed=order[1], kafka=5)

    assert become([record, deleting], CORRECTED) == ["superseded", "deletion"]
    assert become([record, deletion(1, landed=order[1], kafka=4)], CORRECTED) == [
        "row",
        "open nothing_to_delete",
    ]


def test_a_deletion_takes_the_greatest_sequence_until_then_in_any_partition() -> None:
    records = [
        sent(0, landed=1, version=1, kafka=1, partition=1),
        sent(1, landed=2, version=3, kafka=3),
        sent(2, landed=3, version=2, kafka=2),
        deletion(3, landed=4, kafka=2),
    ]

    assert become(records, CORRECTED) == ["superseded", "row", "superseded", "deletion"]
    records[3] = deletion(3, landed=4, kafka=3)
    assert become(records, CORRECTED) == ["superseded", "superseded", "superseded", "deletion"]


def test_a_deletion_without_kafkas_time_has_that_of_its_landing() -> None:
    assert become([sent(0, landed=1, kafka=3), deletion(1, landed=3, kafka=None)], CORRECTED) == [
        "superseded",
        "deletion",
    ]
    assert become([sent(0, landed=1, kafka=4), deletion(1, landed=3, kafka=None)], CORRECTED)[0] == "row"


def test_a_deleted_id_comes_back_with_a_greater_sequence_only() -> None:
    records = [
        sent(0, landed=1, version=2),
        deletion(1, landed=2, kafka=2),
        sent(2, landed=3, version=2, kafka=3),
        sent(3, landed=4, version=1, kafka=3),
    ]
    back = sent(4, landed=5, version=3, kafka=3)

    assert become(records, CORRECTED) == ["superseded", "deletion", "superseded", "superseded"]
    assert become([*records, back], CORRECTED)[4] == "row"


def test_a_deletion_with_a_sequence_takes_that_one() -> None:
    settings = replace(
        CORRECTED, contract=CONTRACTS["transactions"], unique_by="header:id", sequence_by="header:v"
    )

    def numbered(record: Record, id_: str, version: int) -> Record:
        return replace(record, headers=(("id", id_.encode()), ("v", str(version).encode())))

    records = [
        numbered(sent(0, landed=1, kafka=9), "a", 2),
        numbered(deletion(1, landed=2), "a", 3),
        numbered(sent(2, landed=3, kafka=9), "a", 3),
        numbered(sent(3, landed=4, kafka=9), "a", 4),
    ]

    assert become(records, settings) == ["superseded", "deletion", "superseded", "row"]
    assert become([records[1], records[3]], settings) == ["open nothing_to_delete", "row"]


def test_a_deletion_that_finds_nothing_is_open_until_a_record_lands_that_it_takes() -> None:
    deleting = deletion(0, landed=1, kafka=5)

    assert become([deleting], CORRECTED) == ["open nothing_to_delete"]
    assert become([deleting, sent(1, landed=2, kafka=6)], CORRECTED) == ["open nothing_to_delete", "row"]
    assert become([deleting, sent(1, landed=2, kafka=5)], CORRECTED) == ["deletion", "superseded"]


def test_a_repeated_record_that_was_sent_before_a_deletion_lets_it_take_the_row() -> None:
    records = [sent(0, landed=1, kafka=9), deletion(1, landed=2, kafka=5), sent(2, landed=3, kafka=4)]

    assert become(records, CORRECTED) == ["superseded", "deletion", "duplicate"]


def test_a_conflicting_record_does_not_count() -> None:
    records = [
        sent(0, landed=1, kafka=9),
        deletion(1, landed=2, kafka=5),
        sent(2, landed=3, kafka=4, amount=11),
    ]

    assert become(records, CORRECTED) == ["row", "open nothing_to_delete", "open conflicting_id"]


@pytest.mark.parametrize(("key", "rule"), [(None, "key_null"), (b"", "key_empty"), (b"\xff", "key_not_utf8")])
def test_a_deletion_whose_key_is_no_id_is_unsound(key: bytes | None, rule: str) -> None:
    assert become([deletion(0, landed=1, key=key)], CORRECTED) == [f"open {rule}"]


def test_an_id_whose_row_retention_has_taken_is_frozen() -> None:
    taken = [
        Taken(us(1), before_us=us(0), silver_us=us(0), gone={("t", 0): 0}),
    ]
    records = [
        sent(0, landed=1, time=-1),
        sent(1, landed=1, id_="b", time=-1),  # its record is still in bronze
        sent(2, landed=2, version=2, time=5),
        deletion(3, landed=2, kafka=5),
        deletion(4, landed=2, kafka=5, key=b"b"),
        sent(5, landed=2, id_="c"),
        sent(6, landed=3, id_="c", version=2, time=-1),
    ]

    assert become(records, CORRECTED, taken=taken) == [
        "row taken",
        "row",
        "open retained",
        "open retained",
        "open retained",
        "row",
        "open late",
    ]


def test_an_id_whose_letters_retention_has_taken_comes_back_above_its_bar() -> None:
    ids = frozenset(sha256(id_).digest()[:16] for id_ in (b"a", b"b"))
    records = [
        sent(0, landed=1),
        sent(1, landed=1, id_="b"),
        deletion(2, landed=2, kafka=5),
        sent(3, landed=4, kafka=9),
        sent(4, landed=4, version=2, kafka=5),
        sent(5, landed=4, id_="b", version=2),
        sent(6, landed=5, version=3, kafka=9, time=-30 * 86_400),
        deletion(7, landed=6, kafka=10),
        sent(8, landed=7, version=2, kafka=11),
    ]
    taken = [Taken(us(3), ids=ids)]

    assert become(records, CORRECTED, taken=taken) == [
        "superseded",
        "superseded",
        "deletion",
        "open retained",
        "superseded",
        "row",
        "superseded",
        "deletion",
        "superseded",
    ]
    found = outcomes(records, [], CORRECTED, taken)
    assert [place[2] for place, one in found.items() if one.is_asked] == [1, 4, 6, 7, 8]

    again = [*taken, Taken(us(7), ids=ids - {sha256(b"b").digest()[:16]})]
    after = [*records, sent(9, landed=8, version=3, kafka=12), sent(10, landed=8, version=4, kafka=12)]
    assert become(after, CORRECTED, taken=again)[9:] == ["open retained", "row"]
    assert [place[2] for place, one in outcomes(after, [], CORRECTED, again).items() if one.is_asked] == [1]


def test_an_id_whose_letters_were_taken_under_another_sequence_is_frozen() -> None:
    records = [sent(0, landed=1), deletion(1, landed=2, kafka=5), sent(2, landed=4, version=9, kafka=9)]
    taken = [Taken(us(3), ids=frozenset([sha256(b"a").digest()[:16]]), sequence_by="another")]

    assert become(records, CORRECTED, taken=taken) == ["superseded", "deletion", "open retained"]


# Open letters that are closed automatically.


@pytest.mark.parametrize(
    ("letter", "row", "status"),
    [
        (sent(0, landed=1, amount="x"), sent(1, landed=2), "resent"),
        (sent(0, landed=1, amount="x"), sent(1, landed=1), "resent"),  # in one micro-batch
        (sent(0, landed=2, amount="x"), sent(1, landed=1), "open wrong_type"),
        (sent(0, landed=1, amount="x"), sent(1, landed=2, id_="b"), "open wrong_type"),
        (sent(0, landed=1, amount="x"), sent(1, landed=2, time=1), "open wrong_type"),
        (sent(0, landed=1, id_=""), sent(1, landed=2), "open empty_string"),
        (replace(sent(0, landed=1), value=b"{"), sent(1, landed=2), "open not_json"),
    ],
)
def test_with_unique_by_a_row_of_the_same_id_and_event_time_answers_a_letter(
    letter: Record, row: Record, status: str
) -> None:
    assert become([letter, row], UNIQUE) == [status, "row"]


def test_a_letter_whose_event_time_is_unknown_stays_open() -> None:
    letter = replace(
        sent(0, landed=1), value=b'{"userId":"u","amount":1,"id":"a","version":1,"timestamp":"x"}'
    )

    assert become([letter, sent(1, landed=2)], UNIQUE) == ["open bad_timestamp", "row"]
    assert become([letter, sent(1, landed=2)], CORRECTED) == ["resent", "row"]


@pytest.mark.parametrize(
    ("version", "status"),
    [(1, "resent"), (2, "resent"), (3, "open wrong_type"), ("x", "open wrong_type")],
)
def test_with_sequence_by_a_row_of_its_sequence_or_a_greater_one_answers_a_letter(
    version: object, status: str
) -> None:
    letter = sent(0, landed=1, version=version, amount="x")

    assert become([letter, sent(1, landed=2, version=2, time=5)], CORRECTED) == [status, "row"]


def test_a_record_that_never_was_a_row_answers_nothing() -> None:
    records = [
        sent(0, landed=1, amount="x", version=1),
        deletion(1, landed=2, kafka=5),
        sent(2, landed=3, version=1, kafka=4),
    ]

    assert become(records, CORRECTED) == ["open wrong_type", "deletion", "superseded"]


def test_one_that_was_a_row_and_is_no_longer_has_answered() -> None:
    records = [
        sent(0, landed=1, amount="x", version=1),
        sent(1, landed=2, version=1),
        sent(2, landed=3, version=2),
    ]
    found = outcomes(records, (), CORRECTED)

    assert become(records, CORRECTED) == ["resent", "superseded", "row"]
    assert found[at(0)].by == at(1)


def test_a_conflicting_record_and_a_deletion_stay_open_until_a_person_decides() -> None:
    records = [
        sent(0, landed=1),
        sent(1, landed=2, amount=11),
        deletion(2, landed=3, kafka=-1),
        sent(3, landed=4, version=2),
    ]

    assert become(records, CORRECTED) == [
        "superseded",
        "open conflicting_id",
        "open nothing_to_delete",
        "row",
    ]


# Decisions.


def test_a_replay_judges_by_itself_all_but_the_time_and_changes_nothing_if_the_record_is_unsound() -> None:
    records = [
        sent(0, landed=1, time=8000),
        sent(1, landed=2),
        sent(2, landed=2, id_="b", amount="x"),
    ]
    settings = PLAIN

    def replayed(offset: int, *, allows_late: bool) -> list[str]:
        decisions = [decided("replay", offset, after=3, allows_late=allows_late)]
        return become(records, settings, decisions)

    assert replayed(1, allows_late=False) == ["row", "open late", "open late wrong_type"]
    assert replayed(1, allows_late=True) == ["row", "row replayed", "open late wrong_type"]
    assert replayed(2, allows_late=True) == ["row", "open late", "open late wrong_type"]


def test_a_replay_takes_what_is_allowed_now() -> None:
    settings = replace(
        PLAIN, future_tolerance_s=9000, lateness=(Lateness(HOUR), Lateness(None, {("t", 0): 9}))
    )
    records = [sent(0, landed=1, time=8000), sent(1, landed=2)]

    assert become(records, settings, [decided("replay", 1, after=3)]) == ["row", "row replayed"]


def test_a_replayed_record_can_be_corrected_and_has_one_letter() -> None:
    records = [
        sent(0, landed=1, id_="z", time=8000),
        sent(1, landed=2),
        sent(2, landed=5, version=2),
    ]
    settings = CORRECTED
    replays = [decided("replay", 1, after=3, allows_late=True)]

    assert become(records, settings, replays) == ["row", "superseded", "row"]
    assert become(records, settings) == ["row", "open late", "open late"]


def test_a_letter_whose_record_has_been_deleted_since_does_not_come_back_by_a_replay() -> None:
    records = [sent(0, landed=1, id_="z", time=8000), sent(1, landed=2), deletion(2, landed=3, kafka=1)]

    assert become(records, CORRECTED) == ["row", "open late", "open nothing_to_delete"]
    replays = [decided("replay", 1, after=3, allows_late=True)]
    assert become(records, CORRECTED, replays) == ["row", "superseded", "deletion"]


def test_a_skipped_record_is_a_letter_until_it_is_replayed() -> None:
    records = [sent(0, landed=1), sent(1, landed=2)]
    skip = Decision("skip", at(0), 0, 0)

    assert become(records, UNIQUE, [skip]) == ["open skipped", "row"]
    assert become(records, UNIQUE, [skip, decided("replay", 0, after=1)]) == ["row replayed", "duplicate"]


def test_a_decision_that_was_made_under_other_ids_stays_with_its_record() -> None:
    records = [sent(0, landed=1), sent(1, landed=2, amount=11)]  # by its id, the second one conflicts

    def by_ids(what: Any, **more: Any) -> list[str]:
        return become(records, PLAIN, [decided(what, 1, after=3, made_with=("id", None), **more)])

    assert become(records, PLAIN) == ["row", "row"]
    assert by_ids("discard") == ["row", "discarded"]
    assert by_ids("replay", has_admitted=True) == ["row", "row replayed"]
    assert by_ids("replay") == ["row", "row"]


def test_a_replay_failed_under_other_ids_if_its_letter_was_discarded_later() -> None:
    records = [sent(0, landed=1), sent(1, landed=2, amount=11)]
    replayed = decided("replay", 1, after=3, has_admitted=True, made_with=("id", None))
    discarded = decided("discard", 1, after=4, made_with=("id", None))

    assert become(records, PLAIN, [replayed, discarded]) == ["row", "discarded"]


def test_a_letter_that_was_given_up_under_other_ids_is_not_answered_before() -> None:
    records = [sent(0, landed=1, amount="x"), sent(1, landed=2)]
    discarded = [decided("discard", 0, after=3, made_with=(None, None))]

    assert become(records, UNIQUE) == ["resent", "row"]
    assert become(records, UNIQUE, discarded) == ["discarded", "row"]


def test_a_discarded_record_counts_for_nothing() -> None:
    records = [deletion(0, landed=1, kafka=5), sent(1, landed=3, kafka=4)]

    assert become(records, CORRECTED) == ["deletion", "superseded"]
    assert become(records, CORRECTED, [decided("discard", 0, after=2)]) == ["discarded", "row"]


def test_a_resolved_letter_names_the_other_record_and_counts_for_nothing() -> None:
    records = [sent(0, landed=1, id_="b", amount="x"), sent(1, landed=2), sent(2, landed=4, id_="b")]
    resolved = [decided("resolve", 0, after=3, by=at(1))]
    found = outcomes(records, resolved, UNIQUE)

    assert (found[at(0)].status, found[at(0)].by) == ("resent", at(1))
    assert outcomes(records, (), UNIQUE)[at(0)].by == at(2)


def test_a_decision_stays_with_its_record() -> None:
    records = [sent(0, landed=1, amount="x"), sent(1, landed=3)]

    assert become(records, UNIQUE, [decided("discard", 0, after=2)]) == ["discarded", "row"]


def test_a_decision_about_a_letter_that_is_closed_changes_nothing() -> None:
    records = [sent(0, landed=1), sent(1, landed=2)]

    assert become(records, UNIQUE, [decided("discard", 1, after=2)]) == ["row", "duplicate"]


# Formats and envelopes.


ROW = {"id": 4, "userId": "u", "amount": 10}


def event(offset: int, op: str, *, lsn: object = 1, before: object = None, after: object = None) -> Record:
    """Return a change of a table, sent and landed as many seconds after noon as its offset."""
    said = {"op": op, "before": before, "after": after, "source": {"ts_ms": us(0) // 1000, "lsn": lsn}}
    stamp_ms = us(offset) // 1000
    return Record(at(offset), us(offset), json.dumps(said).encode(), b'{"id":4}', (), stamp_ms)


def test_a_change_is_read_in_its_envelope() -> None:
    (found,) = outcomes([event(0, "c", after=ROW)], [], CHANGES).values()

    assert found.row == {
        "user_id": "u",
        "amount": 10,
        "after_id": "4",
        "source_lsn": 1,
        "event_time": us(0),
        "own_time": us(0),
    }


def test_a_change_without_a_row_lacks_fields_and_one_that_is_no_object_has_wrong_types() -> None:
    records = [event(0, "u"), event(1, "u", after="nonsense"), event(2, "d ", before=ROW)]

    assert become(records, CHANGES) == ["open missing_field", "open wrong_type", "open missing_field"]


def test_a_deletion_in_an_envelope_takes_versions_up_to_its_own_and_its_record_without_a_value_nothing() -> (
    None
):
    records = [
        event(0, "c", after=ROW),
        event(1, "d", lsn=2, before=ROW),
        deletion(2, landed=2, key=b'{"id":4}', kafka=2),
        event(3, "u", lsn=2, after=ROW),
        event(4, "u", lsn=3, after=ROW),
    ]

    assert become(records, CHANGES) == ["superseded", "deletion", "deletion", "superseded", "row"]


def test_a_deletion_in_an_envelope_that_says_no_id_or_no_sequence_is_a_letter() -> None:
    records = [
        event(0, "d"),
        event(1, "d", lsn="x", before=ROW),
        event(2, "d", lsn=None, before=ROW),
        deletion(3, landed=3, key=b"4.0"),
        deletion(4, landed=4, key=b"\xff"),
    ]

    assert become(records, CHANGES) == [
        "open missing_id",
        "open bad_sequence",
        "open nothing_to_delete",
        "open bad_key",
        "open key_not_utf8",
    ]


def test_a_key_in_avro_is_a_text_by_its_length_after_the_five_bytes_of_its_schema() -> None:
    in_avro = replace(CORRECTED, deletion_key="avro")
    keys = (b"\0\0\0\0\7\2a", b"\0\0\0\0\7\4a", b"a", b"")
    deletions = [deletion(n, landed=n, key=key, kafka=n) for n, key in enumerate(keys, 1)]

    found = become([sent(0, landed=0), *deletions], in_avro)

    assert found == ["superseded", "deletion", "open undecodable", "open not_framed", "open key_empty"]


def test_a_record_that_its_format_refuses_says_nothing_and_is_not_answered() -> None:
    refused = replace(sent(0, landed=0), refused="undecodable")

    assert become([refused, sent(1, landed=1, version=2)], CORRECTED) == ["open undecodable", "row"]


# Everything, in any combination.

_IDS = st.sampled_from("ab")
_RECORDS = st.lists(
    st.tuples(
        st.sampled_from(["record", "record", "record", "broken", "deletion"]),
        _IDS,
        st.integers(1, 3),
        st.sampled_from([-5000, 0, 1, 8000]),
        st.integers(0, 9),
        st.integers(1, 4),
        st.sampled_from([10, 10, 11]),
    ),
    min_size=1,
    max_size=10,
)
_DECISIONS = st.lists(
    st.tuples(
        st.sampled_from(["replay", "discard", "resolve"]), st.integers(0, 9), st.integers(1, 5), st.booleans()
    ),
    max_size=4,
)
_SETTINGS = st.sampled_from([PLAIN, UNIQUE, CORRECTED])


def _made(drawn: Sequence[tuple[Any, ...]]) -> list[Record]:
    made = []
    for offset, (kind, id_, version, time, kafka, landed, amount) in enumerate(drawn):
        if kind == "deletion":
            made.append(deletion(offset, landed=landed, key=id_.encode(), kafka=kafka))
        else:
            value = "x" if kind == "broken" else amount
            made.append(
                sent(offset, landed=landed, id_=id_, version=version, time=time, kafka=kafka, amount=value)
            )
    return made


def _chosen(drawn: Sequence[tuple[Any, ...]], records: Sequence[Record]) -> list[Decision]:
    """Return the possible decisions: those about records that silver had processed by then."""
    found = []
    for number, (what, offset, after, allows_late) in enumerate(drawn):
        if offset < len(records) and records[offset].ingested_at_us <= us(after):
            found.append(decided(what, offset, after=after, number=number, allows_late=allows_late))
    return found


@given(_RECORDS, _DECISIONS, _SETTINGS, st.randoms(use_true_random=False))
def test_the_order_in_which_records_and_decisions_are_given_does_not_matter(
    drawn: list[Any], decisions: list[Any], settings: Settings, random: Any
) -> None:
    records = _made(drawn)
    chosen = _chosen(decisions, records)
    expected = outcomes(records, chosen, settings)
    random.shuffle(records)
    random.shuffle(chosen)

    assert outcomes(records, chosen, settings) == expected


@given(_RECORDS, _DECISIONS, _SETTINGS)
def test_decisions_change_only_what_they_are_about(
    drawn: list[Any], decisions: list[Any], settings: Settings
) -> None:
    records = _made(drawn)
    chosen = _chosen(decisions, records)
    every = outcomes(records, chosen, settings)
    ids = {one.place: drawn[one.place[2]][1] for one in records}
    for number, dropped in enumerate(chosen):
        without = outcomes(records, chosen[:number] + chosen[number + 1 :], settings)
        changed = {place for place in every if every[place] != without[place]}
        is_about_all = dropped.what == "replay" or records[dropped.place[2]].value is None
        about = {place for place, id_ in ids.items() if id_ == ids[dropped.place]}
        assert changed <= (about if is_about_all else {dropped.place})


@given(_RECORDS, _DECISIONS, _SETTINGS)
def test_each_record_is_one_row_or_one_letter_and_no_id_has_two_rows(
    drawn: list[Any], decisions: list[Any], settings: Settings
) -> None:
    records = _made(drawn)
    found = outcomes(records, _chosen(decisions, records), settings)
    rows = [one.row for one in found.values() if one.row is not None]
    keys = [
        (row["id"], row["event_time"] if settings.sequence_by is None else 0) for row in rows if "id" in row
    ]

    assert found.keys() == {one.place for one in records}
    assert len(keys) == len(set(keys))


@given(_RECORDS, _DECISIONS, _SETTINGS, st.integers(1, 5))
def test_what_comes_later_does_not_change_what_an_open_letter_was_refused_for(
    drawn: list[Any], decisions: list[Any], settings: Settings, end: int
) -> None:
    """Outcomes at any time agree with the final ones, except for statuses that later records change."""
    records = _made(drawn)
    chosen = _chosen(decisions, records)
    early = outcomes(
        [one for one in records if one.ingested_at_us <= us(end)],
        [one for one in chosen if one.after_us <= us(end)],
        settings,
    )
    late = outcomes(records, chosen, settings)
    final = {"duplicate", "discarded", "resent", "deletion"}

    for place, one in early.items():
        if one.status in final:
            assert late[place] == one
        if one.status == "superseded":
            assert late[place].status == "superseded"


# Rebuilds with --allow-late.


def late(offset: int, *, landed: float, **more: Any) -> Record:
    """Return a record that is two hours behind the front; the allowed lateness is one hour."""
    return sent(offset, landed=landed, time=-2 * HOUR, **more)


FRONT = sent(9, landed=1, id_="z")


def test_a_rebuild_that_allows_late_records_makes_them_in_time_where_they_landed() -> None:
    records = [FRONT, late(0, landed=2), late(1, landed=3, version=2)]
    rebuilt = [decided("in time", offset, after=4) for offset in (0, 1)]

    assert become(records, CORRECTED) == ["open late", "open late", "row"]
    assert become(records, CORRECTED, rebuilt) == ["superseded", "row", "row"]
    assert become(records[:2], PLAIN, rebuilt[:1]) == ["row", "row"]


def test_what_was_decided_about_a_letter_outlasts_a_rebuild_that_allows_late_records() -> None:
    records = [FRONT, late(0, landed=2), late(1, landed=3, version=2)]
    discarded = decided("discard", 1, after=4)
    rebuilt = [decided("in time", offset, after=4, number=2) for offset in (0, 1)]
    replayed = decided("replay", 1, after=4, allows_late=True, has_admitted=True)

    assert become(records, CORRECTED, [discarded, *rebuilt]) == ["row", "discarded", "row"]
    assert become(records, CORRECTED, [replayed, *rebuilt]) == ["resent", "row replayed", "row"]


def test_a_rebuild_that_allows_late_records_opens_nothing_that_retention_has_closed() -> None:
    records, taken = [FRONT, late(0, landed=2)], [Taken(us(2), before_us=us(-HOUR), at_us=1)]
    rebuilt = [decided("in time", 0, after=2, number=2)]

    assert become(records, CORRECTED, rebuilt, taken) == ["open late", "row"]


def test_only_its_letter_says_that_an_unsound_record_was_in_time_until_it_is_replayed() -> None:
    records, rebuilt = [FRONT, late(0, landed=2, amount="x")], decided("in time", 0, after=2)
    replayed = decided("replay", 0, after=2, number=2)

    assert become(records, CORRECTED) == ["open late wrong_type", "row"]
    assert become(records, CORRECTED, [rebuilt]) == ["open wrong_type", "row"]
    assert become(records, CORRECTED, [rebuilt, replayed]) == ["open late wrong_type", "row"]
