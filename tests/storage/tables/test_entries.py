"""What a commit did, read from the text of its log entry without Spark."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lakehouse.storage.tables.entries import LogEntry, entry_of, rows_of
from lakehouse.storage.tables.specs import Why


def entry(*actions: dict[str, Any]) -> LogEntry:
    return entry_of(7, "\n".join(json.dumps(action, ensure_ascii=False) for action in actions), "/lake/t")


def add(path: str, *, rows: int | None = 1, **more: Any) -> dict[str, Any]:
    stats = {} if rows is None else {"stats": json.dumps({"numRecords": rows})}
    return {"add": {"path": path, "size": 10, **stats, **more}}


def remove(path: str, **more: Any) -> dict[str, Any]:
    return {"remove": {"path": path, "size": 10, **more}}


def paths(files: list[Any]) -> list[str]:
    return [str(file["path"]) for file in files]


def test_an_append_is_read_as_a_whole_and_is_its_own_change_feed() -> None:
    found = entry({"commitInfo": {"timestamp": 5}}, {"txn": {"appId": "q", "version": 3}}, add("a"), add("b"))

    assert (found.version, found.committed_ms, found.only_appends) == (7, 5, True)
    assert paths(found.appended) == paths(found.feed) == ["a", "b"]
    assert [one["version"] for one in found.of("txn")] == [3]
    assert (found.rewrites, found.replaces_files, found.has_same_rows) == (False, False, False)


def test_a_commit_that_changes_rows_appends_none_and_its_change_feed_is_its_own_if_it_has_one() -> None:
    plain = entry(add("new"), remove("old"))
    with_feed = entry(
        add("new"), remove("old"), {"cdc": {"path": "changes", "size": 10, "dataChange": False}}
    )

    assert (plain.rewrites, plain.appended, paths(plain.feed)) == (True, [], ["new", "old"])
    assert (with_feed.rewrites, with_feed.appended, paths(with_feed.feed)) == (True, [], ["changes"])


def test_compaction_replaces_files_and_changes_no_row() -> None:
    found = entry(add("new", dataChange=False), remove("old", dataChange=False))

    assert (found.rewrites, found.has_same_rows, found.replaces_files) == (False, True, True)
    assert found.appended == found.feed == []


@pytest.mark.parametrize("sign", ["\u0085", "\u2028", "\u2029", "\x0b", "\x0c", "\x1c"])
def test_a_name_may_have_signs_that_end_lines_elsewhere(sign: str) -> None:
    text = json.dumps(add("a", stats=f'{{"minValues":{{"name":"x{sign}y"}}}}'), ensure_ascii=False)

    found = entry_of(0, f"{text}\n{text}\n", "/lake/t")

    assert paths(found.appended) == ["a", "a"]


def test_kinds_that_are_null_are_none() -> None:
    every = dict.fromkeys(("add", "remove", "cdc", "txn", "metaData", "protocol", "commitInfo"))
    found = entry({**every, **add("a")}, {**every, "commitInfo": {"timestamp": 5}})

    assert (found.kinds, found.committed_ms, found.only_appends) == ({"add", "commitInfo"}, 5, True)
    assert paths(found.appended) == paths(found.feed) == ["a"]


@pytest.mark.parametrize(
    "action", [{"add": {}}, {"add": {"path": "a", "size": "x"}}, {"cdc": 1}, {"remove": {}}]
)
def test_an_entry_with_a_file_that_is_not_understood_is_refused(action: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="version 7 names a file"):
        entry(action)


def test_an_entry_that_is_cut_off_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Expecting|Unterminated"):
        entry_of(0, '{"add":{"path":"a"', "/lake/t")


def test_a_file_has_the_rows_that_its_statistics_say_without_those_that_are_marked_deleted() -> None:
    assert rows_of(add("a", rows=5)["add"]) == 5
    assert rows_of(add("a", rows=5, deletionVector={"cardinality": 2})["add"]) == 3
    assert rows_of(add("a", rows=None)["add"]) is None


@pytest.mark.parametrize(
    ("noted", "why"),
    [
        ("lakehouse: corrected", Why.CORRECTED),
        ("lakehouse: retained", Why.RETAINED),
        ("lakehouse: erased", Why.ERASED),
        ("lakehouse: other", None),
        ("corrected", None),
        ("", None),
        (7, None),
    ],
)
def test_a_commit_says_why_rows_left(noted: object, why: Why | None) -> None:
    assert entry({"commitInfo": {"userMetadata": noted}}, remove("old")).why is why
    assert entry({"commitInfo": {}}, remove("old")).why is None


def corrected(text: str | None) -> LogEntry:
    info = {} if text is None else {"userMetadata": text}
    return entry({"commitInfo": info}, add("new"), remove("old"), {"cdc": {"path": "c", "size": 1}})


@pytest.mark.parametrize(
    ("found", "followed", "is_foreign"),
    [
        pytest.param(entry({"commitInfo": {}}, add("a")), ["a"], False, id="an append, whoever's"),
        pytest.param(corrected("lakehouse: corrected"), ["c"], False, id="a correction"),
        pytest.param(corrected("lakehouse: retained"), [], False, id="retention"),
        pytest.param(corrected("lakehouse: erased"), [], False, id="erasure"),
        pytest.param(corrected(None), [], True, id="another writer"),
        pytest.param(
            entry(add("a", dataChange=False), remove("b", dataChange=False)), [], False, id="OPTIMIZE"
        ),
    ],
)
def test_who_follows_a_table_gets_appends_and_corrections(
    found: LogEntry, followed: list[str], *, is_foreign: bool
) -> None:
    assert (paths(found.followed), found.is_foreign) == (followed, is_foreign)
