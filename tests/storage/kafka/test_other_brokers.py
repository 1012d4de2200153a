"""Versions of Kafka's broker other than the sandbox's; docs/services-and-stores.md lists those tested."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.brokers import VERSIONS
from tests.support.processes import ROOT

STORY = "tests/storage/kafka/test_secured_run.py::test_the_listed_rights_are_enough_and_no_secret_is_anywhere"


@pytest.mark.soak
@pytest.mark.parametrize("version", VERSIONS)
def test_four_streams_go_through_with_users_and_rights(version: str) -> None:
    command = [sys.executable, "-m", "pytest", "-n0", "-p", "no:cacheprovider", "--timeout", "0"]
    done = subprocess.run(
        [*command, "--kafka", version, STORY], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert "1 passed" in done.stdout
