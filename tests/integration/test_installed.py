"""The wheel outside the checkout: its command, `lakehouse setup`, and its jobs on a standalone cluster."""

from __future__ import annotations

import json
import os
import shutil
import site
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lakehouse.dev.samples import spread_times
from lakehouse.dev.samples.metrics import samples
from lakehouse.dev.samples.producing import produce
from lakehouse.dev.services.services import Endpoints
from tests.support.cluster import Cluster
from tests.support.processes import ROOT, Place, place

pytestmark = pytest.mark.soak

EVENTS = 3000
PARTS = ("pyproject.toml", "README.md", "lakehouse", "expectations", "jobs")


@dataclass(frozen=True)
class Installed:
    """A virtual environment with the wheel, and a place with produced events; neither knows the checkout."""

    prefix: Path
    place: Place

    @property
    def share(self) -> Path:
        return self.prefix / "share" / "lakehouse"

    def run(self, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
        inherited = {key: os.environ[key] for key in ("HOME", "JAVA_HOME", "LANG") if key in os.environ}
        ours = {key: value for key, value in self.place.environment.items() if key.startswith("LAKEHOUSE_")}
        path = f"{self.prefix}/bin:{Path(sys.executable).parent}:/usr/bin:/bin"
        return subprocess.run(
            command,
            cwd=self.place.home,
            env={**inherited, **ours, "PATH": path, **more},
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )


@pytest.fixture(scope="module")
def installed(services: Endpoints, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    directory = tmp_path_factory.mktemp("installed")
    source, prefix = directory / "source", directory / "environment"
    source.mkdir()
    for name in PARTS:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    built = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(directory), str(source)]
    subprocess.run([*pip, *built], check=True)
    (wheel,) = directory.glob("*.whl")
    shutil.rmtree(source)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(prefix)], check=True)
    (packages,) = prefix.glob("lib/python*/site-packages")
    # The locked dependencies are the tests' own; .pth files in a directory named by a .pth file are ignored.
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
    into = ["--python", str(prefix / "bin" / "python"), "install", "--no-deps", str(wheel)]
    subprocess.run([*pip, *into], check=True)
    home = directory / "home"
    home.mkdir()
    with place(home, services, database=9) as here:
        times = spread_times(EVENTS, end_ms=int(time.time() * 1000), span_s=300)
        assert produce(services.access, here.topic_in, samples(EVENTS, times, seed=4)).acknowledged == EVENTS
        yield Installed(prefix, here)


def test_the_jars_are_asked_for_and_setup_brings_them_with_the_properties_and_jobs(
    installed: Installed,
) -> None:
    before = installed.run("lakehouse", "run", "bronze", "--stream", "metrics", "--trigger", "available-now")
    assert before.returncode == 1
    assert "run `lakehouse setup`" in before.stderr
    for_an_image = installed.run("python", "-m", "lakehouse.storage.spark.installing", "spark")
    assert for_an_image.returncode == 0, for_an_image.stderr
    assert sorted(place.name for place in (installed.share / "jars").iterdir()) == ["disk", "spark"]

    done = installed.run("lakehouse", "setup")

    assert done.returncode == 0, done.stderr
    places = installed.share / "jobs", ROOT / "jobs"
    installed_jobs, jobs = ({one.name for one in place.glob("*.py")} for place in places)
    assert installed_jobs == jobs
    for name in ("laptop", "cluster"):
        assert str(ROOT) not in (installed.share / f"{name}.properties").read_text(encoding="utf-8")
    again = installed.run("lakehouse", "setup")
    assert "fetching" not in again.stdout


def test_its_commands_need_no_checkout(installed: Installed, tmp_path: Path) -> None:
    config = tmp_path / "lakehouse.toml"
    made = installed.run("lakehouse", "settings", "init", LAKEHOUSE_CONFIG=str(config))
    assert made.returncode == 0, made.stderr
    assert "# home = " in config.read_text(encoding="utf-8")
    for command in ("demo", "new stream", "try"):
        helped = installed.run("lakehouse", *command.split(), "--help")
        assert (helped.returncode, helped.stderr) == (0, "")


def test_its_jobs_run_on_a_cluster_whose_workers_know_nothing_of_it(
    installed: Installed, tmp_path: Path
) -> None:
    with Cluster(tmp_path) as cluster:
        options = {
            "spark.driver.host": cluster.driver_host,
            "spark.driver.memory": "1g",
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.cores.max": "2",
            "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
        }
        conf = [word for name, value in options.items() for word in ("--conf", f"{name}={value}")]
        where = ["--properties-file", str(installed.share / "cluster.properties"), "--master", cluster.master]
        jobs = installed.share / "jobs"
        catching_up = ["--stream", "metrics", "--trigger", "available-now"]
        for job, arguments in {
            "bronze": catching_up,
            "silver": catching_up,
            "pipeline": catching_up,
            "maintain": ["--stream", "metrics"],
            "audit": ["--stream", "metrics"],
            "expect": ["gold"],
        }.items():
            command = ["spark-submit", *where, *conf, str(jobs / f"{job}.py"), *arguments]
            done = installed.run(*command, **cluster.environment)
            assert done.returncode == 0, f"{job}: {done.stdout[-1500:]}{done.stderr[-3000:]}"
        executors = {path.parent.parent.name for path in tmp_path.glob("work-*/app-*/*")}
        assert len(executors) == 2

    times = spread_times(EVENTS, end_ms=0, span_s=300)
    values = (sample.value or b"" for sample in samples(EVENTS, times, seed=4))
    expected = Counter(json.loads(value)["serviceId"] for value in values)
    counted = Counter[str]()
    for row in installed.place.rows("gold.metrics_1m"):
        counted[row["service_id"]] += row["count"]
    assert counted == expected
