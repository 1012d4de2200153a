"""docker/Dockerfile and the contents of its image, without an engine to build it."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pyspark
import pytest
from prometheus_client import CollectorRegistry

from lakehouse.operations.telemetry.server import Readiness, serving
from lakehouse.storage.spark import properties
from lakehouse.storage.spark.jars import checksums
from tests.support.dockerfile import ROOT, instructions, user, workdir

PINNED = re.compile(r"[a-z0-9./-]+:v?\d+\.\d+[a-z0-9.-]*@sha256:[0-9a-f]{64}")
ENTRYPOINT = ROOT / "docker" / "entrypoint.sh"
SPARK_HOME = Path(pyspark.__file__).parent
# The variables that Spark on Kubernetes sets for an executor.
EXECUTOR = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@10.1.0.7:7078",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_MEMORY": "512m",
    "SPARK_APPLICATION_ID": "lakehouse-gold-0",
    "SPARK_EXECUTOR_POD_IP": "10.1.0.8",
    "SPARK_EXECUTOR_POD_NAME": "lakehouse-gold-exec-3",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_CLASSPATH": "/opt/jars/*",
    "SPARK_CONF_DIR": "/opt/spark/conf",
    "SPARK_JAVA_OPT_0": "-Duser.timezone=UTC",
    "SPARK_JAVA_OPT_1": "-Dspark.driver.port=7078",
}
OPTIONS = {name for name in EXECUTOR if name.startswith("SPARK_JAVA_OPT_")}


def stages() -> list[list[str]]:
    """Return the Dockerfile's instructions as one list per stage."""
    text = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    starts = [n for n, line in enumerate(lines) if line.startswith("FROM ")]
    return [lines[start:end] for start, end in zip(starts, [*starts[1:], None], strict=True)]


def test_the_image_is_made_of_files_that_exist_and_are_sent_to_the_engine() -> None:
    sources = {
        source
        for copied in instructions("COPY")
        if not copied[0].startswith("--from=")
        for source in copied[:-1]
    }
    assert sorted(source for source in sources if not list(ROOT.glob(source))) == []
    sent = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert sent[1] == "*"
    assert {f"!{Path(source).parts[0]}" for source in sources} == {
        line for line in sent if line.startswith("!")
    }


def test_what_fetches_the_jars_has_its_modules_before_the_rest_is_copied(tmp_path: Path) -> None:
    (fetch,) = (n for n, line in enumerate(stages()[0]) if "lakehouse.storage.spark.installing" in line)
    for line in stages()[0][:fetch]:
        if line.startswith("COPY lakehouse/"):
            *sources, target = line.split()[1:]
            (tmp_path / target).mkdir(parents=True, exist_ok=True)
            for source in (found for pattern in sources for found in ROOT.glob(pattern)):
                if source.is_dir():  # COPY copies its contents
                    shutil.copytree(source, tmp_path / target, dirs_exist_ok=True)
                else:
                    shutil.copy(source, tmp_path / target)
    # Without `site`, which would find missing modules in the checkout.
    subprocess.run(
        [sys.executable, "-S", "-c", "import lakehouse.storage.spark.installing"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{tmp_path}:{sysconfig.get_path('purelib')}"},
        check=True,
    )


def test_the_image_is_pinned_and_does_not_run_as_root() -> None:
    bases = {words[0] for words in instructions("FROM")}
    assert len(bases) == 1
    assert [base for base in bases if not PINNED.fullmatch(base)] == []
    assert stages()[-1].count("USER 1000:1000") == 1
    assert user() == (1000, 1000)
    (added,) = re.findall(r"useradd .*--uid (\d+)", "\n".join(stages()[-1]))
    assert int(added) == user()[0]


def test_what_is_locked_by_a_hash_and_what_is_not_is_as_security_md_says() -> None:
    workflows = [file.read_text() for file in sorted((ROOT / ".github/workflows").iterdir())]
    actions = [name for text in workflows for name in re.findall(r"uses: (\S+)", text)]
    assert actions
    assert [name for name in actions if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", name)] == []

    files = [ROOT / ".gitlab-ci.yml", ROOT / "docker-compose.yml", *(ROOT / "deploy").rglob("*.yaml")]
    texts = [*workflows, *(file.read_text() for file in files)]
    named = {name for text in texts for name in re.findall(r"(?:image|runs-on): (\S+)", text)}
    tagged = {name for name in named if not PINNED.fullmatch(name)}
    assert tagged == {"lakehouse:0.1.0", "python:3.11-bookworm", "ubuntu-24.04"}
    security = (ROOT / "SECURITY.md").read_text()
    said = security[security.index("Not locked by a hash:") :]
    assert [name for name in tagged if f"`{name}`" not in said] == []

    locks = [file.read_text() for file in sorted((ROOT / "requirements").glob("*.txt"))]
    packages = [one for text in locks for one in re.split(r"\n(?=\w)", text) if "==" in one]
    assert len(packages) > 100
    assert [one for one in packages if "--hash=sha256:" not in one] == []


def test_what_installs_stays_behind_and_everything_is_locked() -> None:
    build, final = ("\n".join(stage) for stage in stages())
    installed = [line for line in re.findall(r"pip install ([^&\n]*)", build) if "--editable ." not in line]
    assert installed != []
    assert all("--require-hashes" in line for line in installed)
    assert "pip install" not in final
    for stage in (build, final):
        assert re.search(r"pip uninstall --yes [a-z -]*setuptools wheel pip", stage)
    assert f"COPY --from=build {workdir()} {workdir()}" in final
    packages = re.findall(r"--no-install-recommends ([a-z0-9 -]+?) +&&", final)
    assert packages == ["libpostgresql-jdbc-java openjdk-17-jre-headless procps tini"]


def test_the_local_services_stay_out_of_the_image() -> None:
    (fetch,) = [line for line in stages()[0] if "lakehouse.storage.spark.installing" in line]
    assert re.search(r"-m lakehouse\.storage\.spark\.installing spark s3 &&", fetch)
    assert {name.partition("/")[0] for name in checksums(["spark", "s3"])} == {"spark", "s3"}
    locked = (ROOT / "requirements" / "runtime.txt").read_text(encoding="utf-8")
    assert re.findall(r"^redis\w*", locked, re.MULTILINE) == ["redis"]
    assert "redis-server" not in "\n".join(map("\n".join, stages()))


def test_paths_of_the_image_are_those_of_its_python() -> None:
    text = " ".join(stages()[-1])
    (base,) = {words[0] for words in instructions("FROM")}
    version = ".".join(base.removeprefix("python:").split("-")[0].split(".")[:2])
    assert f"SPARK_HOME={workdir()}/.venv/lib/python{version}/site-packages/pyspark" in text
    assert f"PATH={workdir()}/.venv/bin:$PATH" in text
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f">={version}" == project["requires-python"]
    assert f'ENTRYPOINT ["{workdir()}/{ENTRYPOINT.relative_to(ROOT)}"]' in stages()[-1]
    assert f"{workdir()}/docker/health.py" in text
    assert os.access(ENTRYPOINT, os.X_OK)


def run_by_the_entrypoint(*arguments: str, **environment: str) -> list[str]:
    """Return the command that the entrypoint would `exec`, by printing it instead."""
    script = 'exec() { printf "%s\\0" "$@"; }; . "$0"'
    done = subprocess.run(
        ["bash", "-c", script, str(ENTRYPOINT), *arguments],  # noqa: S607 - the one on PATH, as in the image
        env={"PATH": os.environ["PATH"], "SPARK_HOME": "/spark"} | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split("\0")[:-1]


def test_a_command_runs_as_it_is_under_an_init() -> None:
    assert run_by_the_entrypoint("lakehouse", "sql", "SELECT 1  AS one") == [
        *("tini", "-s", "--", "lakehouse", "sql", "SELECT 1  AS one")
    ]


def test_a_standalone_cluster_gets_its_secret_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("hush\n")
    script = f'exec() {{ printf "%s" "$_SPARK_AUTH_SECRET"; }}; . "{ENTRYPOINT}"'
    done = subprocess.run(
        ["bash", "-c", script, "entrypoint", "spark-class"],  # noqa: S607
        env={"PATH": os.environ["PATH"], "LAKEHOUSE_SPARK_SECRET_FILE": str(file)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "hush"
    (jar,) = (SPARK_HOME / "jars").glob("spark-core_*.jar")
    with zipfile.ZipFile(jar) as classes:
        assert b"_SPARK_AUTH_SECRET" in classes.read("org/apache/spark/SecurityManager$.class")


def test_a_driver_is_spark_submit_that_listens_at_its_pods_address() -> None:
    given = (
        "--properties-file",
        "/opt/spark/conf/spark.properties",
        "local:///jobs/gold.py",
        "--trigger",
        "1 second",
    )
    assert run_by_the_entrypoint("driver", *given, SPARK_DRIVER_BIND_ADDRESS="10.1.0.7") == [
        *("tini", "-s", "--", "spark-submit", "--conf", "spark.driver.bindAddress=10.1.0.7"),
        *("--deploy-mode", "client", *given),
    ]


def test_an_executor_is_what_its_environment_says() -> None:
    assert run_by_the_entrypoint("executor", **EXECUTOR) == [
        *(
            "tini",
            "-s",
            "--",
            "java",
            "-Duser.timezone=UTC",
            "-Dspark.driver.port=7078",
            "-Xms512m",
            "-Xmx512m",
        ),
        *("-cp", "/opt/jars/*:/opt/spark/conf:/spark/jars/*"),
        "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
        *(
            "--driver-url",
            "spark://CoarseGrainedScheduler@10.1.0.7:7078",
            "--executor-id",
            "3",
            "--cores",
            "2",
        ),
        *("--app-id", "lakehouse-gold-0", "--hostname", "10.1.0.8", "--resourceProfileId", "0"),
        *("--podName", "lakehouse-gold-exec-3"),
    ]


def test_an_executor_needs_neither_options_nor_a_class_path() -> None:
    optional = OPTIONS | {"SPARK_CLASSPATH", "SPARK_CONF_DIR"}
    command = run_by_the_entrypoint("executor", **{key: EXECUTOR[key] for key in EXECUTOR.keys() - optional})
    assert command[3:8] == ["java", "-Xms512m", "-Xmx512m", "-cp", "/spark/jars/*"]


def test_spark_has_the_variables_and_options_that_the_entrypoint_uses() -> None:
    (jar,) = (SPARK_HOME / "jars").glob("spark-kubernetes_*.jar")
    with zipfile.ZipFile(jar) as classes:
        constants = classes.read("org/apache/spark/deploy/k8s/Constants$.class")
        backend = classes.read("org/apache/spark/scheduler/cluster/k8s/KubernetesExecutorBackend$.class")
    used = set(re.findall(r"\bSPARK_[A-Z_]+", ENTRYPOINT.read_text(encoding="utf-8"))) - {"SPARK_HOME"}
    assert used == (EXECUTOR.keys() - OPTIONS) | {"SPARK_JAVA_OPT_", "SPARK_DRIVER_BIND_ADDRESS"}
    assert sorted(name for name in used if name.encode() not in constants) == []
    options = {word for word in run_by_the_entrypoint("executor", **EXECUTOR) if re.match("--[a-z]", word)}
    assert len(options) == 7
    assert sorted(name for name in options if name.encode() not in backend) == []


@pytest.fixture(scope="module")
def health() -> ModuleType:
    spec = importlib.util.spec_from_file_location("health", ROOT / "docker" / "health.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_health_check_asks_the_telemetry_that_a_process_serves(health: ModuleType) -> None:
    with serving(CollectorRegistry(), lambda: Readiness(is_ready=False), 0) as port:
        assert health.is_live(str(port))  # alive, though not ready
    assert not health.is_live(str(port))
    assert health.is_live("")
    assert health.is_live("-1")


def really(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the entrypoint with this machine's Spark, but without the init, which only the image has."""
    return subprocess.run(
        ["bash", "-c", 'exec() { shift 3; command "$@"; }; . "$0"', str(ENTRYPOINT), *arguments],  # noqa: S607
        env=os.environ
        | {"SPARK_HOME": str(SPARK_HOME), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.soak
def test_a_driver_starts_as_the_operator_starts_it(tmp_path: Path) -> None:
    conf = tmp_path / "spark.properties"
    properties.write(conf, properties.for_cluster() | {"spark.master": "local[1]"})
    done = really(
        *("driver", "--properties-file", str(conf), "--class", "org.apache.spark.deploy.PythonRunner"),
        *(f"local://{ROOT}/jobs/gold.py", "--help"),
        SPARK_DRIVER_BIND_ADDRESS="127.0.0.1",
    )
    assert done.returncode == 0, done.stderr
    assert "Run the gold layer until stopped or caught up." in done.stdout


@pytest.mark.soak
def test_an_executor_starts_and_looks_for_its_driver() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # taken, but not listening
        url = f"spark://CoarseGrainedScheduler@127.0.0.1:{nobody.getsockname()[1]}"
        changes = {"SPARK_DRIVER_URL": url, "SPARK_EXECUTOR_POD_IP": "127.0.0.1", "SPARK_CONF_DIR": ""}
        opened = {"SPARK_JAVA_OPT_1": "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED"}
        done = really("executor", **EXECUTOR | changes | opened)
    assert done.returncode != 0
    assert "Connection refused" in done.stdout + done.stderr
