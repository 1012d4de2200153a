"""PostgreSQL as a store for gold rows. The PostgreSQL client is imported only if postgres.url is set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lakehouse.common.extras import needed
from lakehouse.settings import Settings
from lakehouse.sinks.port import Audited, Exported, Findings, Sink, SinkKind, Stored
from lakehouse.sinks.postgres import layout as postgres_layout
from lakehouse.streams.definition import MergedTable

_WHAT_FOR = "postgres.url"


def _require(settings: Settings) -> None:
    with needed("postgres", _WHAT_FOR):
        from lakehouse.sinks.postgres.statements import require_postgres
    require_postgres(settings.postgres.url.get_secret_value())


def _make(exported: Exported) -> Sink:
    with needed("postgres", _WHAT_FOR):
        from lakehouse.sinks.postgres.rows import ToPostgres
    return ToPostgres(exported)


def _audit(audited: Audited) -> Findings:
    with needed("postgres", _WHAT_FOR):
        from lakehouse.sinks.postgres.audit import compare
    return compare(audited)


def _doubts(settings: Settings) -> Sequence[str]:
    with needed("postgres", _WHAT_FOR):
        from lakehouse.sinks.postgres.client import doubts_of_postgres
    return doubts_of_postgres(settings.postgres.url.get_secret_value())


def _try_row(table: MergedTable, settings: Settings) -> None:
    with needed("postgres", _WHAT_FOR):
        from lakehouse.sinks.postgres.statements import Sql, try_row
    try_row(settings.postgres.url.get_secret_value(), Sql(table))


def _contents(settings: Settings) -> Iterator[Stored]:
    with needed("postgres", _WHAT_FOR):
        from lakehouse.sinks.postgres.contents import contents
    return contents(settings.postgres.url.get_secret_value())


KIND = SinkKind(
    postgres_layout.NAME,
    postgres_layout.LABEL,
    is_set=lambda settings: bool(settings.postgres.url.get_secret_value()),
    require=_require,
    make=_make,
    audit=_audit,
    doubts=_doubts,
    own=postgres_layout.line_of,
    unfit=postgres_layout.unfit,
    try_row=_try_row,
    contents=_contents,
)
