"""The settings, and the validation of single values."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from lakehouse.common.paths import absolute, lake_address, of_tables
from lakehouse.settings.kafka import KafkaSettings
from lakehouse.settings.postgres_url import check_postgres_url
from lakehouse.settings.redis_url import parse_redis_url
from lakehouse.settings.s3 import S3Settings
from lakehouse.settings.schema_registry import SchemaRegistrySettings
from lakehouse.settings.web import WebSettings, listed

ENV_PREFIX = "LAKEHOUSE_"
_SHIFTS = {"k": 10, "m": 20, "g": 30}
_CENTURY_S = 36_525 * 24 * 3600


# Variables that Kubernetes sets in every container for a service named lakehouse or lakehouse-something.
_OF_KUBERNETES = re.compile(
    r"LAKEHOUSE(_\w+)?_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)


def _of_redis(url: SecretStr) -> SecretStr:
    """Raise ValueError for an invalid Redis URL; the message never quotes a password."""
    if url.get_secret_value():
        parse_redis_url(url.get_secret_value())
    return url


def _of_postgres(url: SecretStr) -> SecretStr:
    """Raise ValueError for a URL that libpq would misread; the message never quotes a password."""
    if url.get_secret_value():
        check_postgres_url(url.get_secret_value())
    return url


def _moment(given: object) -> object:
    """Parse an ISO 8601 date or time, in UTC unless it has an offset; pydantic would accept a number, too."""
    if isinstance(given, str):
        try:
            given = datetime.fromisoformat(given)
        except ValueError:
            given = None
    if isinstance(given, date) and not isinstance(given, datetime):
        given = datetime(given.year, given.month, given.day, tzinfo=UTC)
    if not isinstance(given, datetime):
        raise ValueError("it must be a date such as 2000-01-01, or a time such as 2000-01-01T00:00:00Z")  # noqa: TRY004
    return given.astimezone(UTC) if given.tzinfo else given.replace(tzinfo=UTC)


class Settings(KafkaSettings, SchemaRegistrySettings, S3Settings, WebSettings, BaseSettings):
    """All settings; names ending in `_s` are in seconds, in `_h` in hours. See docs/settings.md."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, extra="forbid", frozen=True)

    home: Annotated[Path, AfterValidator(of_tables)] = Field(
        default=Path(".lakehouse"),
        validate_default=True,
        description="Directory for the local services' data, logs and pid files, and by default the lake.",
    )
    server_home: Path | None = Field(
        default=None, description="Directory for the tokens, written only by the server. Default: HOME."
    )
    lake: Annotated[str, AfterValidator(lake_address)] = Field(
        default="",
        description="Root of the Delta tables: a directory, or any Hadoop path. Default: HOME/lake.",
    )
    lake_has_one_writer: bool = Field(
        default=False,
        description=(
            "Allows an S3 store without conditional writes. Only one application may then write; a lock "
            "in the lake ensures that."
        ),
    )
    metastore: str = Field(
        default="",
        pattern=r"^(thrift://[^/@\s,]+:\d{1,5}(,thrift://[^/@\s,]+:\d{1,5})*)?$",
        description=(
            "Hive metastore in which tables are registered: thrift://host:port; several, separated by commas."
        ),
    )
    redis_url: Annotated[SecretStr, AfterValidator(_of_redis)] = Field(
        default=SecretStr(""),
        description=(
            "URL of Redis: redis://, rediss:// (TLS), unix:// or redis+sentinel://. Default: the "
            "running local Redis, else redis://127.0.0.1:6379/0."
        ),
    )
    postgres_url: Annotated[SecretStr, AfterValidator(_of_postgres)] = Field(
        default=SecretStr(""),
        description=("postgresql:// URL (libpq) of a database to which gold is exported. Empty: none."),
    )
    kafka_port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="Port of the local broker; its controller takes the next free port. 0: any free ports.",
    )
    redis_port: int = Field(
        default=0, ge=0, le=65535, description="Port of the local Redis; 0: any free port."
    )
    only_streams: Annotated[tuple[str, ...], NoDecode, BeforeValidator(listed)] = Field(
        default=(),
        description=(
            "The streams to use, separated by commas. Default: those that tables [streams.NAME] declare, else "
            "the built-in ones; and those of installed packages."
        ),
    )
    streams: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="Tables [streams.NAME], each of which changes a known stream or declares another.",
    )
    topics: dict[str, str] = Field(
        default_factory=dict,
        description="Replacement names for topics, as {default name: replacement}; JSON in the environment.",
    )
    start: dict[str, str] = Field(
        default_factory=dict,
        description=(
            "Where to start reading topics, as {default name: earliest, latest, or a time}; JSON in the "
            "environment. Used only at a lake's first start."
        ),
    )
    unique_by: dict[str, str] = Field(
        default_factory=dict,
        description=(
            "The field, or header:NAME, that holds a record's id, as {topic's default name: field}; JSON in "
            "the environment. Repeated records then count once. See docs/ids.md."
        ),
    )
    sequence_by: dict[str, str] = Field(
        default_factory=dict,
        description=(
            "The field, or header:NAME, that holds an integer which increases with each correction, as "
            "{topic's default name: field}; JSON in the environment."
        ),
    )
    deletion_keys: dict[str, str] = Field(
        default_factory=dict,
        description=(
            "Key format of tombstones, whose key names the id to delete, as {topic's default name: text, "
            "json, json:FIELD, long, int, avro or avro:FIELD}; JSON in the environment. Default: text."
        ),
    )
    deleted_if: dict[str, str] = Field(
        default_factory=dict,
        description=(
            "Field value that marks a record as a deletion, as {topic's default name: FIELD=VALUE}, such as "
            "op=d; JSON in the environment."
        ),
    )
    topic_partitions: int = Field(default=4, ge=1, description="Partitions of topics that lakehouse creates.")

    allowed_lateness_s: int = Field(
        default=7 * 24 * 3600,
        ge=0,
        le=_CENTURY_S,
        description=(
            "How far a record's event time may be behind the latest one in its silver table. All producers "
            "share one watermark: if a producer lags by more, all its records are late."
        ),
    )
    grace_s: int = Field(
        default=60,
        ge=0,
        le=_CENTURY_S,
        description="How long a window's row stays provisional (not is_final) after its end, in event time.",
    )
    idle_after_s: int = Field(
        default=300,
        ge=1,
        le=_CENTURY_S,
        description="After this long without an event, the wall clock decides which windows are final.",
    )
    future_tolerance_s: int = Field(
        default=300,
        ge=0,
        le=_CENTURY_S,
        description="How far an event time may be ahead of the record's landing time.",
    )
    earliest_event_time: Annotated[datetime, BeforeValidator(_moment)] = Field(
        default=datetime(2000, 1, 1, tzinfo=UTC),
        ge=datetime(1900, 1, 1, tzinfo=UTC),
        le=datetime(2100, 1, 1, tzinfo=UTC),
        description="The earliest valid event time, a date or time in ISO 8601; earlier records are refused.",
    )
    quantile_k: int = Field(
        default=1600,
        ge=8,
        le=65535,
        description="Size (k) of the KLL quantile sketches; 1600: rank error 0.23 % at 99 % confidence.",
    )
    sales_threshold: Decimal = Field(
        default=Decimal(2000),
        gt=0,
        max_digits=38,
        decimal_places=9,
        description="Sales total of a product from which notifications are sent.",
    )
    sales_notify: Literal["crossing", "every_update"] = Field(
        default="crossing",
        description=(
            "When notifications are sent: each time a total reaches the threshold, or on every sale at "
            "or above it."
        ),
    )
    call_gap_s: int = Field(
        default=60,
        ge=0,
        le=_CENTURY_S,
        description="Longest gap between events of a call; events further apart belong to separate calls.",
    )
    call_grace_s: int = Field(
        default=180,
        ge=0,
        le=_CENTURY_S,
        description="How long a call waits for events after the gap, by the wall clock, before it closes.",
    )
    max_records_per_batch: int = Field(
        default=1_000_000, ge=1, description="Maximum number of Kafka records in a bronze micro-batch."
    )
    max_bytes_per_batch: str = Field(
        default="256m",
        pattern=r"^[0-9]+[kmg]?$",
        description=(
            "Approximate size of a micro-batch: in bronze, of the records in memory; in other layers, of "
            "the input files."
        ),
    )
    redis_ttl_s: int = Field(
        default=24 * 3600,
        ge=1,
        le=_CENTURY_S,
        description="How long a row stays in Redis after its last change.",
    )
    expect_fresh_s: int = Field(
        default=24 * 3600,
        ge=1,
        le=_CENTURY_S,
        description="Maximum age of a table's newest row; an expectation warns above it.",
    )
    expect_dead_letter_rate: float = Field(
        default=0.1,
        gt=0,
        le=1,
        description="Share of a topic's records above which open dead letters make an expectation warn.",
    )
    refused_limit: float = Field(
        default=0.05,
        ge=0,
        le=1,
        description=(
            "Maximum share of records that silver may refuse, checked from 1,000 records on. Above it, a run "
            "warns, and a catch-up run exits with 3. 1: no limit."
        ),
    )
    log_format: Literal["text", "json"] = Field(
        default="text", description="Log format of `lakehouse run`: text or JSON."
    )
    consumer_group: str = Field(
        default="lakehouse-bronze-{table}",
        description=(
            "Kafka consumer group to which bronze commits its progress; {table} stands for the table's name. "
            "Empty: none."
        ),
    )
    telemetry_port: int = Field(
        default=-1,
        ge=-1,
        le=65535,
        description="Port on which `lakehouse run` serves /metrics and /health; 0: any free port, -1: none.",
    )
    telemetry_host: str = Field(
        default="127.0.0.1",
        description="Address of /metrics and /health, for every process that serves them.",
    )
    lag_limit_s: int = Field(
        default=60,
        ge=1,
        le=_CENTURY_S,
        description="Longest time that a record may wait for a layer before its stream counts as behind.",
    )
    gate_interval_s: int = Field(
        default=30,
        ge=1,
        description="How often a live `lakehouse run all --gate` checks gold and exports it.",
    )

    maintain_every: str = Field(
        default="1 hour",
        pattern=r"^(never|[0-9]+(\.[0-9]+)? ?(s|seconds?|m|minutes?|h|hours?))$",
        description="How often a live run maintains its tables, as `lakehouse maintain` does; or never.",
    )
    file_target_mb: int = Field(
        default=32,
        ge=1,
        le=1024,
        description=(
            "Size of the data files that maintenance merges small ones into; in gold, 100,000 rows at most."
        ),
    )
    files_kept_h: int = Field(
        default=48,
        ge=1,
        description=(
            "How long data files of old versions are kept for readers, in hours. Files that a layer has not "
            "read, or that a refill of Redis needs, are kept longer."
        ),
    )
    log_kept_h: int = Field(
        default=48,
        ge=1,
        description=(
            "How long commits are kept in the tables' logs, in hours. Commits that a layer has not read "
            "are kept longer."
        ),
    )

    kept_days: dict[str, Annotated[int, Field(ge=1)]] = Field(
        default_factory=dict,
        description=(
            "How many days tables keep their rows, as {table: days}; JSON in the environment. Other "
            "tables keep all rows. See docs/maintenance.md."
        ),
    )

    emit: dict[str, Literal["changes", "final"]] = Field(
        default_factory=dict,
        description=(
            "Which row states of a gold table are exported, as {table: changes or final}; JSON in the "
            "environment. Other tables export what they declare."
        ),
    )
    dead_letter_topic: str = Field(
        default="",
        pattern=r"^[a-zA-Z0-9._-]{0,200}$",
        description="Additional topic for dead letters. Default: none.",
    )
    alerts: Annotated[Path, AfterValidator(absolute)] | None = Field(
        default=None,
        description="TOML file with the alerting rules. Default: lakehouse/operations/alerts/alerts.toml.",
    )
    alert_topic: str = Field(
        default="lakehouse-alerts",
        pattern=r"^[a-zA-Z0-9._-]{1,240}$",
        description="Topic for alerts; `lakehouse alert` keeps its state in the topic NAME-state.",
    )

    spark_master: str = Field(
        default="local[*]", description="Spark master for `lakehouse run`; for spark-submit, use --master."
    )
    spark_secret_file: Path | None = Field(
        default=None, description="File with the shared authentication secret of a standalone Spark cluster."
    )
    driver_memory: str = Field(
        default="3g", pattern=r"^[0-9]+[mg]$", description="Heap size of the Spark driver."
    )
    shuffle_partitions: int = Field(
        default=2, ge=1, description="Number of shuffle partitions; about the number of cores."
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Let the environment override the arguments, which are the configuration file's values."""
        del settings_cls, dotenv_settings, file_secret_settings
        environment: Any = env_settings
        environment.env_vars = {
            name: value
            for name, value in environment.env_vars.items()
            if not is_of_kubernetes(name.upper(), value or "")
        }
        return env_settings, init_settings

    @property
    def bytes_per_batch(self) -> int:
        """`max_bytes_per_batch` in bytes."""
        number, unit = self.max_bytes_per_batch.rstrip("kmg"), self.max_bytes_per_batch[-1]
        return int(number) << _SHIFTS.get(unit, 0)

    def topic(self, default_name: str) -> str:
        """Return the configured name of the topic with this default name."""
        return self.topics.get(default_name, default_name)


def is_of_kubernetes(name: str, value: str) -> bool:
    """Tell whether Kubernetes has set this variable, for a service whose name begins with lakehouse."""
    is_link = name.endswith("_PORT") and re.match(r"(tcp|udp|sctp)://", value)
    return bool(is_link or _OF_KUBERNETES.fullmatch(name))
