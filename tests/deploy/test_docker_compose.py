"""docker-compose.yml is consistent with itself and with the repository.

No engine is needed: the Compose specification's schema defines the valid keys, and these tests check what a
schema cannot.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import typer
import yaml

from lakehouse.cli.main import app
from lakehouse.dev.services import broker
from lakehouse.engine.layers import LAYERS
from lakehouse.engine.runtime.triggers import check_trigger
from lakehouse.settings import ENV_PREFIX, load_settings
from lakehouse.settings.keys import variables
from lakehouse.storage.spark import properties
from tests.support.dockerfile import instructions

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docker-compose.yml"
RAW = yaml.safe_load(FILE.read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = RAW["services"]
MOUNTS = [
    (name, *volume.split(":", 1))
    for name, one in SERVICES.items()
    for volume in one.get("volumes", ())
    if ":" in volume
]
DURATION = re.compile(r"\d+[smh]")
PINNED = re.compile(r"[a-z0-9./-]+:v?\d+\.\d+[a-z0-9.-]*@sha256:[0-9a-f]{64}")
# The local broker's settings that adapt it to a laptop.
SMALL = {"log.cleaner.dedupe.buffer.size", "num.network.threads", "num.io.threads"}


def words(name: str) -> list[str]:
    """Return what a service runs. Commands are lists, because a shell would not pass on SIGTERM."""
    service = SERVICES[name]
    parts = [service.get(key, []) for key in ("entrypoint", "command")]
    assert all(isinstance(part, list) for part in parts), f"{name} is run by a shell"
    return [word for part in parts for word in part]


def option(service: str, name: str) -> str:
    given = words(service)
    return given[given.index(name) + 1]


def spark_option(service: str, name: str) -> str:
    (found,) = (word for word in words(service) if word.startswith(f"{name}="))
    return found.removeprefix(f"{name}=")


def test_the_file_keeps_the_schema_of_the_compose_specification() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(FILE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_nothing_is_left_to_variables_of_whoever_starts_it() -> None:
    assert "$" not in FILE.read_text(encoding="utf-8")


def test_durations_are_durations() -> None:
    checks = [one["healthcheck"] for one in SERVICES.values() if "healthcheck" in one]
    asking = [check for check in checks if not check.get("disable")]
    given = [check[key] for check in asking for key in ("interval", "timeout")]
    given += [one["stop_grace_period"] for one in SERVICES.values() if "stop_grace_period" in one]
    assert [duration for duration in given if not DURATION.fullmatch(duration)] == []


def test_a_service_waits_for_services_that_exist_and_can_be_healthy() -> None:
    for name, service in SERVICES.items():
        for target, dependency in service.get("depends_on", {}).items():
            assert target in SERVICES, f"{name} depends on {target}, which is no service"
            if dependency["condition"] == "service_healthy":
                assert "healthcheck" in SERVICES[target], (
                    f"{name} waits for {target}, which has no healthcheck"
                )


def test_what_is_mounted_exists_or_is_a_declared_volume() -> None:
    for name, source, target in MOUNTS:
        if source.startswith("."):
            assert (ROOT / source).exists(), f"{name}: {source} does not exist"
            assert target.endswith(":ro"), f"{name}: {source} of the checkout is not mounted read-only"
    assert {source for _, source, _ in MOUNTS if not source.startswith(".")} == RAW["volumes"].keys()


def test_images_are_pinned_to_versions_and_digests() -> None:
    others = [one["image"] for one in SERVICES.values() if "build" not in one]
    assert [image for image in others if not PINNED.fullmatch(image)] == []


def test_the_files_that_services_are_made_of_and_run_exist() -> None:
    builds = [one["build"] for one in SERVICES.values() if "build" in one]
    files = {str(Path(build["context"], build["dockerfile"])) for build in builds}
    files |= {word for name in SERVICES for word in words(name) if word.endswith((".py", ".properties"))}
    assert sorted(file for file in files if not (ROOT / file).is_file()) == []


def test_ports_are_published_once_and_on_loopback_alone() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert [port for port in published if not re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port)] == []
    hosts = Counter(port.rpartition(":")[0] for port in published)
    assert [host for host, times in hosts.items() if times > 1] == []


def test_the_rest_of_the_world_is_on_another_network_than_what_is_not_published() -> None:
    assert RAW["networks"] == {"inside": {"internal": True}, "published": None}
    published = {name: ["inside", "published"] for name, one in SERVICES.items() if one.get("ports")}
    assert {name: one["networks"] for name, one in SERVICES.items()} == {
        name: published.get(name, ["inside"]) for name in SERVICES
    }
    assert published.keys() == {"grafana", "kafka", "prometheus", "server", "thrift-server", "warehouse"}


def test_every_container_has_limits_and_no_privileges() -> None:
    for name, one in SERVICES.items():
        assert {"mem_limit", "cpus", "pids_limit"} <= one.keys(), name
        assert one["cap_drop"] == ["ALL"], name
        assert one["security_opt"] == ["no-new-privileges:true"], name
    assert [name for name, one in SERVICES.items() if one["read_only"] is not True] == ["kafka"]


@pytest.mark.parametrize("layer", LAYERS)
def test_a_driver_has_as_much_memory_beside_its_heap(layer: str) -> None:
    heap = gigabytes(spark_option(layer, "spark.driver.memory"))
    assert gigabytes(SERVICES[layer]["mem_limit"]) == 2 * heap


def test_grafana_has_no_account_that_could_have_a_known_password() -> None:
    given = SERVICES["grafana"]["environment"]
    assert [name for name in given if "PASSWORD" in name or "USER" in name.split("_")] == []
    assert given["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert given["GF_AUTH_DISABLE_LOGIN_FORM"] == "true"
    assert (given["GF_AUTH_ANONYMOUS_ENABLED"], given["GF_AUTH_ANONYMOUS_ORG_ROLE"]) == ("true", "Viewer")


def test_redis_leaves_memory_for_its_copy_and_evicts_nothing() -> None:
    assert option("redis", "--maxmemory") == "512mb"
    assert gigabytes(SERVICES["redis"]["mem_limit"]) == 1
    assert option("redis", "--maxmemory-policy") == "noeviction"


@pytest.mark.parametrize("layer", LAYERS)
def test_a_job_is_started_again_and_may_finish_its_micro_batch(layer: str) -> None:
    service = SERVICES[layer]
    assert (service["init"], service["restart"]) == (True, "unless-stopped")
    assert "stop_grace_period" in service


def test_the_settings_of_every_service_are_known_and_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    known = set(variables())
    for name, service in SERVICES.items():
        ours = {
            key: value for key, value in service.get("environment", {}).items() if key.startswith(ENV_PREFIX)
        }
        assert ours.keys() <= known, f"{name}: {ours.keys() - known} are no settings"
        for variable, value in ours.items():
            monkeypatch.setenv(variable, value)
    settings = load_settings()
    kafka = SERVICES["kafka"]["environment"]
    assert f"INTERNAL://{settings.kafka.bootstrap_servers}" in kafka["KAFKA_ADVERTISED_LISTENERS"].split(",")
    assert re.match(r"^redis://redis:6379/\d+$", settings.redis.url.get_secret_value())


def test_kafka_has_the_settings_of_the_local_broker() -> None:
    expected = {
        f"KAFKA_{key.upper().replace('.', '_')}": value
        for key, value in broker._SETTINGS.items()
        if key not in SMALL
    }
    given = SERVICES["kafka"]["environment"]
    assert {key: given.get(key) for key in expected} == expected


@pytest.mark.parametrize("layer", LAYERS)
def test_a_job_is_the_line_of_the_readme_on_the_cluster(layer: str) -> None:
    job, master = words(layer), "spark-master"
    assert job[0] == "spark-submit"
    assert option(layer, "--master") == f"spark://{option(master, '--host')}:{option(master, '--port')}"
    assert option(layer, "--properties-file") == ".venv/share/lakehouse/cluster.properties"
    assert job[job.index(f"jobs/{layer}.py") + 1 :] == ["--trigger", "1 second"]
    check_trigger(option(layer, "--trigger"))


@pytest.mark.parametrize("layer", LAYERS)
def test_a_driver_is_reached_under_its_own_name(layer: str) -> None:
    assert spark_option(layer, "spark.driver.host") == layer
    assert not {"spark.driver.bindAddress", "spark.driver.host"} & properties.for_cluster().keys()


def test_the_jobs_fit_on_the_workers_side_by_side() -> None:
    replicas, cores = SERVICES["spark-worker"]["deploy"]["replicas"], int(option("spark-worker", "--cores"))
    assert sum(int(spark_option(layer, "spark.cores.max")) for layer in LAYERS) <= replicas * cores
    memory = max(gigabytes(spark_option(layer, "spark.executor.memory")) for layer in LAYERS)
    assert memory * cores <= gigabytes(option("spark-worker", "--memory"))


def test_prometheus_scrapes_jobs_and_alerts_and_judges_the_rules_that_are_mounted() -> None:
    config = ROOT / "docker" / "prometheus" / "prometheus.yml"
    promtool = shutil.which("promtool")
    assert promtool is not None, "promtool is missing: scripts/prometheus.sh installs it"
    subprocess.run([promtool, "check", "config", str(config)], check=True, capture_output=True)
    (scraped,) = yaml.safe_load(config.read_text(encoding="utf-8"))["scrape_configs"]
    targets = [target.partition(":")[0] for one in scraped["static_configs"] for target in one["targets"]]
    assert targets == [*LAYERS, "alert", "server"]
    ports = {option(name, "--telemetry-port") for name in ("alert", "server")}
    assert ports == {SERVICES["server"]["environment"]["LAKEHOUSE_TELEMETRY_PORT"]} == {"9464"}
    inside = "/etc/prometheus"
    assert f"--config.file={inside}/{config.name}" in words("prometheus")
    assert f"./docker/prometheus:{inside}:ro" in SERVICES["prometheus"]["volumes"]


def test_grafana_finds_the_dashboards_and_prometheus_where_they_are() -> None:
    provisioning = ROOT / "docker" / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "lakehouse.yml").read_text())["providers"]
    dashboards = f"./docker/grafana/dashboards:{provider['options']['path']}:ro"
    assert dashboards in SERVICES["grafana"]["volumes"]
    assert source["url"] == "http://prometheus:9090"
    asked = (ROOT / "docker" / "grafana" / "dashboards" / "lakehouse.json").read_text(encoding="utf-8")
    assert f'"uid": "{source["uid"]}"' in asked


def gigabytes(size: str) -> int:
    assert size.endswith("g")
    return int(size.removesuffix("g"))


def test_everything_that_touches_the_lake_mounts_it_in_one_place() -> None:
    for name, service in SERVICES.items():
        if "build" in service and name not in {"secret", "metastore"}:
            to_read = ":ro" * (name == "thrift-server")  # it would write for anyone who asks
            assert service["volumes"][0] == f"lake:{service['environment']['LAKEHOUSE_LAKE']}{to_read}"


def test_the_metastore_keeps_names_in_the_postgres_beside_it() -> None:
    site = ElementTree.parse(ROOT / "docker" / "metastore" / "hive-site.xml")  # noqa: S314 - our own file
    given = {one.findtext("name"): one.findtext("value") for one in site.iter("property")}
    postgres = SERVICES["postgres"]["environment"]
    assert (
        given["javax.jdo.option.ConnectionURL"]
        == f"jdbc:postgresql://postgres:5432/{postgres['POSTGRES_DB']}"
    )
    assert given["javax.jdo.option.ConnectionUserName"] == postgres["POSTGRES_USER"]
    conf, driver, jars = option("metastore", "-cp").split(":")
    assert f"./docker/metastore:{conf}:ro" in SERVICES["metastore"]["volumes"]
    assert driver == "/usr/share/java/postgresql.jar"
    assert "libpostgresql-jdbc-java" in instructions("RUN")[-2]
    assert jars == f"{dict(one.split('=', 1) for one in instructions('ENV')[-1])['SPARK_HOME']}/jars/*"


def test_names_are_asked_for_where_they_are_registered() -> None:
    uri = f"thrift://metastore:{option('metastore', '-p')}"
    assert spark_option("thrift-server", "spark.hadoop.hive.metastore.uris") == uri
    assert SERVICES["register"]["environment"]["LAKEHOUSE_METASTORE"] == uri
    port = spark_option("thrift-server", "spark.hadoop.hive.server2.thrift.port")
    assert SERVICES["thrift-server"]["ports"] == [f"127.0.0.1:{port}:{port}"]
    by_profile = {name for name, one in SERVICES.items() if one.get("profiles") == ["names"]}
    assert by_profile == {"postgres", "metastore", "thrift-server", "register"}


def test_gold_goes_to_the_database_of_a_profile_once_a_file_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert SERVICES["warehouse"]["profiles"] == ["postgres"]
    said = (ROOT / "docker" / "sinks.env.example").read_text(encoding="utf-8").splitlines()
    variable, _, url = said[-1].partition("=")
    assert (variable, url) == ("LAKEHOUSE_POSTGRES_URL", "postgresql://lakehouse@warehouse:5432/gold")
    monkeypatch.setenv(variable, url)
    assert load_settings().postgres.url.get_secret_value() == url
    made = SERVICES["warehouse"]["environment"]
    assert (made["POSTGRES_USER"], made["POSTGRES_DB"]) == ("lakehouse", "gold")
    named = {name for name, one in SERVICES.items() if "env_file" in one}
    assert named == {name for name, one in SERVICES.items() if "build" in one}
    assert SERVICES["export"]["env_file"] == [{"path": "docker/sinks.env", "required": False}]


def test_spark_alone_knows_its_secret_and_the_server_alone_its_tokens() -> None:
    sparks = {"spark-master", "spark-worker", *LAYERS}
    own = {name: set(one["volumes"][1:]) - {"/tmp"} for name, one in SERVICES.items() if "build" in one}
    assert {name: volumes for name, volumes in own.items() if volumes} == {
        **{name: {"secrets:/secrets:ro"} for name in sparks},
        "server": {"server:/server"},
    }
    assert SERVICES["secret"]["volumes"] == ["secrets:/secrets", "/tmp"]
    files = {
        name: one["environment"].get("LAKEHOUSE_SPARK_SECRET_FILE")
        for name, one in SERVICES.items()
        if "build" in one
    }
    assert {name for name, file in files.items() if file == "/secrets/spark"} == sparks
    assert SERVICES["server"]["environment"]["LAKEHOUSE_SERVER_HOME"] == "/server"
    for name in ("spark-master", "spark-worker"):
        assert option(name, "--properties-file") == ".venv/share/lakehouse/cluster.properties"
        assert "entrypoint" not in SERVICES[name], "the image's gives them the secret"
    made = SERVICES["spark-master"]["depends_on"]["secret"]
    assert made == {"condition": "service_completed_successfully"}


def test_the_secret_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    command = words("secret")
    command[-1] = command[-1].replace("/secrets", str(tmp_path))
    subprocess.run(command, check=True)
    file = tmp_path / "spark"
    first = file.read_text()
    assert re.fullmatch(r"[0-9a-f]{64}\n", first)
    assert file.stat().st_mode & 0o777 == 0o600
    subprocess.run(command, check=True)
    assert file.read_text() == first


def test_the_image_has_the_version_of_the_project() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools_scm"][
        "fallback_version"
    ]
    assert {one["image"] for one in SERVICES.values() if "build" in one} == {f"lakehouse:{version}"}


def test_the_producer_is_called_with_options_that_it_has() -> None:
    command: Any = typer.main.get_command(app)
    program, *arguments = words("produce")
    assert program == "lakehouse"
    while hasattr(command, "commands"):
        command = command.get_command(None, arguments.pop(0))
    context = command.make_context("produce", arguments)  # exits with a message if an option is unknown
    assert context.params["rate"] * context.params["seconds"] == 600_000
