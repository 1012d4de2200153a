"""`lakehouse doctor` on a set-up that works, and on ones that do not."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import SecretStr
from pyspark.sql import SparkSession

from lakehouse.common.errors import SettingsError
from lakehouse.dev.services.services import Endpoints
from lakehouse.engine.layers import bronze
from lakehouse.operations.doctor.checks import Finding, examine
from lakehouse.settings import Settings
from lakehouse.storage.kafka.topics import create_topics
from lakehouse.storage.spark.jars import jars_directory
from lakehouse.storage.tables import Lake
from lakehouse.streams.registry import BY_DEFAULT
from tests.support.processes import LAKEHOUSE

MakeSettings = Callable[..., Settings]
OLD_JAVA = """\
#!/bin/sh
echo 'openjdk version "11.0.22" 2024-01-16' >&2
"""


def found(settings: Settings) -> dict[str, Finding]:
    """Return the findings that are not ok, by check."""
    findings = list(examine(lambda: (settings, BY_DEFAULT)))
    assert len(findings) > 10
    return {one.check: one for one in findings if one.state != "ok"}


@pytest.fixture
def settings(make_settings: MakeSettings) -> Settings:
    made = make_settings()
    create_topics(made.kafka.access, {made.topic(name): 1 for stream in BY_DEFAULT for name in stream.topics})
    create_topics(made.kafka.access, {made.alerts.topic: 1, f"{made.alerts.topic}-state": 1})
    return made


def test_a_set_up_that_works_has_no_fault(settings: Settings) -> None:
    assert found(settings) == {}


def test_kafka_and_redis_that_are_away_are_named_with_what_to_do(settings: Settings) -> None:
    away = {"kafka.bootstrap_servers": "127.0.0.1:1", "redis.url": SecretStr("redis://127.0.0.1:1/0")}
    faults = found(settings.changed(away))
    assert {name: one.state for name, one in faults.items()} == {"Kafka": "fail", "Redis": "fail"}
    assert "nothing accepts connections there" in faults["Kafka"].found
    assert "lakehouse services up" in faults["Kafka"].todo
    assert "no Redis at 127.0.0.1:1" in faults["Redis"].found


def test_topics_that_do_not_exist_are_named(make_settings: MakeSettings) -> None:
    made = make_settings()
    faults = found(made)
    assert faults.keys() == {"Kafka topics"}
    assert made.topic("sales-events-v1") in faults["Kafka topics"].found


def test_a_lake_that_cannot_be_written_is_named(settings: Settings) -> None:
    faults = found(settings.changed({"lake": "/proc/lake"}))
    assert faults["lake is writable"].state == "fail"
    assert faults["lake is writable"].found.startswith("/proc: ")


def test_a_table_of_a_later_version_is_named(settings: Settings, spark: SparkSession) -> None:
    path = Lake(spark, settings.lake).ensure(bronze.spec(BY_DEFAULT[0].sources[0]))
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('lakehouse.format' = '7')")
    faults = found(settings)
    assert faults.keys() == {"lake"}
    assert faults["lake"].found == "bronze.metrics_events has format 7, but this version supports only 1"


def test_an_old_java_and_a_damaged_jar_are_named(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(OLD_JAVA)
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    jars = tmp_path / "jars"
    for name in ("spark", "kafka", "disk"):
        (jars / name).mkdir(parents=True)
        for jar in (jars_directory() / name).iterdir():
            (jars / name / jar.name).symlink_to(jar)
    damaged = jars / "spark" / "delta-storage-4.4.0.jar"
    damaged.unlink()
    damaged.write_bytes(b"half")
    for module in ("installing", "jars"):
        monkeypatch.setattr(f"lakehouse.storage.spark.{module}.jars_directory", lambda: jars)
    faults = found(settings)
    assert {name: one.state for name, one in faults.items()} == {"Java": "fail", "jars of spark": "fail"}
    assert faults["Java"].found == f"11.0.22 ({java})"
    assert (
        faults["jars of spark"].found
        == "1 are missing or differ from the lock file, such as spark/delta-storage-4.4.0.jar"
    )
    assert faults["jars of spark"].todo == "run `lakehouse setup`"


def test_a_setting_that_cannot_be_read_ends_the_checks_that_need_it() -> None:
    def read() -> tuple[Settings, tuple[()]]:
        raise SettingsError("LAKEHOUSE_REDIS_TTL is not a number: x")

    *before, last = examine(read)
    assert [one.state for one in before] == ["ok"] * len(before)
    assert (last.check, last.state) == ("settings", "fail")
    assert last.found == "LAKEHOUSE_REDIS_TTL is not a number: x"


@pytest.mark.soak
def test_the_command_says_it_in_lines_or_in_json_and_exits_with_1(
    services: Endpoints, tmp_path: Path
) -> None:
    environment = os.environ | {
        "LAKEHOUSE_HOME": str(tmp_path),
        "LAKEHOUSE_KAFKA_BOOTSTRAP_SERVERS": services.kafka,
        "LAKEHOUSE_REDIS_URL": "redis://127.0.0.1:1/0",
    }

    def doctor(*options: str) -> subprocess.CompletedProcess[str]:
        command = [LAKEHOUSE, "doctor", *options]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    done = doctor("--format", "json")
    assert (done.returncode, done.stderr) == (1, "")
    told = json.loads(done.stdout)
    assert told["failed"] == 1
    (redis,) = (one for one in told["checks"] if one["state"] == "fail")
    assert redis["check"] == "Redis"
    lines = doctor().stdout.split("\n")
    assert sum(line.startswith("fail  Redis: no Redis at 127.0.0.1:1") for line in lines) == 1
