import json
import time

import pytest

from lakehouse.dev.samples.declared import samples
from lakehouse.dev.samples.loads import GENERATORS, Load
from lakehouse.dev.samples.mixing import Shares
from lakehouse.settings import Settings
from lakehouse.streams.definition import Contract, Field, FieldType, Source
from tests.support.sampling import event_time_ms

LAG_S = 3600


@pytest.mark.parametrize("stream", GENERATORS)
@pytest.mark.parametrize("rate", [None, 1000.0])
def test_the_events_of_a_producer_that_lags_are_so_far_behind(stream: str, rate: float | None) -> None:
    settings = Settings()
    before_ms = time.time() * 1000
    produced = list(Load(stream, 500, rate=rate, span_s=60, behind_s=LAG_S).samples(settings))
    after_ms = time.time() * 1000

    times = list(map(event_time_ms, produced))
    assert min(times) >= before_ms - 1000 * (LAG_S + 61)
    assert max(times) <= after_ms + 1000 * (1 - LAG_S)


def test_a_malformed_event_from_the_future_is_one_however_far_its_producer_lags() -> None:
    settings = Settings()
    produced = Load("metrics", 200, malformed=1.0, behind_s=10 * LAG_S).samples(settings)

    ahead = [event_time_ms(s) for s in produced if s.kind == "malformed:timestamp_in_the_future"]
    assert ahead
    assert min(ahead) > 1000 * (time.time() + settings.stream_defaults.future_tolerance_s)


def test_a_number_that_may_be_text_is_malformed_only_by_another_type() -> None:
    contract = Contract((Field("n", "n", FieldType.LONG, accepts_text=True),))
    source = Source("numbers", "numbers", contract)

    produced = list(samples([source], 50, range(50), seed=1, shares=Shares(malformed=1.0)))

    broken = {s.value for s in produced if s.kind == "malformed:n_of_another_type"}
    assert {json.loads(value or b"")["n"] for value in broken} == {True}
