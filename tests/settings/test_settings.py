"""Settings: where a value comes from, and how each mistake is named."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from lakehouse.common.errors import SettingsError
from lakehouse.settings import load_settings, services_file
from lakehouse.settings.keys import all_keys
from lakehouse.settings.wording import EXAMPLES
from lakehouse.streams.registry import load, read_settings
from tests.support.settings import nothing_set


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty directory, in an environment that sets nothing."""
    return nothing_set(tmp_path, monkeypatch)


def write_toml(directory: Path, text: str, name: str = "lakehouse.toml") -> Path:
    path = directory / name
    path.write_text(text, encoding="utf-8")
    return path


def write_services(home: Path, **endpoints: str) -> None:
    home.mkdir(parents=True, exist_ok=True)
    entries = {name: {"endpoint": endpoint, "pid": 1} for name, endpoint in endpoints.items()}
    services_file(home).write_text(json.dumps(entries), encoding="utf-8")


def test_without_anything_the_defaults_hold(directory: Path) -> None:
    settings = load_settings()

    assert settings.home == directory / ".lakehouse"
    assert settings.lake == str(directory / ".lakehouse" / "lake")
    assert settings.kafka.bootstrap_servers == "127.0.0.1:9092"
    assert settings.redis.url.get_secret_value() == "redis://127.0.0.1:6379/0"
    assert settings.stream_defaults.allowed_lateness_s == 7 * 24 * 3600
    assert settings.stream_defaults.future_tolerance_s == 300
    assert settings.stream_defaults.earliest_event_time == datetime(2000, 1, 1, tzinfo=UTC)
    assert settings.topics == {}


def test_the_environment_goes_over_the_file_and_the_file_over_the_defaults(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_toml(
        directory, "run.max_records = 5\nspark.shuffle_partitions = 4\n[topics]\nmetrics-events = 'one'"
    )
    monkeypatch.setenv("LAKEHOUSE_RUN_MAX_RECORDS", "7")

    settings = load_settings()

    assert (settings.run.max_records, settings.spark.shuffle_partitions) == (7, 4)
    assert settings.stream_defaults.future_tolerance_s == 300
    assert settings.topics == {"metrics-events": "one"}


@pytest.mark.parametrize(
    "line", ["'1998-07-01T01:00:00+01:00'", "'1998-07-01'", "1998-07-01", "1998-07-01T00:00:00"]
)
def test_the_earliest_event_time_is_a_date_or_a_time_of_utc(directory: Path, line: str) -> None:
    write_toml(directory, f"[stream_defaults]\nearliest_event_time = {line}")

    settings = load_settings()

    assert settings.stream_defaults.earliest_event_time == datetime(1998, 7, 1, tzinfo=UTC)
    assert {source.earliest_event_time for stream in load(settings) for source in stream.sources} == {
        settings.stream_defaults.earliest_event_time
    }


def test_a_file_of_any_name_is_read_where_the_environment_names_it(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_toml(directory, "run.max_records = 1")
    monkeypatch.setenv("LAKEHOUSE_CONFIG", str(write_toml(directory, "run.max_records = 2", "other.toml")))

    assert load_settings().run.max_records == 2


def test_a_file_in_the_users_home_is_read_where_the_working_directory_has_none(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (directory / "user").mkdir()
    write_toml(directory / "user", "run.max_records = 3")
    monkeypatch.setenv("HOME", str(directory / "user"))
    assert load_settings().run.max_records == 3
    write_toml(directory, "run.max_records = 1")
    assert load_settings().run.max_records == 1


def test_it_is_said_once_which_file_settings_come_from(
    directory: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_toml(directory, "run.max_records = 1")
    load_settings()
    load_settings()
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err == f"settings from {directory}/lakehouse.toml\n"


@pytest.mark.parametrize("place", ["here", "named", "home"])
def test_a_file_that_somebody_else_may_change_is_refused(
    directory: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    there = directory if place == "here" else directory / "there"
    there.mkdir(exist_ok=True)
    path = write_toml(there, "run.max_records = 1")
    os.chown(path, 41_002, 0)
    if place != "here":
        monkeypatch.setenv(*{"named": ("LAKEHOUSE_CONFIG", str(path)), "home": ("HOME", str(there))}[place])
    with pytest.raises(SettingsError) as refused:
        load_settings()
    assert str(refused.value) == (
        f"refusing to use {path}: the owner is user 41002, but this process runs as root (0). A "
        "configuration file decides which code runs. Make sure that only you can write to it and its "
        "directory (chown, chmod go-w), or set LAKEHOUSE_CONFIG to a file that belongs to you"
    )


def test_endpoints_that_somebody_else_may_change_are_refused(directory: Path) -> None:
    home = directory / ".lakehouse"
    write_services(home, kafka="127.0.0.1:19092")
    services_file(home).chmod(0o666)
    with pytest.raises(SettingsError) as refused:
        load_settings()
    assert str(refused.value) == (
        f"refusing to use {home}/services.json: anyone can write to it (mode 0666). It contains the "
        "local services' addresses. Make sure that only you can write to it and its directory "
        "(chown, chmod go-w), or set `home` (LAKEHOUSE_HOME) to a different directory"
    )


def test_topic_names_are_json_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEHOUSE_TOPICS", '{"metrics-events": "theirs"}')

    settings = load_settings()

    assert settings.topic("metrics-events") == "theirs"
    assert settings.topic("sales-events-v1") == "sales-events-v1"


def test_unknown_variables_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEHOUSE_GRACE", "7")
    monkeypatch.setenv("LAKEHOUSE_REDIS_TTL_S", "7")

    with pytest.raises(
        SettingsError,
        match=r"^unknown environment variable LAKEHOUSE_GRACE: docs/settings.md lists all settings; "
        r"unknown environment variable LAKEHOUSE_REDIS_TTL_S: "
        r"did you mean LAKEHOUSE_REDIS_TTL or LAKEHOUSE_REDIS_URL\?$",
    ):
        load_settings()


def test_unknown_keys_of_the_file_are_refused_by_name(directory: Path) -> None:
    write_toml(directory, "hom = 7\n[redis]\nttl_s = 1\n[kafak]\nport = 1")

    with pytest.raises(SettingsError) as caught:
        load_settings()

    message = str(caught.value)
    assert "unknown key hom in lakehouse.toml: did you mean home" in message
    assert "unknown key redis.ttl_s in lakehouse.toml: did you mean redis.ttl" in message
    assert "unknown key kafak in lakehouse.toml: did you mean kafka" in message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("run_max_records", "-1"),
        ("run_max_records", "soon"),
        ("run_max_records", "1.5"),
        ("run_max_records", ""),
        ("stream_defaults_allowed_lateness", "-1s"),
        ("stream_defaults_future_tolerance", "1 hour"),
        ("stream_defaults_earliest_event_time", "2000"),
        ("stream_defaults_earliest_event_time", "0"),
        ("stream_defaults_earliest_event_time", "soon"),
        ("stream_defaults_earliest_event_time", "1899-12-31"),
        ("streams", "[]"),
        ("streams", '{"metrics": 1}'),
        ("kafka_topic_partitions", "0"),
        ("run_max_records", "0"),
        ("run_max_bytes", "1m"),
        ("redis_ttl", "0s"),
        ("redis_ttl", "60"),
        ("maintenance_every", "seldom"),
        ("maintenance_file_size", "2GB"),
        ("maintenance_keep_rows", '{"a": "36h"}'),
        ("spark_driver_memory", "lots"),
        ("spark_shuffle_partitions", "0"),
        ("topics", '{"metrics-events": 1}'),
        ("topics", "[]"),
    ],
)
def test_a_bad_value_is_refused_with_its_variable(
    monkeypatch: pytest.MonkeyPatch, key: str, value: str
) -> None:
    variable = f"LAKEHOUSE_{key.upper()}"
    monkeypatch.setenv(variable, value)

    with pytest.raises(SettingsError) as caught:
        load_settings()

    assert str(caught.value).startswith(variable)
    assert "lakehouse.toml" not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    "text", ['run.max_records = "7 s"', "run.max_records = [7]", "home = 6379", "lake = 1", "topics = 'x'"]
)
def test_a_bad_value_in_the_file_is_refused_with_its_key(directory: Path, text: str) -> None:
    write_toml(directory, text)

    with pytest.raises(SettingsError, match=rf"^{text.split(maxsplit=1)[0]} .*in lakehouse\.toml: expected "):
        load_settings()


def test_every_mistake_is_reported_at_once(directory: Path) -> None:
    write_toml(directory, "run.max_records = -1\nspark.shuffle_partitions = 0\nspeed = 9")

    with pytest.raises(
        SettingsError,
        match=r"(?=.*\brun\.max_records\b)(?=.*\bspark\.shuffle_partitions\b)(?=.*unknown key speed)",
    ):
        load_settings()


def test_a_password_is_not_in_the_message_about_another_mistake(directory: Path) -> None:
    write_toml(directory, "run.max_records = -1\n[redis]\nurl = 'redis://:hunter2@cache:6379/0'")

    with pytest.raises(SettingsError) as caught:
        load_settings()

    assert "hunter2" not in str(caught.value)


def test_a_password_in_the_keys_of_a_sink_is_refused_without_being_shown(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "https://etl:hunter2@example.org/rows"
    write_toml(directory, f"[sinks.http]\nurl = '{url}'\n")
    with pytest.raises(SettingsError, match=r"^sinks\.http\.url contains a password: ") as of_file:
        load_settings()
    write_toml(directory, "[sinks.http]\nurl = 'https://example.org/rows'\n")
    monkeypatch.setenv("LAKEHOUSE_SINKS", json.dumps({"http": {"other": url}}))
    with pytest.raises(SettingsError, match=r"^sinks\.http\.other contains a password: ") as of_variable:
        load_settings()
    assert "hunter2" not in f"{of_file.value}{of_variable.value}"
    monkeypatch.setenv("LAKEHOUSE_SINKS", '{"http": {"token_file": "/run/token"}}')
    assert load_settings().sinks == {"http": {"url": "https://example.org/rows", "token_file": "/run/token"}}


def test_a_password_in_the_arguments_of_a_stream_is_refused_without_being_shown(directory: Path) -> None:
    own = "[streams.feed]\npython = 'feed:stream'\n[streams.feed.arguments]\n"
    write_toml(directory, f"{own}source = 'https://etl:hunter2@example.org/rows'\n")
    with pytest.raises(SettingsError, match=r"^streams\.feed\.arguments\.source contains a ") as refused:
        load_settings()
    assert "hunter2" not in str(refused.value)
    write_toml(directory, f"{own}source = 'https://example.org/rows'\n")
    assert load_settings().streams["feed"]["arguments"] == {"source": "https://example.org/rows"}


def test_topics_that_are_not_json_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEHOUSE_TOPICS", "metrics-events=theirs")

    with pytest.raises(SettingsError, match=r"^LAKEHOUSE_TOPICS='metrics-events=theirs' is not JSON "):
        load_settings()


# A variable's name and value, and the message about them.
SAID = {
    ("run_max_records", "soon"): (
        "LAKEHOUSE_RUN_MAX_RECORDS='soon': expected a whole number of at least 1, such as "
        "LAKEHOUSE_RUN_MAX_RECORDS=1000000"
    ),
    ("topics", "{a"): (
        "LAKEHOUSE_TOPICS='{a' is not JSON (Expecting property name enclosed in double quotes at character 2)"
        """: expected a table in JSON, such as LAKEHOUSE_TOPICS='{"sales-topic": "shop.sales"}'"""
    ),
    ("maintenance_keep_rows", '{"a": "1h"}'): (
        """LAKEHOUSE_MAINTENANCE_KEEP_ROWS["a"]='1h': expected a duration in whole days of at least 1d, """
        """such as LAKEHOUSE_MAINTENANCE_KEEP_ROWS='{"bronze.sales_events": "90d"}'"""
    ),
    ("redis_ttl", "60"): (
        "LAKEHOUSE_REDIS_TTL='60': expected a duration, such as 90s, 15m, 1h30m or 7d; 60 has no unit: "
        "write 60s"
    ),
    ("redis_ttl", "0s"): (
        "LAKEHOUSE_REDIS_TTL='0s': expected a duration from 1s to 36525d, such as LAKEHOUSE_REDIS_TTL=1d"
    ),
    ("run_max_bytes", "256m"): (
        "LAKEHOUSE_RUN_MAX_BYTES='256m': expected a size, such as 512KB, 256MB or 2GB"
    ),
    ("maintenance_file_size", "2GB"): (
        "LAKEHOUSE_MAINTENANCE_FILE_SIZE='2GB': expected a size from 1MB to 1GB, such as "
        "LAKEHOUSE_MAINTENANCE_FILE_SIZE=32MB"
    ),
    ("run_log_format", "x\u202e\x1b"): (
        r"LAKEHOUSE_RUN_LOG_FORMAT='x\u{202e}\x1b': expected one of text, json, such as "
        "LAKEHOUSE_RUN_LOG_FORMAT=text"
    ),
    ("s3_single_writer", "maybe"): (
        "LAKEHOUSE_S3_SINGLE_WRITER='maybe': expected true or false, such as LAKEHOUSE_S3_SINGLE_WRITER=false"
    ),
    ("spark_driver_memory", "9" * 99): (
        f"LAKEHOUSE_SPARK_DRIVER_MEMORY='{'9' * 64}…': expected digits followed by m or g, such as "
        "LAKEHOUSE_SPARK_DRIVER_MEMORY=3g"
    ),
    ("alerts_webhooks", '["ftp://hunter2.org"]'): (
        "LAKEHOUSE_ALERTS_WEBHOOKS[0]: it must start with http:// or https:// and name a host"
    ),
    ("alerts_webhooks", "http://hunter2.org"): (
        "LAKEHOUSE_ALERTS_WEBHOOKS is not JSON (Expecting value at character 1): expected a list in JSON, "
        """such as LAKEHOUSE_ALERTS_WEBHOOKS='["https://example.org/hook"]'"""
    ),
    ("schema_registry_url", "https://me:hunter2@host"): (
        "LAKEHOUSE_SCHEMA_REGISTRY_URL: it contains a user name or password (`@` before the host); set "
        "these separately"
    ),
}


@pytest.mark.parametrize("given", SAID, ids=lambda given: given[0])
def test_a_bad_value_is_shown_with_what_is_expected_and_an_example(
    monkeypatch: pytest.MonkeyPatch, given: tuple[str, str]
) -> None:
    monkeypatch.setenv(f"LAKEHOUSE_{given[0].upper()}", given[1])

    with pytest.raises(SettingsError) as caught:
        load_settings()

    assert str(caught.value) == SAID[given]


def test_every_example_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEHOUSE_KAFKA_SECURITY_PROTOCOL", "SASL_SSL")
    for name in ("KAFKA_SASL_PASSWORD", "S3_SECRET_KEY", "SCHEMA_REGISTRY_PASSWORD"):
        monkeypatch.setenv(f"LAKEHOUSE_{name}", "any")
    for name, value in EXAMPLES.items():
        if name not in ("kafka.ssl_ca", "kafka.ssl_certificate", "kafka.ssl_key"):  # these files are read
            text = value if isinstance(value, str) else json.dumps(value)
            monkeypatch.setenv(all_keys()[name].variable, text)

    load_settings()


def test_a_named_file_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEHOUSE_CONFIG", "nowhere.toml")

    with pytest.raises(SettingsError, match=r"LAKEHOUSE_CONFIG names nowhere\.toml, which does not exist"):
        load_settings()


@pytest.mark.parametrize("content", [b"lake: 7", b"lake = 7\nlake = 8", b"home = '\xff'"])
def test_a_file_that_is_not_toml_is_refused_by_name(directory: Path, content: bytes) -> None:
    (directory / "lakehouse.toml").write_bytes(content)

    with pytest.raises(SettingsError, match=r"^lakehouse\.toml could not be read: "):
        load_settings()


def test_a_directory_in_the_place_of_the_file_is_refused(directory: Path) -> None:
    (directory / "lakehouse.toml").mkdir()

    with pytest.raises(SettingsError, match=r"^lakehouse\.toml could not be read: "):
        load_settings()


def test_settings_do_not_change() -> None:
    settings = load_settings()

    with pytest.raises(ValidationError, match="frozen"):
        settings.lake = "another"


def test_the_redis_url_is_masked_wherever_settings_are_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEHOUSE_REDIS_URL", "redis://:hunter2@cache:6379/0")

    settings = load_settings()

    assert settings.redis.url.get_secret_value() == "redis://:hunter2@cache:6379/0"
    for text in (repr(settings), str(settings), f"{settings}", settings.model_dump_json()):
        assert "hunter2" not in text
        assert "**" in text


def test_the_home_is_absolute_and_knows_the_users_home(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(directory / "user"))
    monkeypatch.setenv("LAKEHOUSE_HOME", "~/data")

    settings = load_settings()

    assert settings.home == directory / "user" / "data"
    assert settings.lake == str(directory / "user" / "data" / "lake")


def test_the_lake_may_lie_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEHOUSE_LAKE", "gs://bucket/lake")

    assert load_settings().lake == "gs://bucket/lake"


def test_running_services_are_the_default_endpoints(directory: Path) -> None:
    write_services(directory / ".lakehouse", kafka="127.0.0.1:19092", redis="redis://127.0.0.1:16379/0")

    settings = load_settings()

    assert settings.kafka.bootstrap_servers == "127.0.0.1:19092"
    assert settings.redis.url.get_secret_value() == "redis://127.0.0.1:16379/0"


def test_the_file_and_the_environment_go_over_running_services(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_services(directory / ".lakehouse", kafka="127.0.0.1:19092", redis="redis://127.0.0.1:16379/0")
    write_toml(directory, '[redis]\nurl = "redis://cache:6379/1"')
    monkeypatch.setenv("LAKEHOUSE_KAFKA_BOOTSTRAP_SERVERS", "broker:9092")

    settings = load_settings()

    assert settings.kafka.bootstrap_servers == "broker:9092"
    assert settings.redis.url == SecretStr("redis://cache:6379/1")


def test_running_services_are_looked_for_in_the_home_that_is_set(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_services(directory / "elsewhere", kafka="127.0.0.1:29092")
    monkeypatch.setenv("LAKEHOUSE_HOME", "elsewhere")

    settings = load_settings()

    assert settings.kafka.bootstrap_servers == "127.0.0.1:29092"
    assert settings.redis.url.get_secret_value() == "redis://127.0.0.1:6379/0"


def test_a_password_file_of_the_environment_wins_over_that_of_the_running_services(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, own = directory / "theirs", directory / "own"
    theirs.write_text("of the services\n")
    own.write_text("of the user\n")
    named = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_username": "lakehouse",
        "sasl_password_file": str(theirs),
    }
    kafka = {"endpoint": "127.0.0.1:1", "settings": named}
    services_file(directory).write_text(json.dumps({"kafka": kafka}), encoding="utf-8")
    monkeypatch.setenv("LAKEHOUSE_HOME", str(directory))
    monkeypatch.setenv("LAKEHOUSE_KAFKA_SASL_PASSWORD_FILE", str(own))

    found = load_settings().kafka

    assert (found.sasl_username, found.sasl_password.get_secret_value()) == ("lakehouse", "of the user")


@pytest.mark.parametrize("content", ["", "{", "\x00"])
def test_a_services_file_that_cannot_be_read_is_as_good_as_none(directory: Path, content: str) -> None:
    home = directory / ".lakehouse"
    home.mkdir()
    services_file(home).write_text(content, encoding="utf-8")

    assert load_settings().kafka.bootstrap_servers == "127.0.0.1:9092"


def test_every_setting_says_what_it_is_for() -> None:
    undocumented = [name for name, key in all_keys().items() if not key.info.description]

    assert undocumented == []


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://:hun/ter2@db:5432/gold",
        "postgresql://:hun#ter2@db:5432/gold",
        "postgresql://:hun?ter2@db:5432/gold",
        "postgresql://:hunter2@b@db/gold",
        "postgresql://user:12/34@db/gold",
        "postgresql://db:hunter2/gold",
        "postgresql://[hunter2/gold",
        "mysql://:hunter2@db/gold",
    ],
)
def test_a_password_that_spoils_the_postgres_url_is_not_printed(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("LAKEHOUSE_POSTGRES_URL", url)
    with pytest.raises(SettingsError, match=r"POSTGRES_URL: it (is not a valid URL|must start)") as caught:
        load_settings()
    assert not any(part in str(caught.value) for part in ("hun", "ter2", "12/34"))


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:hun%2Fter2@db:5432/gold?sslmode=verify-full&sslrootcert=/etc/db.pem",
        "postgres://one:5432,[::1]:5433/gold?target_session_attrs=read-write",
        "postgresql:///gold?host=/run/postgresql",
    ],
)
def test_a_postgres_url_is_what_libpq_knows_and_masked(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("LAKEHOUSE_POSTGRES_URL", url)
    settings = load_settings()
    assert settings.postgres.url.get_secret_value() == url
    assert url not in f"{settings} {settings.model_dump_json()}"


@pytest.mark.parametrize(
    "url",
    [
        "redis://:hun/ter2@cache:6379/0",
        "redis://:hun#ter2@cache:6379/0",
        "redis://:hun?ter2@cache:6379/0",
        "redis://user:12/34@cache:6379/0",
        "redis://cache:ter2/0",
        "redis://[hunter2/0",
    ],
)
def test_a_password_that_spoils_the_redis_url_is_not_printed(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("LAKEHOUSE_REDIS_URL", url)

    with pytest.raises(SettingsError, match=r"REDIS_URL: .*%2F") as caught:
        load_settings()

    for part in ("hun", "ter2", "12", "34"):
        assert part not in str(caught.value)


def test_an_escaped_password_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "redis://:hun%2Fter%402@cache:6379/0"
    monkeypatch.setenv("LAKEHOUSE_REDIS_URL", url)
    assert load_settings().redis.url.get_secret_value() == url


@pytest.mark.parametrize(
    "url",
    [
        "rediss://user:hunter2@cache:6380/1?ssl_ca_certs=/ca.pem&ssl_certfile=/c.pem&ssl_keyfile=/k.pem",
        "unix:///run/user@1000/redis.sock?db=2",
        "redis+sentinel://:hunter2@one,two:26380,[::1]/primary/3?sentinel_password=a%2Fb&client_name=lake",
        "rediss+sentinel://one/primary?ssl_ca_certs=/ca.pem&ssl_check_hostname=false",
    ],
)
def test_a_redis_url_may_have_tls_a_socket_or_sentinels(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("LAKEHOUSE_REDIS_URL", url)
    assert load_settings().redis.url.get_secret_value() == url


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("localhost:6379", r"it must start with one of redis://, rediss://, redis\+sentinel://"),
        ("redis://:hunter2@cache/0?ssl_ca_certs=/ca.pem", "its option ssl_ca_certs needs TLS; use rediss://"),
        (
            "rediss://:hunter2@cache/0?ssl_cacerts=/ca.pem",
            "unknown option 'ssl_cacerts'; .*ssl_ca_certs",
        ),
        (
            "redis://:hunter2@cache/0?sentinel_password=hunter2",
            r"sentinel_password is only for redis\+sentinel://",
        ),
        ("redis://:hunter2@cache/0?socket_timeout=hunter2", "its option socket_timeout must match"),
        ("redis://:hunter2@cache/0?db=1&db=2", "the option db twice"),
        ("redis://:hunter2@cache/metrics", "its path must be a database number"),
        ("redis://:hunter2@one,two/0", "it names several hosts; only redis\\+sentinel:// allows that"),
        ("redis+sentinel://:hunter2@one,two", "the primary's name is missing"),
        ("redis+sentinel://:hunter2@one,two/primary/x", "its path must be a database number"),
        ("redis+sentinel://:hunter2@one,:1/primary/0", "it is not a valid URL"),
        ("redis://:hunter2@cache:6379/0#1", "it is not a valid URL"),
    ],
)
def test_what_is_wrong_with_a_redis_url_is_said_without_its_password(
    monkeypatch: pytest.MonkeyPatch, url: str, said: str
) -> None:
    monkeypatch.setenv("LAKEHOUSE_REDIS_URL", url)
    with pytest.raises(SettingsError, match=f"REDIS_URL: .*{said}") as caught:
        load_settings()
    assert "hunter2" not in str(caught.value)


def test_what_kubernetes_says_of_a_service_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "LAKEHOUSE_REDIS_PORT": "tcp://10.0.0.1:6379",
        "LAKEHOUSE_REDIS_SERVICE_HOST": "10.0.0.1",
        "LAKEHOUSE_REDIS_SERVICE_PORT": "6379",
        "LAKEHOUSE_REDIS_SERVICE_PORT_REDIS": "6379",
        "LAKEHOUSE_REDIS_PORT_6379_TCP": "tcp://10.0.0.1:6379",
        "LAKEHOUSE_REDIS_PORT_6379_TCP_ADDR": "10.0.0.1",
        "LAKEHOUSE_PORT": "tcp://10.0.0.2:80",
        "LAKEHOUSE_SERVICE_HOST": "10.0.0.2",
        "LAKEHOUSE_KAFKA_PORT": "tcp://10.0.0.3:9092",
        "LAKEHOUSE_TELEMETRY_PORT": "tcp://10.0.0.4:9090",
    }.items():
        monkeypatch.setenv(name, value)

    settings = load_settings()

    assert settings.telemetry.port == -1


def test_access_to_s3_is_written_out_for_hadoop_and_for_readers_without_a_jvm(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text("hidden\n")
    monkeypatch.setenv("LAKEHOUSE_S3_ENDPOINT", "http://127.0.0.1:8333")
    monkeypatch.setenv("LAKEHOUSE_S3_ACCESS_KEY", "me")
    monkeypatch.setenv("LAKEHOUSE_S3_SECRET_KEY_FILE", str(tmp_path / "key"))
    settings = load_settings()

    assert "hidden" not in f"{settings!r}{settings.s3!r}"
    assert settings.s3.access.for_hadoop() == {
        "spark.sql.streaming.checkpointFileManagerClass": "lakehouse.storage.ObjectFileManager",
        "fs.s3a.endpoint": "http://127.0.0.1:8333",
        "fs.s3a.endpoint.region": "us-east-1",
        "fs.s3a.path.style.access": "true",
        "fs.s3a.access.key": "me",
        "fs.s3a.secret.key": "hidden",
        "fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
    }
    assert settings.s3.access.for_environment() == {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:8333",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "me",
        "AWS_SECRET_ACCESS_KEY": "hidden",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def test_a_lake_on_s3_without_a_key_leaves_it_to_awss_provider_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEHOUSE_S3_REGION", "eu-central-1")
    settings = load_settings()
    found = settings.s3.access.for_hadoop()
    assert {name: value for name, value in found.items() if name.startswith("fs.")} == {
        "fs.s3a.endpoint.region": "eu-central-1"
    }
    assert settings.s3.access.for_environment() == {"AWS_REGION": "eu-central-1"}


def test_a_temporary_key_has_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACCESS_KEY", "SECRET_KEY", "SESSION_TOKEN"):
        monkeypatch.setenv(f"LAKEHOUSE_S3_{name}", name)
    found = load_settings().s3.access.for_hadoop()
    assert found["fs.s3a.session.token"] == "SESSION_TOKEN"
    assert found["fs.s3a.aws.credentials.provider"].endswith(".TemporaryAWSCredentialsProvider")


def test_half_a_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEHOUSE_S3_ACCESS_KEY", "me")
    with pytest.raises(SettingsError, match=r"only one of s3\.access_key and s3\.secret_key is set"):
        load_settings()


def test_a_topic_that_no_stream_has_is_refused_with_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEHOUSE_TOPICS", '{"metrics-event": "prod.metrics"}')
    with pytest.raises(
        SettingsError, match=r"no stream has the topic metrics-event; known: .*metrics-events"
    ):
        read_settings()

    monkeypatch.setenv("LAKEHOUSE_TOPICS", '{"metrics-events": "prod.metrics"}')
    assert read_settings().topic("metrics-events") == "prod.metrics"


def test_what_is_said_of_streams_that_are_left_out_may_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEHOUSE_TOPICS", '{"transactions-topic": "prod.transactions"}')
    monkeypatch.setenv("LAKEHOUSE_MAINTENANCE_KEEP_ROWS", '{"gold.user_transactions_5m": "90d"}')
    monkeypatch.setenv("LAKEHOUSE_ONLY_STREAMS", "metrics,sales")
    assert read_settings().only_streams == ("metrics", "sales")


def test_a_home_or_a_lake_that_no_reader_finds_by_its_name_is_refused_with_the_variable(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEHOUSE_LAKE", "lake")
    assert load_settings().lake == str(directory / "lake")
    for variable in ("LAKEHOUSE_LAKE", "LAKEHOUSE_HOME"):
        monkeypatch.setenv(variable, "a%41")
        with pytest.raises(
            SettingsError, match=f"^{variable}='a%41': the path .* contains '%41', .*choose another"
        ):
            load_settings()
        monkeypatch.delenv(variable)


def test_kafka_is_reached_by_one_value(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (directory / "password").write_text("one\n", encoding="utf-8")
    for name, value in {
        "BOOTSTRAP_SERVERS": "broker:9093",
        "SECURITY_PROTOCOL": "SASL_SSL",
        "SASL_MECHANISM": "PLAIN",
        "SASL_USERNAME": "me",
        "SASL_PASSWORD_FILE": "password",
        "CLIENT_PROPERTIES": '{"metadata.max.age.ms": 180000}',
    }.items():
        monkeypatch.setenv(f"LAKEHOUSE_KAFKA_{name}", value)

    access = load_settings().kafka.access

    assert access.for_librdkafka() == {
        "bootstrap.servers": "broker:9093",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "me",
        "sasl.password": "one",
        "metadata.max.age.ms": "180000",
    }
    (directory / "password").write_text("two", encoding="utf-8")
    assert access.for_librdkafka()["sasl.password"] == "two"


def test_a_secret_may_lie_in_a_file(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (directory / "url").write_text("redis://:pw@cache:6379/0\n", encoding="utf-8")
    (directory / "hooks").write_text("https://a.example/x\n\nhttps://b.example/y\n", encoding="utf-8")
    monkeypatch.setenv("LAKEHOUSE_REDIS_URL_FILE", "url")
    monkeypatch.setenv("LAKEHOUSE_ALERTS_WEBHOOKS_FILE", "hooks")

    settings = load_settings()

    assert settings.redis.url.get_secret_value() == "redis://:pw@cache:6379/0"
    assert [one.get_secret_value() for one in settings.alerts.webhooks] == [
        "https://a.example/x",
        "https://b.example/y",
    ]
    assert "pw" not in repr(settings)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"REDIS_URL_FILE": "nowhere"}, "LAKEHOUSE_REDIS_URL_FILE: nowhere cannot be read"),
        (
            {"REDIS_URL_FILE": "bad", "REDIS_URL": "redis://a:1/0"},
            "both LAKEHOUSE_REDIS_URL and LAKEHOUSE_REDIS_URL_FILE are set; set only one",
        ),
        ({"REDIS_URL_FILE": "bad"}, "LAKEHOUSE_REDIS_URL_FILE: it is not a valid URL"),
        ({"KAFKA_SASL_PASSWORD": "p"}, "which does not use kafka.sasl_password"),
        ({"HOME_FILE": "bad"}, "unknown environment variable LAKEHOUSE_HOME_FILE"),
    ],
)
def test_a_secret_that_cannot_be_used_is_refused_without_its_text(
    directory: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], said: str
) -> None:
    (directory / "bad").write_text("redis://:p/w@host:1/0", encoding="utf-8")
    for name, value in variables.items():
        monkeypatch.setenv(f"LAKEHOUSE_{name}", value)

    with pytest.raises(SettingsError) as refusal:
        load_settings()

    assert said in str(refusal.value)
    assert "p/w" not in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "key", "variable"),
    [
        ("[kafka]\nsasl_password = 'hunter2'", "kafka.sasl_password", "LAKEHOUSE_KAFKA_SASL_PASSWORD"),
        ("[redis]\nurl = 'redis://:hunter2@cache:6379/0'", "redis.url", "LAKEHOUSE_REDIS_URL"),
        (
            "[alerts]\nwebhooks = ['https://me:hunter2@a.example']",
            "alerts.webhooks",
            "LAKEHOUSE_ALERTS_WEBHOOKS",
        ),
    ],
)
def test_a_secret_in_the_file_is_refused_with_its_variable(
    directory: Path, text: str, key: str, variable: str
) -> None:
    write_toml(directory, text)

    with pytest.raises(SettingsError) as refused:
        load_settings()

    assert str(refused.value) == (
        f"{key} in lakehouse.toml is a secret, which must not be in the file: set {variable}, or "
        f"{variable}_FILE to the path of a file containing the secret"
    )


def test_streams_of_the_environment_are_merged_into_those_of_the_file(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_toml(directory, "[streams.sales]\nthreshold = 2500\nstart = 'latest'")
    monkeypatch.setenv("LAKEHOUSE_STREAMS", '{"sales": {"threshold": 3000}, "calls": {"enabled": false}}')

    assert load_settings().streams == {
        "sales": {"threshold": 3000, "start": "latest"},
        "calls": {"enabled": False},
    }


def test_a_table_of_a_variable_replaces_the_files_and_the_sections_other_keys_stay(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_toml(directory, "[maintenance]\nevery = '2h'\nkeep_rows = { 'bronze.calls' = '30d' }")
    monkeypatch.setenv("LAKEHOUSE_MAINTENANCE_KEEP_ROWS", '{"bronze.sales_events": "90d"}')

    maintenance = load_settings().maintenance

    assert maintenance.keep_rows_s == {"bronze.sales_events": 7_776_000}
    assert maintenance.every_s == 7200


def test_text_in_the_place_of_a_section_is_refused_where_a_variable_sets_a_key_of_it(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_toml(directory, "redis = 'cache'")
    monkeypatch.setenv("LAKEHOUSE_REDIS_TTL", "1h")

    with pytest.raises(SettingsError) as caught:
        load_settings()

    assert str(caught.value) == "redis in lakehouse.toml: expected a section, [redis]"
