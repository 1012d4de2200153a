"""examples/shop-sinks as an installed package: its own tests, and an export to both of its sinks."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakehouse.common.errors import SinkTroubleError
from lakehouse.engine.runtime.runner import utc_now
from lakehouse.operations.audit.stores import check_store
from lakehouse.settings import load_settings
from lakehouse.settings.config_file import CONFIG_VARIABLE
from lakehouse.sinks import registry
from tests.sinks.gold_rows import TABLE, Gold, state
from tests.support.other_project import run_pytest
from tests.support.packages import with_sinks
from tests.support.processes import ROOT, unused_port

PACKAGE = ROOT / "examples" / "shop-sinks"
MODULE = "shop_sinks"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the package with pip, and return the directory."""
    directory = tmp_path_factory.mktemp("shop-sinks")
    shutil.copytree(PACKAGE, directory / "source")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    options = ["--no-deps", "--no-build-isolation", "--target", str(directory / "installed")]
    subprocess.run([*pip, *options, str(directory / "source")], check=True)
    return directory / "installed"


@pytest.mark.soak
def test_its_tests_pass_where_it_is_installed(installed: Path, tmp_path: Path) -> None:
    shutil.copytree(PACKAGE / "tests", tmp_path / "tests")

    ended = run_pytest(tmp_path, path=installed, timeout_s=1800)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert " passed" in ended.stdout
    assert "warnings" not in ended.stdout


@pytest.fixture
def on_path(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Offer the package's sinks to this process during the test."""
    with with_sinks(installed, MODULE, monkeypatch):
        yield


@contextmanager
def serving(port: int, file: Path) -> Iterator[None]:
    endpoint: Any = import_module(f"{MODULE}.endpoint").Endpoint(port, file)
    threading.Thread(target=endpoint.serve_forever, args=[0.01], daemon=True).start()
    yield
    endpoint.shutdown()
    endpoint.server_close()


@pytest.mark.usefixtures("on_path")
def test_both_sinks_of_a_toml_file_have_what_gold_has(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, rows, directory = unused_port(), tmp_path / "rows.sqlite", tmp_path / "gold"
    directory.mkdir()
    file = tmp_path / "lakehouse.toml"
    file.write_text(
        f'home = "{tmp_path}"\n[sinks.http]\nurl = "http://127.0.0.1:{port}"\n'
        f'[sinks.files]\ndirectory = "{directory}"\n'
    )
    monkeypatch.setenv(CONFIG_VARIABLE, str(file))
    made = Gold(spark, load_settings(), replace(TABLE, export=replace(TABLE.export, sinks=("http", "files"))))

    def differences() -> list[tuple[int, int]]:
        kinds = [kind for kind in registry.used(made.settings) if kind.name in {"http", "files"}]
        checks = (
            check_store(
                made.lake, made.stream, made.stream.gold[0], kind, settings=made.settings, now=utc_now()
            )
            for kind in kinds
        )
        return [(one.compared, one.differences) for (one,) in checks]

    with serving(port, rows):
        made.put(state("auth", 0), state("cart", 0))
        assert [one.result.written for one in made.run()] == [{"http": 2, "files": 2}]
        made.put(state("auth", 0, count=2))
        made.take_away(state("cart", 0))
        made.run()
        assert differences() == [(1, 0), (1, 0)]

    made.put(state("cart", 1))
    with pytest.raises(SinkTroubleError, match=r"the HTTP endpoint at 127.0.0.1 is unreachable"):
        made.run()
    assert len(import_module(f"{MODULE}.reading").current_rows(directory, "metrics_1m")) == 2
    rows.unlink()
    with serving(port, rows):
        made.run()
        assert differences() == [(2, 0), (2, 0)]
