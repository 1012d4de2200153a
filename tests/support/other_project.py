"""Run pytest in another project, where lakehouse and its plugin are installed."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

from tests.support.processes import QUICK_JVM, ROOT

PLUGIN = "lakehouse.dev.pytest_plugin"


def run_pytest(
    directory: Path, *arguments: str, path: Path | None = None, timeout_s: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run pytest with the plugin, whether or not this project is installed. `path` has more packages."""
    installed = ["-p", PLUGIN] if PLUGIN not in _offered() else []
    packages = [str(ROOT)] if path is None else [str(ROOT), str(path)]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *installed, *arguments],
        cwd=directory,
        env={**os.environ, **QUICK_JVM, "PYTHONPATH": os.pathsep.join(packages)},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def _offered() -> list[str]:
    return [one.value for one in entry_points(group="pytest11")]
