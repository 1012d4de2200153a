"""Silver tables that meet their suites, and changes that each break one expectation."""

from __future__ import annotations

from collections.abc import Mapping

from tests.expectations.bronze_cases import record
from tests.expectations.lakes import LIMITS, Case, Row, TinyLake, at, later, text
from tests.support.streams import STREAMS

# A record's values, the required string that can be empty, and wrong values by expectation.
_METRIC = {"service_id": text("s1"), "metric_name": text("cpu"), "value": "1.5D"}
_CALL = {"user1": text("ann"), "user2": text("bob")}
_SALE = {"product": text("p1"), "value": "-1.5"}
_TRANSACTION = {"user_id": text("u1"), "amount": "0.000000001"}
_RECORDS: Mapping[str, tuple[Row, str, Mapping[str, Row]]] = {
    "metrics_events": (_METRIC, "metric_name", {"values are finite": {"value": "double('-infinity')"}}),
    "call_analytics": (_CALL, "user2", {}),
    "call_metrics": (_CALL, "user2", {}),
    "sales_events": (_SALE, "product", {}),
    "transactions": (_TRANSACTION, "user_id", {"amounts are above zero": {"amount": "0"}}),
}


def _case(table: str, topic: str) -> Case:
    view, landed = f"silver_{table}", f"bronze_{table}"
    fields, name, wrong_values = _RECORDS[table]
    place = {"topic": text(topic), "partition": "1"}
    row = {**fields, **place, "offset": "0", "event_time": at("11:59:00")}
    other = {**row, "offset": "1", "event_time": at("12:05:00")}
    if table == "sales_events":
        other = {**other, "value": "NULL"}  # a tombstone

    def changed(change: Row) -> TinyLake:
        return {view: [row, {**other, **change}]}

    return Case(
        good={view: [row, other], landed: [record(topic, 0), record(topic, 1)], "limits": [LIMITS]},
        bad={
            "keys are unique": {view: [row, row]},
            "required columns have values": changed({name: "NULL"}),
            "required strings are not empty": changed({name: text("")}),
            "no event time is beyond future_tolerance": changed({"event_time": at("12:05:00.000001")}),
            "every row has a bronze row": {landed: [record(topic, 0), record("another", 1)]},
            "the newest row is recent": later(),
            **{expectation: changed(change) for expectation, change in wrong_values.items()},
        },
    )


CASES = {
    f"silver.{source.table}": _case(source.table, source.topic)
    for stream in STREAMS
    for source in stream.sources
}
