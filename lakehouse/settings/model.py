"""The model for all settings, with a class for each section."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, SecretStr

from lakehouse.common.paths import lake_address, of_tables
from lakehouse.settings.alerts import AlertsSettings
from lakehouse.settings.fields import CENTURY_S, Duration, DurationOrNever, Moment, Names, Section, Size
from lakehouse.settings.kafka import KafkaSettings
from lakehouse.settings.postgres_url import check_postgres_url
from lakehouse.settings.redis_url import parse_redis_url
from lakehouse.settings.s3 import S3Settings
from lakehouse.settings.schema_registry import SchemaRegistrySettings

_DAY_S = 24 * 3600
_MB = 1 << 20


def _of_redis(url: SecretStr) -> SecretStr:
    """Raise ValueError for an invalid Redis URL. The message never quotes a password."""
    if url.get_secret_value():
        parse_redis_url(url.get_secret_value())
    return url


def _of_postgres(url: SecretStr) -> SecretStr:
    """Raise ValueError for a URL that libpq would misread. The message never quotes a password."""
    if url.get_secret_value():
        check_postgres_url(url.get_secret_value())
    return url


class RedisSettings(Section):
    """The `redis` section: the URL, and how long rows stay in Redis."""

    url: Annotated[SecretStr, AfterValidator(_of_redis)] = Field(
        default=SecretStr(""),
        description=(
            "Redis URL: redis://, rediss:// (TLS), unix:// or redis+sentinel://. Default: the local "
            "Redis if running, else redis://127.0.0.1:6379/0."
        ),
    )
    ttl_s: Duration = Field(
        default=_DAY_S,
        alias="ttl",
        ge=1,
        le=CENTURY_S,
        description="How long a row stays in Redis after its last change.",
    )


class PostgresSettings(Section):
    """The `postgres` section: the database to which gold is exported."""

    url: Annotated[SecretStr, AfterValidator(_of_postgres)] = Field(
        default=SecretStr(""),
        description="postgresql:// URL (libpq) of the database to export gold to. Empty: no export.",
    )


class SparkSettings(Section):
    """The `spark` section: the master, and the session's resources."""

    master: str = Field(
        default="local[*]", description="Spark master for `lakehouse run`; for spark-submit, use --master."
    )
    secret_file: Path | None = Field(
        default=None, description="File containing the shared secret of a standalone Spark cluster."
    )
    driver_memory: str = Field(
        default="3g", pattern=r"^[0-9]+[mg]$", description="Heap size of the Spark driver."
    )
    shuffle_partitions: int = Field(
        default=2, ge=1, description="Number of shuffle partitions: about one per core."
    )


class RunSettings(Section):
    """The `run` section: batch sizes, the limit for refused records, and the log format."""

    max_records: int = Field(
        default=1_000_000, ge=1, description="Maximum number of Kafka records in a bronze micro-batch."
    )
    max_bytes: Size = Field(
        default=256 * _MB,
        description=(
            "Approximate size of a micro-batch: for bronze, the size of its records in memory; for the other "
            "layers, the size of its input files."
        ),
    )
    refused_limit: float = Field(
        default=0.05,
        ge=0,
        le=1,
        description=(
            "Maximum fraction of records that silver may refuse, checked after 1,000 records. Above it, a "
            "run warns, and a catch-up run also exits with status 3. 1: no limit."
        ),
    )
    log_format: Literal["text", "json"] = Field(
        default="text", description="Log format of `lakehouse run`: text or JSON."
    )


class TelemetrySettings(Section):
    """The `telemetry` section: where /metrics and /health are served, and when a stream counts as behind."""

    port: int = Field(
        default=-1,
        ge=-1,
        le=65535,
        description="Port on which `lakehouse run` serves /metrics and /health. 0: any free port; -1: none.",
    )
    host: str = Field(
        default="127.0.0.1",
        description="Address on which every process serves /metrics and /health.",
    )
    lag_limit_s: Duration = Field(
        default=60,
        alias="lag_limit",
        ge=1,
        le=CENTURY_S,
        description="How long a record can wait for a layer before its stream counts as behind.",
    )


class MaintenanceSettings(Section):
    """The `maintenance` section: the schedule, file sizes and retention."""

    every_s: DurationOrNever = Field(
        default=3600,
        alias="every",
        description="How often a live run maintains its tables, as `lakehouse maintain` does, or `never`.",
    )
    file_size_bytes: Size = Field(
        default=32 * _MB,
        alias="file_size",
        ge=_MB,
        le=1024 * _MB,
        description=(
            "Size of the data files into which maintenance merges small files; in gold, at most 100,000 rows."
        ),
    )
    keep_versions_s: Duration = Field(
        default=2 * _DAY_S,
        alias="keep_versions",
        ge=3600,
        le=CENTURY_S,
        description=(
            "How long old table versions (data files and commits) are kept. Versions that a layer has not "
            "read yet, or that a Redis refill needs, are kept longer."
        ),
    )
    keep_rows_s: dict[str, Annotated[Duration, Field(ge=_DAY_S, multiple_of=_DAY_S)]] = Field(
        default_factory=dict,
        alias="keep_rows",
        description=(
            "How long each listed table keeps its rows, in whole days. Other tables keep all rows. See "
            "docs/maintenance.md."
        ),
    )


class StreamDefaults(Section):
    """The `stream_defaults` section: defaults for every stream."""

    allowed_lateness_s: Duration = Field(
        default=7 * _DAY_S,
        alias="allowed_lateness",
        ge=0,
        le=CENTURY_S,
        description=(
            "How far a record's event time may lag behind the latest event time in its silver table. All "
            "producers share one watermark: if a producer lags further behind, all its records are late."
        ),
    )
    future_tolerance_s: Duration = Field(
        default=300,
        alias="future_tolerance",
        ge=0,
        le=CENTURY_S,
        description="How far an event time may be ahead of the record's landing time.",
    )
    earliest_event_time: Moment = Field(
        default=datetime(2000, 1, 1, tzinfo=UTC),
        ge=datetime(1900, 1, 1, tzinfo=UTC),
        le=datetime(2100, 1, 1, tzinfo=UTC),
        description="Earliest valid event time, as an ISO 8601 date or time. Earlier records are refused.",
    )


class Settings(Section):
    """All settings. Names in code include units (`redis.ttl_s`), unlike the keys (docs/settings.md)."""

    home: Annotated[Path, AfterValidator(of_tables)] = Field(
        default=Path(".lakehouse"),
        validate_default=True,
        description="Directory for the local services' data, logs and pid files and, by default, the lake.",
    )
    server_home: Path | None = Field(
        default=None,
        description="Directory for the server's tokens. Only the server writes to it. Default: home.",
    )
    lake: Annotated[str, AfterValidator(lake_address)] = Field(
        default="",
        description="Root of the Delta tables: a directory, or any Hadoop path. Default: `lake` in home.",
    )
    metastore: str = Field(
        default="",
        pattern=r"^(thrift://[^/@\s,]+:\d{1,5}(,thrift://[^/@\s,]+:\d{1,5})*)?$",
        description=(
            "Hive metastore in which tables are registered: one or more thrift://host:port, comma-separated."
        ),
    )
    only_streams: Names = Field(
        default=(),
        description=(
            "Streams to use, separated by commas. Default: the streams declared in [streams.NAME] (if there "
            "are none, the built-in streams), and the streams from installed packages."
        ),
    )
    http_hosts: Names = Field(
        default=(),
        description=(
            "Other hosts allowed in http:// URLs, separated by commas. Passwords and data are sent to them "
            "unencrypted. Default: only this machine."
        ),
    )
    kafka: KafkaSettings = KafkaSettings()
    schema_registry: SchemaRegistrySettings = SchemaRegistrySettings()
    s3: S3Settings = S3Settings()
    redis: RedisSettings = RedisSettings()
    postgres: PostgresSettings = PostgresSettings()
    spark: SparkSettings = SparkSettings()
    run: RunSettings = RunSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    maintenance: MaintenanceSettings = MaintenanceSettings()
    stream_defaults: StreamDefaults = StreamDefaults()
    alerts: AlertsSettings = AlertsSettings()
    streams: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description=(
            "Streams, keyed by name: each table [streams.NAME] changes a known stream or declares a new one."
        ),
    )

    sinks: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description=(
            "Sinks from installed packages, keyed by name: each table [sinks.NAME] enables a sink, and "
            "contains the keys that its package documents."
        ),
    )

    topics: dict[str, str] = Field(
        default_factory=dict,
        description="Replacement names for topics, keyed by default name. In the environment: a JSON object.",
    )

    def topic(self, default_name: str) -> str:
        """Return the configured name of the topic with this default name."""
        return self.topics.get(default_name, default_name)

    def changed(self, update: Mapping[str, Any]) -> Self:
        """Return a copy with some settings' values replaced. `update` is keyed by names such as redis.ttl_s.

        Values are not validated. Raises KeyError for an unknown name.
        """
        by_section: dict[str, dict[str, Any]] = {}
        for name, value in update.items():
            section, _, field = name.rpartition(".")
            model = getattr(self, section, None) if section else self
            if not isinstance(model, Section) or field not in type(model).model_fields:
                raise KeyError(name)
            by_section.setdefault(section, {})[field] = value
        whole = by_section.pop("", {})
        sections = {
            name: getattr(self, name).model_copy(update=values) for name, values in by_section.items()
        }
        return self.model_copy(update=whole | sections)
