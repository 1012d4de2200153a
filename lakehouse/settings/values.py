"""What a user can choose, and the checks of single values."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from lakehouse.paths import absolute, lake_address, of_tables
from lakehouse.settings.kafka import KafkaSettings
from lakehouse.settings.postgres_url import check_postgres_url
from lakehouse.settings.redis_url import parse_redis_url
from lakehouse.settings.s3 import S3Settings
from lakehouse.settings.schema_registry import SchemaRegistrySettings
from lakehouse.settings.web import WebSettings, listed

ENV_PREFIX = "LAKEHOUSE_"
_SHIFTS = {"k": 10, "m": 20, "g": 30}
_CENTURY_S = 36_525 * 24 * 3600


# What Kubernetes sets in every container for a service called lakehouse or lakehouse-something.
_OF_KUBERNETES = re.compile(
    r"LAKEHOUSE(_\w+)?_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)


def _of_redis(url: SecretStr) -> SecretStr:
    """Refuse a URL that does not lead to a Redis, or has an unknown option, without quoting a password."""
    if url.get_secret_value():
        parse_redis_url(url.get_secret_value())
    return url


def _of_postgres(url: SecretStr) -> SecretStr:
    """Refuse a URL that libpq would misread, without quoting a password."""
    if url.get_secret_value():
        check_postgres_url(url.get_secret_value())
    return url


def _moment(given: object) -> object:
    """Read a date or a time of ISO 8601, of UTC if it has no offset; a number would be taken for seconds."""
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
    """What a user can choose. Times are in seconds (`_s`); see docs/settings.md."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, extra="forbid", frozen=True)

    home: Annotated[Path, AfterValidator(of_tables)] = Field(
        default=Path(".lakehouse"),
        validate_default=True,
        description="Directory of the local services' data, logs and pid files, and by default of the lake.",
    )
    server_home: Path | None = Field(
        default=None, description="Directory that only the server writes, with its tokens. Default: HOME."
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
            "thrift://host:port of the Hive metastore where tables get names; several, separated by commas."
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
        description=(
            "postgresql:// URL, as libpq knows it, of a database to which gold is exported. Empty: none."
        ),
    )
    kafka_port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="Port of the local broker, whose controller takes the next free one; 0 takes free ones.",
    )
    redis_port: int = Field(
        default=0, ge=0, le=65535, description="Port of the local Redis; 0 takes a free one."
    )
    streams: Annotated[tuple[str, ...], NoDecode, BeforeValidator(listed)] = Field(
        default=(),
        description=(
            "The streams to use, by name or as module:OBJECT, separated by commas. Default: those of "
            "lakehouse and of installed packages."
        ),
    )
    topics: dict[str, str] = Field(
        default_factory=dict,
        description="Other names of topics, as {default: other}; JSON in the environment.",
    )
    start: dict[str, str] = Field(
        default_factory=dict,
        description=(
            "Where to begin reading topics, as {default name: earliest, latest, or a time}; JSON in the "
            "environment. Only the first start of a lake uses it."
        ),
    )
    unique_by: dict[str, str] = Field(
        default_factory=dict,
        description=(
            "The field, or header:NAME, with a record's id, as {topic's default name: field}; JSON in the "
            "environment. Repeated records then count once. See docs/ids.md."
        ),
    )
    sequence_by: dict[str, str] = Field(
        default_factory=dict,
        description=(
            "The field, or header:NAME, with a whole number that grows with each correction, as "
            "{topic's default name: field}; JSON in the environment."
        ),
    )
    deletion_keys: dict[str, str] = Field(
        default_factory=dict,
        description=(
            "How the key of a record that deletes its id is written, as {topic's default name: text, json, "
            "json:FIELD, long, int, avro or avro:FIELD}; JSON in the environment. Default: text."
        ),
    )
    deleted_if: dict[str, str] = Field(
        default_factory=dict,
        description=(
            "What marks a record with a value as a deletion, as {topic's default name: FIELD=VALUE}, such as "
            "op=d; JSON in the environment."
        ),
    )
    topic_partitions: int = Field(default=4, ge=1, description="Partitions of topics that lakehouse creates.")

    allowed_lateness_s: int = Field(
        default=7 * 24 * 3600,
        ge=0,
        le=_CENTURY_S,
        description=(
            "How far a record's event time may be behind the greatest one of its silver table. One "
            "watermark serves all producers: if a producer lags by more, all its records are late."
        ),
    )
    grace_s: int = Field(
        default=60,
        ge=0,
        le=_CENTURY_S,
        description="How long after a window's end, in event time, its row stays provisional (not is_final).",
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
        description="Size of the KLL sketches; 1600: rank error 0.23 % in 99 of 100 cases.",
    )
    sales_threshold: Decimal = Field(
        default=Decimal(2000),
        gt=0,
        max_digits=38,
        decimal_places=9,
        description="The total of a product's sales from which notifications are sent.",
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
        description="The longest gap between events of a call; events further apart are two calls.",
    )
    call_grace_s: int = Field(
        default=180,
        ge=0,
        le=_CENTURY_S,
        description="How long after the gap, by the wall clock, a call waits for events before it closes.",
    )
    max_records_per_batch: int = Field(
        default=1_000_000, ge=1, description="The most Kafka records in a bronze micro-batch."
    )
    max_bytes_per_batch: str = Field(
        default="256m",
        pattern=r"^[0-9]+[kmg]?$",
        description=(
            "Approximate size of a micro-batch: in bronze of its records in memory, in other layers of "
            "its files."
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
        description="How old the newest row of a table may be before an expectation warns.",
    )
    expect_dead_letter_rate: float = Field(
        default=0.1,
        gt=0,
        le=1,
        description="Share of a topic's records that may be open dead letters before an expectation warns.",
    )
    refused_limit: float = Field(
        default=0.05,
        ge=0,
        le=1,
        description=(
            "Share of at least 1,000 records that silver may refuse. Above it, a run warns, and one that "
            "catches up exits with 3. 1: any share."
        ),
    )
    log_format: Literal["text", "json"] = Field(
        default="text", description="Format of the lines of `lakehouse run`: text or JSON."
    )
    consumer_group: str = Field(
        default="lakehouse-bronze-{table}",
        description=(
            "Kafka consumer group that shows bronze's progress; {table} is replaced by the table. "
            "Empty: none."
        ),
    )
    telemetry_port: int = Field(
        default=-1,
        ge=-1,
        le=65535,
        description="Port at which `lakehouse run` serves /metrics and /health; 0: a free one, -1: none.",
    )
    telemetry_host: str = Field(
        default="127.0.0.1",
        description="Address of /metrics and /health, for every process that serves them.",
    )
    lag_limit_s: int = Field(
        default=60,
        ge=1,
        le=_CENTURY_S,
        description="How long a record may wait for a layer before the stream counts as behind.",
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
            "How long files of old versions are kept for readers, in hours. Files that a layer has not "
            "read, or that refill Redis, are kept longer."
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
            "Which states of a gold table's rows are exported, as {table: changes or final}; JSON in the "
            "environment. A table that is not named sends what it declares."
        ),
    )
    dead_letter_topic: str = Field(
        default="",
        pattern=r"^[a-zA-Z0-9._-]{0,200}$",
        description="Additional topic for dead letters. Default: none.",
    )
    alerts: Annotated[Path, AfterValidator(absolute)] | None = Field(
        default=None,
        description="TOML file with the rules of `lakehouse alert`. Default: lakehouse/alerts/alerts.toml.",
    )
    alert_topic: str = Field(
        default="lakehouse-alerts",
        pattern=r"^[a-zA-Z0-9._-]{1,240}$",
        description="Topic of `lakehouse alert`. Its state is in the topic of this name plus -state.",
    )

    spark_master: str = Field(
        default="local[*]", description="Spark master of `lakehouse run`; spark-submit has --master."
    )
    spark_secret_file: Path | None = Field(
        default=None, description="File with the secret that the processes of a standalone cluster share."
    )
    driver_memory: str = Field(default="3g", pattern=r"^[0-9]+[mg]$", description="Heap of the Spark driver.")
    shuffle_partitions: int = Field(
        default=2, ge=1, description="Partitions of a shuffle; about the number of cores."
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
        """Let the environment override what `load_settings` passes in, which is the file."""
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
        """What `max_bytes_per_batch` says, in bytes."""
        number, unit = self.max_bytes_per_batch.rstrip("kmg"), self.max_bytes_per_batch[-1]
        return int(number) << _SHIFTS.get(unit, 0)

    def topic(self, default_name: str) -> str:
        """Return the topic that replaces a stream's default topic name."""
        return self.topics.get(default_name, default_name)


def is_of_kubernetes(name: str, value: str) -> bool:
    """Whether Kubernetes has set this variable, for a service whose name begins with lakehouse."""
    is_link = name.endswith("_PORT") and re.match(r"(tcp|udp|sctp)://", value)
    return bool(is_link or _OF_KUBERNETES.fullmatch(name))
