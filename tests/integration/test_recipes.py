"""Every recipe in docs/recipes-*.md runs as typed, and prints what it says."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakehouse.dev.services.services import Endpoints
from lakehouse.operations.alerts.rules import load_rules
from lakehouse.settings import load_settings
from lakehouse.streams.keep_rows import check_keep_rows
from lakehouse.streams.registry import load
from tests.support import redis_databases
from tests.support.recipes import CONFIG, Recipe, Shell, recipes
from tests.support.registries import registry

DATABASE = 8  # a Redis database that no other test file uses
RECIPES = list(recipes())
RUN = [one for one in RECIPES if "```sh" in one.text]
LONG = {
    "Alerts, and Prometheus",
    "Avro with a schema registry",
    "Begin at the end of a topic",
    "Carry on from a copy",
    "Deletions from Debezium",
    "Keep thirty days",
    "Late records",
    "Sums in five-minute windows",
    "Fix a rule",
    "A notification at a threshold",
    "Percentiles in windows",
    "Repeated and corrected records",
    "Two topics joined",
}
"""Recipes that run several times, wait for more than Kafka and Redis, or resemble one that make test runs."""


@pytest.fixture
def shell(
    nameless: SparkSession, services: Endpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Shell]:
    monkeypatch.chdir(tmp_path)
    with redis_databases.emptied(services.redis, DATABASE) as redis_url:
        variables = {
            "COLUMNS": "300",
            "LAKEHOUSE_ALERTS_WEBHOOKS": "[]",
            "LAKEHOUSE_TELEMETRY_PORT": "0",
            "LAKEHOUSE_KAFKA_BOOTSTRAP_SERVERS": services.kafka,
            "LAKEHOUSE_REDIS_URL": redis_url,
        }
        yield Shell(tmp_path, variables, nameless)


def test_there_are_fifteen() -> None:
    assert len(RECIPES) == 15


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_the_configuration_of_a_recipe_is_valid(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("secret").write_text("secret", encoding="utf-8")
    for variable in re.findall(r"(LAKEHOUSE_\w+_FILE)=", recipe.text):
        monkeypatch.setenv(variable, "secret")
    Path(CONFIG).write_text(recipe.config, encoding="utf-8")
    settings = load_settings()
    streams = load(settings)
    check_keep_rows(settings.maintenance.keep_rows_s, streams)
    assert load_rules(settings.alerts, [stream.name for stream in streams]).rules
    assert set(tomllib.loads(recipe.config).get("streams", {})) <= {stream.name for stream in streams}


@pytest.mark.parametrize("recipe", [one for one in RUN if one.title not in LONG], ids=str)
def test_a_recipe_prints_what_it_shows(recipe: Recipe, shell: Shell) -> None:
    shell.run(recipe)


@pytest.mark.soak
@pytest.mark.parametrize("recipe", [one for one in RUN if one.title in LONG], ids=str)
def test_a_long_recipe_prints_what_it_shows(
    recipe: Recipe, shell: Shell, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with ExitStack() as stack:
        if "[schema_registry]" in recipe.config:
            running = stack.enter_context(registry(tmp_path_factory.mktemp("registry")))
            shell.environment["LAKEHOUSE_SCHEMA_REGISTRY_URL"] = running.access.url
        shell.run(recipe)
