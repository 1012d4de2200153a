"""Two processes on one checkpoint: one gets the micro-batch, the other ends, nothing is there twice."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakehouse.runtime.runner import RunOptions
from lakehouse.sandbox.services import Endpoints
from lakehouse.tables import Lake
from tests import pipeline
from tests.pipeline import BRONZE, STREAM, Raw, await_
from tests.processes import LAKEHOUSE, place, running


@pytest.mark.soak
@pytest.mark.slow
def test_the_process_that_comes_second_to_a_micro_batch_ends_and_says_so(
    spark: SparkSession, services: Endpoints, tmp_path: Path
) -> None:
    """The first process is asleep while the second takes what has come, so it is always the one to lose."""
    with place(tmp_path / "home", services, database=7) as here:
        settings = here.settings()
        command = [LAKEHOUSE, "run", "bronze", "--stream", "metrics", "--trigger", "200 ms"]
        pipeline.send(settings, [Raw(b"one")])
        with running(command, here.environment, tmp_path / "first") as first:
            first.await_(lambda: pipeline.committed(settings, BRONZE) == [0])
            os.killpg(first.pid, signal.SIGSTOP)
            lake, options = Lake(spark, settings.lake), RunOptions("200 ms")
            with pipeline.running(lake, [STREAM], ["bronze"], settings, options) as failures:
                pipeline.send(settings, [Raw(b"two")])
                await_(lambda: pipeline.committed(settings, BRONZE) == [0, 1])
                os.killpg(first.pid, signal.SIGCONT)
                assert first.wait() == 1, first.everything()
                pipeline.send(settings, [Raw(b"three")])
                await_(lambda: pipeline.committed(settings, BRONZE)[-1] == 2)
            assert failures == []

        (said,) = [line for line in first.errors.splitlines() if line.startswith("error: ")]
        assert said.startswith("error: bronze.metrics_events failed: ")
        assert "[CONCURRENT_STREAM_LOG_UPDATE]" in said
        assert "Multiple streaming jobs detected for 1" in said  # the micro-batch's number
        assert "Traceback" not in first.everything()
        landed = Counter(row["value"] for row in here.rows(BRONZE))
        assert landed == {b"one": 1, b"two": 1, b"three": 1}
