"""Every record, whatever it holds, becomes a row or a letter: see tests/fuzz/anything.py.

The first test runs one round of each format. The second runs others for a minute, or FUZZ_MINUTES, in a
separate process with a small heap and a deadline, through every layer and store.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import core
from pyspark.sql import SparkSession

from lakehouse.settings import Settings
from tests.fuzz.anything import FORMATS, World, made, registry
from tests.support.processes import ROOT

pytestmark = pytest.mark.soak

MINUTES = os.environ.get("FUZZ_MINUTES", "1")
SEED = 57
RECORDS = 60


@pytest.mark.parametrize("number", range(len(FORMATS)), ids=FORMATS)
def test_no_record_stops_silver_and_gold_and_none_disappears(
    spark: SparkSession, session_settings: Settings, tmp_path: Path, number: int
) -> None:
    with registry() as server:
        world = World(spark, session_settings, server, tmp_path, ("silver", "gold"))
        world.go(made(SEED, number, RECORDS, world.settings))

    assert world.tally.findings == []
    assert world.tally.letters + world.tally.rows == RECORDS
    assert min(world.tally.letters, world.tally.rows) > RECORDS / 20


def test_anything_goes_through_all_layers_under_a_small_heap_and_a_deadline() -> None:
    seed = getattr(core, "global_force_seed", None) or SEED
    command = [sys.executable, "-m", "tests.fuzz.anything", "--seed", str(seed), "--minutes", MINUTES]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-5_000:]
