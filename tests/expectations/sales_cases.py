"""Totals and notifications that meet their suites, and changes that each break one expectation."""

from __future__ import annotations

from tests.expectations.lakes import LIMITS, Case, Row, TinyLake, at, later, text

_TOTALS, _CHANGES, _SOLD = "gold_product_sales", "gold_product_sales_changes", "silver_sales_events"


def _merged(**offsets: int) -> str:
    """Return a `partitions` value with these last offsets; p0 is partition 0."""
    states = (
        f"{partition[1:]}, named_struct('total', 0BD, 'count', 0L, 'last_event_time', timestamp_millis(0), "
        f"'crossings', 0L, 'last_offset', {offset}L)"
        for partition, offset in offsets.items()
    )
    return f"map({', '.join(states)})"


def _sale(product: str, offset: int, value: str, partition: int = 0) -> Row:
    where = {"partition": str(partition), "offset": str(offset)}
    return {"product": text(product), "value": value, "event_time": at("11:50:00"), **where}


_STARTED_AGAIN: Row = {
    "product": text("p1"),
    "total": "0",
    "count": "0",
    "partitions": _merged(p0=3, p1=9),
    "made_anew": "false",
}
_SOLD_AND_RETURNED: Row = {
    "product": text("p2"),
    "total": "1500",
    "count": "2",
    "last_event_time": at("11:50:00"),
    "partitions": _merged(p0=5),
    "made_anew": "false",
}
_MADE_ANEW: Row = {
    "product": text("p6"),
    "total": "1500",
    "count": "2",
    "last_event_time": at("11:50:00"),
    "partitions": _merged(p0=8),
    "made_anew": "true",
}
_EVENTS = [
    _sale("p1", 2, "2500.5"),
    _sale("p1", 9, "-1", partition=1),
    _sale("p1", 3, "NULL"),
    _sale("p2", 4, "2000"),
    _sale("p2", 5, "-500"),
    _sale("p3", 6, "3000"),
    _sale("p6", 7, "-500"),
    _sale("p6", 8, "2000"),
]


def _update(row: Row, version: int, **before: str) -> list[Row]:
    """Return both change-feed rows of an update."""
    return [
        {**row, **before, "_change_type": text("update_preimage"), "_commit_version": str(version)},
        {**row, "_change_type": text("update_postimage"), "_commit_version": str(version)},
    ]


_UPDATES = [
    # a tombstone in a partition that had been merged up to the preceding sale
    *_update(_STARTED_AGAIN, 4, total="2500.5", count="1", partitions=_merged(p0=2, p1=9)),
    # a return
    *_update(_SOLD_AND_RETURNED, 5, total="2000", count="1", partitions=_merged(p0=4)),
    # an increase, a row made anew after the return was merged, and a total that was wrong for a while
    *_update({**_SOLD_AND_RETURNED, "total": "9"}, 6, total="8"),
    *_update(_MADE_ANEW, 7, total="2000"),
    *_update({**_SOLD_AND_RETURNED, "total": "1499"}, 8, total="1500"),
    *_update(_SOLD_AND_RETURNED, 9, total="1499"),
]


def _changed(**change: str) -> TinyLake:
    return {_TOTALS: [{**_STARTED_AGAIN, **change}, _SOLD_AND_RETURNED]}


_CROSSING: Row = {
    "product": text("p1"),
    "value": "2500.5",
    "crossing": "1",
    "event_time": at("11:50:00"),
    "partition": "0",
    "offset": "2",
}
_TO_THE_DIGIT = {**_CROSSING, "product": text("p2"), "value": "2000", "offset": "4"}
_NOT_MERGED_YET = {**_CROSSING, "product": text("p3"), "value": "3000", "offset": "6"}


def _notified(**change: str) -> TinyLake:
    return {"gold_sales_notifications": [_TO_THE_DIGIT, _NOT_MERGED_YET, {**_CROSSING, **change}]}


CASES = {
    "gold.product_sales": Case(
        good={
            _TOTALS: [_STARTED_AGAIN, _SOLD_AND_RETURNED, _MADE_ANEW],
            _CHANGES: _UPDATES,
            _SOLD: _EVENTS,
            "limits": [LIMITS],
        },
        bad={
            "keys are unique": {_TOTALS: [_SOLD_AND_RETURNED, _SOLD_AND_RETURNED]},
            "required columns have values": _changed(made_anew="NULL"),
            "sales counts are not negative": _changed(count="-1", last_event_time=at("11:50:00")),
            "last_event_time is null if and only if there are no sales": _changed(
                last_event_time=at("11:50:00")
            ),
            "products without sales have a total of zero": _changed(total="0.000000001"),
            "every product has an event in silver": {
                _TOTALS: [_STARTED_AGAIN, _SOLD_AND_RETURNED, {**_STARTED_AGAIN, "product": text("p4")}]
            },
            # Silver has the return, but the row already includes it, so it justifies no second decrease.
            "totals decrease only because of a tombstone or a return": {
                _CHANGES: [*_UPDATES, *_update(_SOLD_AND_RETURNED, 10, total="2000")]
            },
            "the newest row is recent": later(),
        },
    ),
    "gold.sales_notifications": Case(
        good={
            "gold_sales_notifications": [_TO_THE_DIGIT, _NOT_MERGED_YET, _CROSSING],
            _TOTALS: [_STARTED_AGAIN, _SOLD_AND_RETURNED],
            _SOLD: _EVENTS,
            "limits": [LIMITS],
        },
        bad={
            "keys are unique": {"gold_sales_notifications": [_CROSSING, _CROSSING]},
            "required columns have values": _notified(event_time="NULL"),
            "crossings are numbered from 1": _notified(crossing="0"),
            "totals have reached the threshold": _notified(value="1999.999999999"),
            "every notification has a sale in silver": _notified(offset="3"),
            "every product has a row in product_sales": {_TOTALS: [_SOLD_AND_RETURNED]},
            "the newest row is recent": later(),
        },
    ),
}
