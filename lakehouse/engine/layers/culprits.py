"""Bisect a micro-batch to find the records that make a step fail.

The search ends after ten results or 200 tries. A result is a single record, or a range of records that fail
only together, so that neither half fails alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame

from lakehouse.common.errors import LakehouseError
from lakehouse.engine.layers.step import Blamed
from lakehouse.engine.records.validation import SKIPPED
from lakehouse.storage.spark.offset_ranges import OffsetRange, ranges_of, within

MOST_FOUND = 10
MOST_TRIES = 200


def blamed(rows: DataFrame, judged: Callable[[DataFrame], DataFrame]) -> Blamed | None:
    """Return the bronze rows that cannot be validated, or None if there are none or bronze cannot be read.

    Raises LakehouseError if validation needs a service that is unavailable, such as a schema registry.
    """

    def fails(some: DataFrame) -> bool:
        return not _works(lambda: _read(judged(some)))

    if not _works(lambda: _read(rows)):
        return None
    found = culprits(rows, fails)
    if not found or not _works(lambda: _read(rows)):  # storage may have become unavailable
        return None
    places = [str(one) for one in found]
    what = "the record at" if len(found) == 1 and found[0].first == found[0].last else "the records at"
    more = ", and possibly more" if len(found) >= MOST_FOUND else ""
    skips = " ".join(f"--skip {place}" for place in places)
    way_out = (
        f"If this persists, `lakehouse run silver {skips} --trigger available-now` turns such records into "
        f"dead letters ({SKIPPED}) and continues; `lakehouse dead-letters replay --rule {SKIPPED}` retries "
        "them"
    )
    return Blamed(f"{what} {', '.join(places)}{more}", way_out)


def culprits(rows: DataFrame, fails: Callable[[DataFrame], bool]) -> list[OffsetRange]:
    """Return the sorted Kafka offsets of the rows that make `fails` true, or an empty list if no row does.

    `rows` must include the Kafka coordinates and be safe to read more than once. `fails` returns whether
    processing a subset of these rows fails. If even an empty subset fails, the rows are not the cause.
    """
    if fails(rows.limit(0)):
        return []
    search = _Search(rows, fails)
    for one in ranges_of(rows):
        search.look_at(one)
    return search.found


@dataclass
class _Search:
    rows: DataFrame
    fails: Callable[[DataFrame], bool]
    found: list[OffsetRange] = field(default_factory=list)
    tries: int = 0

    def look_at(self, one: OffsetRange) -> bool:
        """Search a range for culprits. Return whether the range contains a culprit, or could contain one."""
        if len(self.found) >= MOST_FOUND or self.tries >= MOST_TRIES:
            return True
        self.tries += 1
        if not self.fails(self.rows.where(within([one]))):
            return False
        if one.first == one.last:
            self.found.append(one)
            return True
        middle = (one.first + one.last) // 2
        before = self.look_at(replace(one, last=middle))
        after = self.look_at(replace(one, first=middle + 1))
        if not before and not after:
            self.found.append(one)
        return True


def _works(attempt: Callable[[], None]) -> bool:
    try:
        attempt()
    except LakehouseError:
        raise
    except Exception:  # noqa: BLE001 - building a decoder may raise anything
        return False
    return True


def _read(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()
