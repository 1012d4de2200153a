"""PostgreSQL, as a store that gold can be exported to: its client is imported where an address is set."""

from __future__ import annotations

from pyspark.sql import Column

from lakehouse.extras import needed
from lakehouse.settings import Settings
from lakehouse.sinks.port import Audited, Exported, Findings, Promise, Sink, SinkKind
from lakehouse.stream import MergedTable

NAME, LABEL = "postgres", "PostgreSQL"
_WHAT_FOR = "LAKEHOUSE_POSTGRES_URL"


def _require(settings: Settings) -> None:
    with needed("postgres", _WHAT_FOR):
        from lakehouse.sinks.postgres_client import require_postgres
    require_postgres(settings.postgres_url.get_secret_value())


def _make(exported: Exported) -> Sink:
    with needed("postgres", _WHAT_FOR):
        from lakehouse.sinks.postgres import ToPostgres
    return ToPostgres(exported)


def _audit(audited: Audited) -> Findings:
    with needed("postgres", _WHAT_FOR):
        from lakehouse.sinks.audit_postgres import compare
    return compare(audited)


def _own(table: MergedTable) -> Column:
    with needed("postgres", _WHAT_FOR):
        from lakehouse.sinks.postgres_sql import line_of
    return line_of(table)


KIND = SinkKind(
    NAME,
    LABEL,
    Promise.EXACTLY_ONCE,
    is_set=lambda settings: bool(settings.postgres_url.get_secret_value()),
    require=_require,
    make=_make,
    audit=_audit,
    own=_own,
)
