"""Audit Redis: every row that changed in gold within the time to live must be in Redis, unchanged.

Rows are compared at the gold version up to which the export has sent. A row is in flight if Redis has a newer
version, or if gold has since deleted the row. A row deleted before the export began can be missing from
Redis. Redis can contain a row that is not in gold, but only if the row is older than the time to live, or
belongs to an earlier table with the same name. Such rows expire. A row of a newer table with the same name,
such as a different lake's table, blocks this lake's row and is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property, partial

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse.sinks.change import Change, next_chunk
from lakehouse.sinks.outgoing import changes_of, filter_newest, group_of, leaves, outgoing
from lakehouse.sinks.port import Audited, Example, Findings
from lakehouse.sinks.redis.rows import STAMP, as_stored, read_latest, read_rows, scan_latest, scan_rows
from lakehouse.storage import tables
from lakehouse.storage.spark.collecting import streamed
from lakehouse.storage.spark.query_errors import are_files_gone
from lakehouse.streams.definition import MergedTable

_Read = Callable[[Sequence[Change]], list[str | None]]

_CHUNK = 1_000
_EXAMPLES = 20
_MARGIN = timedelta(minutes=1)


def compare(audited: Audited) -> Findings:
    """Compare a gold table with its rows in Redis."""
    exported, version = audited.exported, audited.version
    spark, path, table, settings = exported.spark, exported.path, exported.table, exported.settings
    since = audited.now - timedelta(seconds=settings.redis.ttl_s) + _MARGIN
    notes, not_compared = [f"version {version} of gold"], list[str]()
    first = tables.first_version(spark, path)
    if first and tables.committed_at(spark, path, first) > since:
        not_compared.append(
            f"gold's log begins at version {first}: rows changed before that, even within the time to "
            "live, are not compared. Set maintenance.keep_versions to more than redis.ttl"
        )
    generation, url = exported.generation, settings.redis.url.get_secret_value()

    def looked(since: datetime) -> _Look:
        changes = partial(tables.read_changes_since, spark, path, since)
        newest = filter_newest(changes().where(F.col("_commit_version") <= version), table).persist()
        try:
            look = _Look(changes, newest, table, generation, version, url)
            look.at_what_gold_has()
            look.at_what_gold_has_not()
            look.at_latest(audited.rows_at(version))
        finally:
            newest.unpersist()
        return look

    try:
        look = looked(since)
    except (PySparkException, Py4JError) as error:
        if not are_files_gone(error):
            raise
        since = tables.readable_since(spark, path, since)
        not_compared.append(
            f"changes before {since:%F %T} UTC are not compared: VACUUM has removed them. Set "
            "maintenance.keep_versions to more than redis.ttl"
        )
        look = looked(since)
    return Findings(look.compared, look.differences, look.examples, notes, not_compared)


@dataclass
class _Look:
    """A comparison of Redis with `newest`, the latest change to each row of a table as of `version`.

    `changes` reads all changes to the table, including those after `version`.
    """

    changes: Callable[[], DataFrame]
    newest: DataFrame
    table: MergedTable
    generation: int
    version: int
    url: str
    compared: int = 0
    differences: int = 0
    examples: list[Example] = field(default_factory=list)

    def at_what_gold_has(self) -> None:
        exported = self.newest.where(leaves(self.table))
        for change, text in self._wrong(exported, self._read_rows):
            self._add(change.row_key, "in gold, but not in Redis" if text is None else self._said(text))

    def at_what_gold_has_not(self) -> None:
        keys = streamed(self.newest.select(self.table.export.redis.row_key()))
        known = {str(key) for (key,) in keys}
        (oldest,) = self.newest.agg(F.min("_commit_version")).collect()[0]
        end = self.version + 1
        compared = range(end if oldest is None else oldest, end)
        for row, text in scan_rows(self.url, self.table.name):
            if row not in known and self._is_invented(text, compared):
                self._add(row, self._not_in_gold(text))

    def at_latest(self, gold: DataFrame) -> None:
        """Compare the latest row of every group member. `gold` contains the table's rows as of the version.

        A reopened call can be in Redis in its former state. If the latest row has not changed within the time
        to live, Redis can contain no row or a different row.
        """
        keys, view = list(self.table.keys), self.table.export.redis
        names = group_of(self.table).alias("group"), view.member().alias("member")
        changed = self.newest.where("_change_type != 'delete'").select(*keys, "_commit_version")
        standing = gold.where(self.table.export.export_when()).join(changed, keys, "left")
        row, place = F.struct(*keys, "_commit_version"), F.struct(view.order(), "_commit_version")
        latest = standing.groupBy(*names).agg(F.max_by(row, place).alias("latest")).persist()
        try:
            expected = latest.select("latest.*").where(F.col("_commit_version").isNotNull())
            exported = self.newest.join(expected, [*keys, "_commit_version"], "left_semi")
            wrong = list(self._wrong(exported, self._read_latest))
            waiting = self._waiting(gold, {(change.group, change.member) for change, _ in wrong})
            for change, text in wrong:
                if text is not None and text in waiting.get((change.group, change.member), ()):
                    continue
                gold_has = f"gold has {change.row_key}"
                what = f"not in Redis; {gold_has}" if text is None else f"{gold_has}, {self._said(text)}"
                self._add_latest(change.group, change.member, what)
            heard_of = latest.select("group", "member").union(self.newest.select(*names)).distinct()
            known = {(one.group, one.member) for one in streamed(heard_of)}
        finally:
            latest.unpersist()
        for place_of, text in scan_latest(self.url, self.table.name):
            if place_of not in known and self._is_invented(text, range(self.version + 1)):
                self._add_latest(*place_of, self._not_in_gold(text))

    def _waiting(
        self, gold: DataFrame, members: Collection[tuple[str, str]]
    ) -> Mapping[tuple[str, str], set[str | None]]:
        """Return the texts in Redis of gold rows not exported in their current state, keyed by group member.

        A closed call that receives another event remains unchanged in Redis until it closes again.
        """
        found = dict[tuple[str, str], set[str | None]]()
        if not members:
            return found
        view, leaves = self.table.export.redis, F.coalesce(self.table.export.export_when(), F.lit(False))
        names = group_of(self.table).alias("group"), view.member().alias("member")
        staying = gold.where(~leaves).select(*names, view.row_key().alias("row"))
        rows = [one for one in streamed(staying) if (one.group, one.member) in members]
        texts = read_rows(self.url, self.table.name, [one.row for one in rows])
        for one, text in zip(rows, texts, strict=True):
            found.setdefault((one.group, one.member), set()).add(text)
        return found

    @cached_property
    def _gone(self) -> Collection[str]:
        """The keys of rows deleted from gold after the version. Filling Redis does not write these rows."""
        since = self.changes().where(F.col("_commit_version") > self.version)
        gone = filter_newest(since, self.table).where("_change_type = 'delete'")
        rows = gone.select(self.table.export.redis.row_key().alias("row"))
        return {str(row.row) for row in streamed(rows)}

    def _wrong(self, exported: DataFrame, read: _Read) -> Iterator[tuple[Change, str | None]]:
        """Yield the rows that differ in Redis, each with Redis's text. Newer rows in Redis are in flight."""
        with outgoing(exported, changes_of(self.table)) as rows:
            changes = rows.in_parts()
            while chunk := next_chunk(changes, _CHUNK):
                self.compared += len(chunk)
                for change, text in zip(chunk, read(chunk), strict=True):
                    if not self._is_right(change, text) and change.row_key not in self._gone:
                        yield change, text

    def _is_right(self, change: Change, text: str | None) -> bool:
        if text is None:
            return change.value is None
        return text == as_stored(change, self.generation) or self._is_newer(text, change.version)

    def _read_rows(self, changes: Sequence[Change]) -> list[str | None]:
        return read_rows(self.url, self.table.name, [one.row_key for one in changes])

    def _read_latest(self, changes: Sequence[Change]) -> list[str | None]:
        return read_latest(self.url, self.table.name, [(one.group, one.member) for one in changes])

    def _add_latest(self, group: str, member: str, what: str) -> None:
        self._add(f"latest:{group} {member}", what)

    def _add(self, row: str, what: str) -> None:
        self.differences += 1
        if len(self.examples) < _EXAMPLES:
            self.examples.append(({"row": row}, what))

    def _is_newer(self, text: str, version: int) -> bool:
        stamp = _stamp(text)
        return stamp is not None and stamp[0] == self.generation and stamp[1] > version

    def _is_invented(self, text: str, compared: range) -> bool:
        stamp = _stamp(text)
        return (
            stamp is None
            or (stamp[0] == self.generation and stamp[1] in compared)
            or self._is_of_another(text)
        )

    def _is_of_another(self, text: str) -> bool:
        stamp = _stamp(text)
        return stamp is not None and stamp[0] > self.generation

    def _not_in_gold(self, text: str) -> str:
        return self._said(text) if self._is_of_another(text) else "in Redis, but not in gold"

    def _said(self, text: str) -> str:
        made = "Redis has the row of a newer table from another lake, which blocks this row: "
        return f"{made if self._is_of_another(text) else 'Redis has '}{text}"


def _stamp(text: str) -> tuple[int, int] | None:
    """Return the generation and version from a row's text in Redis, or None if the text contains none."""
    found = STAMP.search(text)
    return None if found is None else (int(found[1]), int(found[2]))
