"""The comparison of payloads, on which every comparison with the oracles relies."""

from __future__ import annotations

from tests.oracles.json_text import payload_meaning, payload_text


def test_payloads_are_compared_by_what_they_say() -> None:
    assert payload_meaning('{"a":1,"b":[1.50]}') == payload_meaning('{ "b":[15e-1], "a":1.0 }')
    assert payload_meaning("1") != payload_meaning("true")
    assert payload_meaning(payload_text("1")) != payload_meaning("1")
    assert payload_meaning("plain") == payload_meaning("plain") != payload_meaning('"plain"')
    assert payload_meaning(None) is payload_meaning("null") is None
