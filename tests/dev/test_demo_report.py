"""The demo's last lines can be typed as shown, in a checkout and after an installation."""

from __future__ import annotations

import io
import subprocess
from pathlib import Path

import pytest

from lakehouse.common.terminal import Console
from lakehouse.dev.demo.report import what_next
from lakehouse.settings import Settings
from tests.support.processes import BIN, LAKEHOUSE


@pytest.mark.parametrize("path", ["/usr/bin:/bin", f"{BIN}:/usr/bin:/bin"])
def test_the_commands_to_try_next_are_found_from_any_directory(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", path)
    out = io.StringIO()
    what_next(Settings(home=tmp_path / "my home"), Console(file=out))
    commands = [line.strip() for line in out.getvalue().splitlines()[1:]]
    exports = [line for line in commands if line.startswith("export ")]
    others = commands[len(exports) :]
    assert len(exports) == 1 + (str(BIN) not in path)
    assert all(line.startswith("lakehouse ") for line in others)

    script = "\n".join([*exports, "command -v lakehouse", 'echo "$LAKEHOUSE_HOME"'])
    said = subprocess.run(["/bin/sh", "-c", script], cwd="/", capture_output=True, text=True, check=True)
    assert said.stdout.splitlines() == [LAKEHOUSE, str(tmp_path / "my home")]
