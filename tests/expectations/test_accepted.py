"""The expectations of silver that follow from a contract."""

from __future__ import annotations

from dataclasses import replace

from expectations.silver.common import accepted
from lakehouse.streams.contract import Contract
from lakehouse.streams.definition import Source
from tests.support.change_events import CHANGES

SOURCE = Source("changes", "changes", CHANGES)


def test_a_source_without_a_required_text_expects_none() -> None:
    numbers = Contract(tuple(field for field in CHANGES.fields if field.column == "bot"))

    found = {one.description for one in accepted(replace(SOURCE, contract=numbers))}

    assert "required strings are not empty" in {one.description for one in accepted(SOURCE)} - found
