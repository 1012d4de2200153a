"""docker-compose.yml and docker/Dockerfile agree with each other and with what the repository has.

No engine is needed: `problems` is what `docker compose config` would refuse, for the part of the Compose
specification that is used here, and what only shows when containers run.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
import typer
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lakehouse.cli import app
from lakehouse.layers.query import LAYERS
from lakehouse.runtime.triggers import check_trigger
from lakehouse.sandbox import broker
from lakehouse.settings import ENV_PREFIX, Settings, load_settings
from lakehouse.spark import session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[1]
DURATION = r"^\d+[smh]$"
PINNED = re.compile(r"^[a-z0-9./-]+:v?\d+\.\d+[a-z0-9.-]*$")
# Of the local broker's settings, those that are about the size of a laptop.
SMALL = {"log.cleaner.dedupe.buffer.size", "num.network.threads", "num.io.threads"}


class Part(BaseModel):
    """A mapping in which no other key may be."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Build(Part):
    context: str
    dockerfile: str


class HealthCheck(Part):
    test: list[str] = Field(min_length=2)
    interval: str = Field(pattern=DURATION)
    timeout: str = Field(pattern=DURATION)
    retries: int


class Dependency(Part):
    condition: Literal["service_started", "service_healthy", "service_completed_successfully"]


class Deploy(Part):
    replicas: int


class Service(Part):
    """Commands are lists: a shell in between would keep SIGTERM to itself."""

    image: str
    platform: str | None = None
    build: Build | None = None
    hostname: str | None = None
    entrypoint: list[str] = []
    command: list[str] = []
    init: bool = False
    restart: Literal["no", "unless-stopped"]
    stop_grace_period: str | None = Field(default=None, pattern=DURATION)
    environment: dict[str, str] = {}
    ports: list[str] = []
    volumes: list[str] = []
    healthcheck: HealthCheck | None = None
    depends_on: dict[str, Dependency] = {}
    deploy: Deploy = Deploy(replicas=1)
    profiles: list[str] = []
    security_opt: list[str] = []

    @property
    def words(self) -> list[str]:
        return [*self.entrypoint, *self.command]

    def option(self, name: str) -> str:
        return self.words[self.words.index(name) + 1]

    def spark_option(self, name: str) -> str:
        found = [word for word in self.words if word.startswith(f"{name}=")]
        assert len(found) == 1, f"{name} is given {len(found)} times"
        return found[0].removeprefix(f"{name}=")


class Compose(Part):
    name: str
    services: dict[str, Service]
    volumes: dict[str, None]


def of_dependencies(compose: Compose) -> Iterator[str]:
    for name, service in compose.services.items():
        for target, dependency in service.depends_on.items():
            if target not in compose.services:
                yield f"{name} depends on {target}, which is no service"
            elif dependency.condition == "service_healthy" and not compose.services[target].healthcheck:
                yield f"{name} waits for {target} to be healthy, which has no healthcheck"


def of_volumes(compose: Compose) -> Iterator[str]:
    mounts = [(name, volume) for name, one in compose.services.items() for volume in one.volumes]
    for name, volume in mounts:
        source, _, rest = volume.partition(":")
        if source.startswith(".") and not (ROOT / source).exists():
            yield f"{name}: {source} does not exist"
        if source.startswith(".") and not rest.endswith(":ro"):
            yield f"{name}: {source} of the checkout is not mounted read-only"
    mounted = {volume.split(":")[0] for _, volume in mounts if not volume.startswith(".")}
    yield from (f"volume {name} is not declared" for name in sorted(mounted - compose.volumes.keys()))
    yield from (f"volume {name} is not used" for name in sorted(compose.volumes.keys() - mounted))


def of_environment(compose: Compose) -> Iterator[str]:
    known = {ENV_PREFIX + name.upper() for name in Settings.model_fields}
    for name, service in compose.services.items():
        for variable in service.environment:
            if variable.startswith(ENV_PREFIX) and variable not in known:
                yield f"{name}: {variable} is no setting"


def of_images(compose: Compose) -> Iterator[str]:
    for name, service in compose.services.items():
        if not PINNED.match(service.image):
            yield f"{name}: image {service.image} is not pinned to a version"
        if service.build and not (ROOT / service.build.context / service.build.dockerfile).is_file():
            yield f"{name}: {service.build.dockerfile} does not exist"


def of_files(compose: Compose) -> Iterator[str]:
    for name, service in compose.services.items():
        for word in service.words:
            if word.endswith((".py", ".properties")) and not (ROOT / word).is_file():
                yield f"{name}: {word} does not exist"


def of_ports(compose: Compose) -> Iterator[str]:
    published = [(name, port) for name, service in compose.services.items() for port in service.ports]
    for name, port in published:
        if not re.match(r"^127\.0\.0\.1:\d+:\d+$", port):
            yield f"{name}: port {port} is not published on 127.0.0.1 alone"
    hosts = [port.rpartition(":")[0] for _, port in published]
    yield from (
        f"{host} is published twice" for host in sorted({host for host in hosts if hosts.count(host) > 1})
    )


def of_jobs(compose: Compose) -> Iterator[str]:
    layers = {path.stem for path in (ROOT / "jobs").glob("*.py")} & set(LAYERS)
    submitting = {name for name, service in compose.services.items() if "spark-submit" in service.words}
    yield from (f"jobs/{name}.py has no service" for name in sorted(layers - submitting))
    for name in sorted(submitting):
        service = compose.services[name]
        if f"jobs/{name}.py" not in service.words:
            yield f"{name} does not submit jobs/{name}.py"
        if not (service.init and service.restart == "unless-stopped" and service.stop_grace_period):
            yield f"{name} needs init, restart: unless-stopped and stop_grace_period, to finish a micro-batch"


CHECKS: tuple[Callable[[Compose], Iterator[str]], ...] = (
    of_dependencies,
    of_volumes,
    of_environment,
    of_images,
    of_files,
    of_ports,
    of_jobs,
)


def problems(raw: dict[str, Any]) -> list[str]:
    try:
        compose = parse(raw)
    except ValidationError as error:
        return [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
    return [problem for check in CHECKS for problem in check(compose)]


def parse(raw: dict[str, Any]) -> Compose:
    return Compose.model_validate({key: value for key, value in raw.items() if not key.startswith("x-")})


class UniqueKeys(yaml.SafeLoader):
    """YAML in which a key that is given twice is an error, as it is to Compose."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        keys = [key.value for key, _ in node.value]
        repeated = sorted({str(key) for key in keys if keys.count(key) > 1})
        if repeated:
            raise yaml.constructor.ConstructorError(None, None, f"given twice: {repeated}", node.start_mark)
        super().flatten_mapping(node)


def read() -> dict[str, Any]:
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    raw: dict[str, Any] = yaml.load(text, Loader=UniqueKeys)  # noqa: S506 - a safe loader
    return raw


@pytest.fixture(scope="module")
def compose() -> Compose:
    return parse(read())


def test_the_compose_file_has_no_problems() -> None:
    assert problems(read()) == []


def set_at(*path: str, value: object) -> Callable[[dict[str, Any]], None]:
    def mutate(raw: dict[str, Any]) -> None:
        at = raw
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value

    return mutate


def delete(*path: str) -> Callable[[dict[str, Any]], None]:
    def mutate(raw: dict[str, Any]) -> None:
        at = raw
        for key in path[:-1]:
            at = at[key]
        del at[path[-1]]

    return mutate


@pytest.mark.parametrize(
    ("mutate", "problem"),
    [
        (set_at("services", "kafka", "helthcheck", value={}), "services.kafka.helthcheck: Extra inputs"),
        (set_at("version", value="3"), "version: Extra inputs"),
        (set_at("services", "redis", "command", value="redis-server"), "services.redis.command: Input"),
        (
            set_at("services", "redis", "environment", value={"A": False}),
            "services.redis.environment.A: Input",
        ),
        (
            set_at("services", "bronze", "stop_grace_period", value="soon"),
            "services.bronze.stop_grace_period: ",
        ),
        (delete("volumes", "lake"), "volume lake is not declared"),
        (set_at("volumes", "spare", value=None), "volume spare is not used"),
        (
            set_at("services", "gold", "environment", value={"LAKEHOUSE_LAKES": "/"}),
            "gold: LAKEHOUSE_LAKES is no",
        ),
        (delete("services", "kafka", "healthcheck"), "bronze waits for kafka to be healthy, which has no"),
        (delete("services", "spark-master"), "bronze depends on spark-master, which is no service"),
        (
            set_at("services", "redis", "image", value="redis:latest"),
            "redis: image redis:latest is not pinned",
        ),
        (set_at("services", "redis", "image", value="redis"), "redis: image redis is not pinned"),
        (
            set_at("services", "gold", "build", "dockerfile", value="Dockerfile"),
            "gold: Dockerfile does not exist",
        ),
        (set_at("services", "gold", "command", value=["jobs/glod.py"]), "gold: jobs/glod.py does not exist"),
        (
            set_at("services", "redis", "ports", value=["6379:6379"]),
            "redis: port 6379:6379 is not published on",
        ),
        (
            set_at("services", "redis", "ports", value=["127.0.0.1:9092:6379"]),
            "127.0.0.1:9092 is published twice",
        ),
        (
            set_at("services", "prometheus", "volumes", value=["./docker/prometheus:/etc/prometheus"]),
            "prometheus: ./docker/prometheus of the checkout is not mounted read-only",
        ),
        (
            set_at("services", "grafana", "volumes", value=["./docker/grafanas:/etc/grafana:ro"]),
            "grafana: ./docker/grafanas does not exist",
        ),
        (delete("services", "export"), "jobs/export.py has no service"),
        (
            set_at("services", "gold", "command", value=["jobs/silver.py"]),
            "gold does not submit jobs/gold.py",
        ),
        (set_at("services", "gold", "init", value=False), "gold needs init, "),
    ],
)
def test_a_mistake_is_found(mutate: Callable[[dict[str, Any]], None], problem: str) -> None:
    raw = read()
    mutate(raw)
    assert [found for found in problems(raw) if found.startswith(problem)], problems(raw)


def test_a_key_given_twice_is_refused() -> None:
    with pytest.raises(yaml.constructor.ConstructorError, match="given twice: \\['image'\\]"):
        yaml.load("kafka: {image: a, image: b}", Loader=UniqueKeys)  # noqa: S506


def test_the_settings_of_every_service_are_accepted(
    compose: Compose, monkeypatch: pytest.MonkeyPatch
) -> None:
    for service in compose.services.values():
        for variable, value in service.environment.items():
            if variable.startswith(ENV_PREFIX):
                monkeypatch.setenv(variable, value)
    settings = load_settings()
    kafka = compose.services["kafka"].environment
    assert f"INTERNAL://{settings.kafka_bootstrap_servers}" in kafka["KAFKA_ADVERTISED_LISTENERS"].split(",")
    assert re.match(r"^redis://redis:6379/\d+$", settings.redis_url.get_secret_value())


def test_kafka_has_the_settings_of_the_local_broker(compose: Compose) -> None:
    expected = {
        f"KAFKA_{key.upper().replace('.', '_')}": value
        for key, value in broker._SETTINGS.items()
        if key not in SMALL
    }
    given = compose.services["kafka"].environment
    assert {key: given.get(key) for key in expected} == expected


@pytest.mark.parametrize("layer", LAYERS)
def test_a_job_is_the_line_of_the_readme_on_the_cluster(compose: Compose, layer: str) -> None:
    job, master = compose.services[layer], compose.services["spark-master"]
    assert job.words[0] == "spark-submit"
    assert job.option("--master") == f"spark://{master.option('--host')}:{master.option('--port')}"
    assert job.option("--properties-file") == "lakehouse/spark.properties"
    after = job.words.index(f"jobs/{layer}.py") + 1
    assert job.words[after:] == ["--trigger", "1 second"]
    check_trigger(job.option("--trigger"))


@pytest.mark.parametrize("layer", LAYERS)
def test_a_driver_is_reached_under_its_own_name(compose: Compose, layer: str) -> None:
    assert compose.services[layer].spark_option("spark.driver.host") == layer
    assert compose.services[layer].spark_option("spark.driver.bindAddress") == "0.0.0.0"  # noqa: S104


@pytest.mark.parametrize("layer", LAYERS)
def test_a_driver_has_the_java_options_of_the_properties_but_for_the_log(
    compose: Compose, layer: str
) -> None:
    name = "spark.driver.extraJavaOptions"
    options = session._read_properties(session.PROPERTIES)[name].split()
    expected = [option for option in options if not option.startswith("-Dlog4j2.configurationFile=")]
    assert compose.services[layer].spark_option(name).split() == expected


def test_the_jobs_fit_on_the_workers_side_by_side(compose: Compose) -> None:
    worker = compose.services["spark-worker"]
    jobs = [compose.services[layer] for layer in LAYERS]
    cores = [int(job.spark_option("spark.cores.max")) for job in jobs]
    assert sum(cores) <= worker.deploy.replicas * int(worker.option("--cores"))
    memory = {gigabytes(job.spark_option("spark.executor.memory")) for job in jobs}
    assert max(memory) * int(worker.option("--cores")) <= gigabytes(worker.option("--memory"))


def test_prometheus_scrapes_jobs_and_alerts_and_judges_the_rules_that_are_mounted(compose: Compose) -> None:
    config = ROOT / "docker" / "prometheus" / "prometheus.yml"
    promtool = shutil.which("promtool")
    assert promtool is not None, "promtool is missing: scripts/prometheus.sh installs it"
    subprocess.run([promtool, "check", "config", str(config)], check=True, capture_output=True)
    (scraped,) = yaml.safe_load(config.read_text(encoding="utf-8"))["scrape_configs"]
    targets = [target.partition(":")[0] for one in scraped["static_configs"] for target in one["targets"]]
    assert targets == [*LAYERS, "alert", "server"]
    ports = {compose.services[name].option("--telemetry-port") for name in ("alert", "server")}
    assert ports == {compose.services["server"].environment["LAKEHOUSE_TELEMETRY_PORT"]} == {"9464"}
    inside = "/etc/prometheus"
    assert f"--config.file={inside}/{config.name}" in compose.services["prometheus"].command
    assert f"./docker/prometheus:{inside}:ro" in compose.services["prometheus"].volumes


def test_grafana_finds_the_dashboards_and_prometheus_where_they_are(compose: Compose) -> None:
    provisioning = ROOT / "docker" / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "lakehouse.yml").read_text())["providers"]
    dashboards = f"./docker/grafana/dashboards:{provider['options']['path']}:ro"
    assert dashboards in compose.services["grafana"].volumes
    assert source["url"] == "http://prometheus:9090"
    asked = (ROOT / "docker" / "grafana" / "dashboards" / "lakehouse.json").read_text(encoding="utf-8")
    assert f'"uid": "{source["uid"]}"' in asked


def gigabytes(size: str) -> int:
    assert size.endswith("g")
    return int(size.removesuffix("g"))


def test_everything_that_touches_the_lake_mounts_it_in_one_place(compose: Compose) -> None:
    ours = [service for service in compose.services.values() if service.build]
    assert {tuple(service.volumes) for service in ours} == {
        (f"lake:{ours[0].environment['LAKEHOUSE_LAKE']}",)
    }


def test_the_image_has_the_version_of_the_project(compose: Compose) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert {one.image for one in compose.services.values() if one.build} == {f"lakehouse:{version}"}


def test_the_producer_is_called_with_options_that_it_has(compose: Compose) -> None:
    command: Any = typer.main.get_command(app)
    program, *arguments = compose.services["produce"].words
    assert program == "lakehouse"
    while hasattr(command, "commands"):
        command = command.commands[arguments.pop(0)]
    context = command.make_context("produce", arguments)  # exits with a message for what it does not know
    assert context.params["rate"] * context.params["seconds"] == 600_000


def instructions(name: str) -> list[list[str]]:
    text = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    return [line.split()[1:] for line in text.splitlines() if line.startswith(f"{name} ")]


def test_the_image_is_made_of_files_that_exist_and_are_sent_to_the_engine() -> None:
    sources = {source for copied in instructions("COPY") for source in copied[:-1]}
    assert sorted(source for source in sources if not (ROOT / source).exists()) == []
    sent = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert sent[1] == "*"
    assert {f"!{Path(source).parts[0]}" for source in sources} == {
        line for line in sent if line.startswith("!")
    }


def test_the_image_is_pinned_and_does_not_run_as_root(compose: Compose) -> None:
    assert all(PINNED.match(image) for (image,) in instructions("FROM"))
    assert instructions("USER")[-1:] == [["lakehouse"]]
    (workdir,) = instructions("WORKDIR")
    assert compose.services["bronze"].spark_option("spark.pyspark.python") == f"{workdir[0]}/.venv/bin/python"
