"""Change events like Wikimedia's recent changes, with their rows and some refused events."""

from __future__ import annotations

from typing import Any

from lakehouse.streams.contract import Contract, Field, FieldType
from tests.support.pipeline import micros, utc

CHANGES = Contract(
    fields=(
        Field("meta.domain", "domain", FieldType.STRING),
        Field("meta.id", "event_id", FieldType.STRING),
        Field("type", "type", FieldType.STRING),
        Field("title", "title", FieldType.STRING),
        Field("user", "user", FieldType.STRING),
        Field("bot", "bot", FieldType.BOOLEAN),
        Field("id", "change_id", FieldType.STRING, required=False, accepts_numbers=True),
        Field("minor", "minor", FieldType.BOOLEAN, required=False),
        Field("length.old", "length_old", FieldType.LONG, required=False),
        Field("length.new", "length_new", FieldType.LONG, required=False),
        Field("timestamp", "changed_s", FieldType.LONG),
        Field("log_params", "log_params", FieldType.JSON, required=False),
        Field("$schema", "schema", FieldType.STRING),
    ),
    event_time="meta.dt",
)
EDIT = """{"$schema":"/mediawiki/recentchange/1.0.0","meta":{"uri":"https://en.wikipedia.org/wiki/Q%C3%A9",
"request_id":"Xn","id":"4e5f","dt":"2025-12-31T23:59:58Z","domain":"en.wikipedia.org",
"stream":"mediawiki.recentchange","topic":"eqiad.mediawiki.recentchange","partition":0,"offset":2303497634},
"id":1255402381,"type":"edit","namespace":0,"title":"Qué","comment":"{{cite}}","timestamp":1767225598,
"user":"Ann","bot":false,"minor":true,"length":{"old":40,"new":42},"revision":{"old":9,"new":10},
"server_name":"en.wikipedia.org","wiki":"enwiki","parsedcomment":""}"""
NEW = """{"$schema":"/mediawiki/recentchange/1.0.0","meta":{"id":"4e60","dt":"2025-12-31T23:59:58.123456Z",
"domain":"de.wikipedia.org"},"id":1255402382,"type":"new","title":"Neu","timestamp":1767225598,"user":"Bo",
"bot":true,"minor":false,"patrolled":false,"length":{"new":5000000000},"revision":{"new":11}}"""
LOG = """{"$schema":"/mediawiki/recentchange/1.0.0","meta":{"id":"4e61","dt":"2026-01-01T00:59:58+01:00",
"domain":"commons.wikimedia.org"},"id":null,"type":"log","title":"User:Cy","timestamp":1767225598,
"user":"127.0.0.1","bot":false,"log_id":7,"log_type":"block","log_params":{"duration":"P1D","flags":["a"]}}"""
PATROL = LOG.replace('{"duration":"P1D","flags":["a"]}', "[]")
CATEGORIZE = """{"$schema":"/mediawiki/recentchange/1.0.0","meta":{"id":"4e62","dt":"2025-12-31T23:59:58Z",
"domain":"fr.wikipedia.org"},"type":"categorize","title":"Catégorie:A","timestamp":1767225598,"user":"Di",
"bot":false,"length":null}"""
CLEAN: dict[str, dict[str, Any]] = {
    EDIT: {
        "domain": "en.wikipedia.org",
        "event_id": "4e5f",
        "type": "edit",
        "title": "Qué",
        "user": "Ann",
        "bot": False,
        "change_id": "1255402381",
        "minor": True,
        "length_old": 40,
        "length_new": 42,
        "changed_s": 1_767_225_598,
        "log_params": None,
        "schema": "/mediawiki/recentchange/1.0.0",
        "event_time": micros(utc("2025-12-31T23:59:58")),
    },
    NEW: {
        "change_id": "1255402382",
        "bot": True,
        "minor": False,
        "length_old": None,
        "length_new": 5_000_000_000,
        "event_time": micros(utc("2025-12-31T23:59:58.123456")),
    },
    LOG: {
        "change_id": None,
        "minor": None,
        "length_new": None,
        "log_params": '{"duration":"P1D","flags":["a"]}',
        "event_time": micros(utc("2025-12-31T23:59:58")),
    },
    PATROL: {"log_params": "[]", "event_time": micros(utc("2025-12-31T23:59:58"))},
    CATEGORIZE: {
        "event_time": micros(utc("2025-12-31T23:59:58")),
        "title": "Catégorie:A",
        "length_old": None,
        "length_new": None,
    },
}

REFUSED: dict[str, list[tuple[str, str]]] = {
    EDIT.replace(":58Z", ":58"): [("bad_timestamp", "event_time")],
    EDIT.replace('"dt":"2025-12-31T23:59:58Z"', '"dt":1767225598'): [("bad_timestamp", "event_time")],
    EDIT.replace('"bot":false', '"bot":"false"'): [("wrong_type", "bot")],
    EDIT.replace('"new":42', '"new":42.5'): [("wrong_type", "length_new")],
    EDIT.replace('"domain":"en.wikipedia.org",', ""): [("missing_field", "domain")],
    EDIT.replace('{"old":40,"new":42}', "42"): [("wrong_type", "length_old"), ("wrong_type", "length_new")],
    EDIT.replace("1255402381", "1255402381.5"): [("wrong_type", "change_id")],
    '{"$schema":"1","meta":[],"type":"","title":"T","user":"U","bot":true,"timestamp":1}': [
        ("wrong_type", "domain"),
        ("wrong_type", "event_id"),
        ("empty_string", "type"),
        ("wrong_type", "event_time"),
    ],
}
