"""SIGTERM and Ctrl-C ask a run to stop; integration/ tests the jobs and `lakehouse run` under real load."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from pyspark.sql import SparkSession

from lakehouse.engine.runtime.signals import stopping_on_signals
from tests.support.pipeline import await_


@pytest.fixture(params=[signal.SIGINT, signal.SIGTERM])
def number(request: pytest.FixtureRequest) -> Iterator[signal.Signals]:
    """Yield a signal that fails the test, rather than ending pytest, if nothing else handles it."""

    def fail(*_: object) -> None:
        pytest.fail("the signal was not handled")

    one: signal.Signals = request.param
    before = signal.signal(one, fail)
    yield one
    signal.signal(one, before)


def test_a_signal_asks_to_leave_and_is_handled_as_before_afterwards(
    spark: SparkSession, number: signal.Signals
) -> None:
    before = signal.getsignal(number)
    with stopping_on_signals(spark) as stop:
        assert not stop.requested
        os.kill(os.getpid(), number)
        await_(lambda: stop.requested, timeout_s=60)
    assert signal.getsignal(number) is before


def test_a_signal_to_the_jvm_asks_to_leave_too_and_nobody_is_listened_to(spark: SparkSession) -> None:
    """Py4J's callbacks would open a port in this process and accept calls from any user of the machine."""
    jvm: Any = spark._jvm
    assert jvm is not None
    before = listening()
    with stopping_on_signals(spark) as stop:
        assert listening() == before
        os.kill(jvm.java.lang.ProcessHandle.current().pid(), signal.SIGTERM)
        await_(lambda: stop.requested, timeout_s=60)


def listening() -> set[int]:
    found = psutil.Process().net_connections("tcp")
    return {one.laddr.port for one in found if one.status == psutil.CONN_LISTEN}
