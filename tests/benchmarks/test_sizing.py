"""The simulation of rounds against cases computed by hand, and the arithmetic on top of it."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
import typer
from typer.testing import CliRunner

from benchmarks import sizing
from benchmarks.queueing import Cost, Round, percentile_s, simulate, steady

INPUTS = sizing.Inputs(
    cpu_s_per_million=20.0,
    fixed_s=1.0,
    one_task_row_s=0.25e-6,  # like the other rows on 40 cores
    row_s=10e-6,
    export_s=50e-6,
    changed_share=0.0,
    keys=inf,
    waiting_s=0.0,
    waiting_every_s=inf,
    checkpoints=0,
    row_bytes=1 << 10,
    utilisation=0.5,
    executor_cores=4,
    trigger_s=0.0,
)


def test_a_round_takes_a_fixed_part_rows_by_cores_and_changed_rows_one_by_one() -> None:
    cost = Cost(1.0, 0.2, cores=4, one_task_rows=10, one_task_row_s=0.1, changed_share=0.5, export_s=0.01)
    assert cost.round_s(0) == 1.0
    assert cost.round_s(10) == pytest.approx(1 + 10 * 0.1 + 5 * 0.01)
    assert cost.round_s(30) == pytest.approx(1 + 10 * 0.1 + 20 * 0.2 / 4 + 15 * 0.01)
    few_keys = Cost(1.0, 0.0, changed_share=0.5, keys=3, export_s=0.01)
    assert few_keys.round_s(30) == pytest.approx(1 + 3 * 0.01)


def test_a_round_takes_what_came_during_the_one_before() -> None:
    # Two seconds each, whatever they contain.
    #   arrivals   |-------0 to 2-------|-------2 to 4-------|
    #   rounds     [     nothing       ][    0 to 2         ][    2 to 4       ]
    assert simulate(Cost(2.0, 0.0), 5, rounds=3) == [
        Round(start_s=0, end_s=2, since_s=0, until_s=0),
        Round(start_s=2, end_s=4, since_s=0, until_s=2),
        Round(start_s=4, end_s=6, since_s=2, until_s=4),
    ]


def test_rows_make_a_round_longer_and_the_next_one_fuller() -> None:
    # Five rows a second, each of which takes a tenth: a second of arrivals is half a second of work.
    rounds = simulate(Cost(1.0, 0.1), 5, rounds=4)
    assert [(one.start_s, one.end_s) for one in rounds] == [
        (0, 1),
        (1, 1 + 1.5),  # 5 rows
        (2.5, 2.5 + 1.75),  # 7.5 rows
        (4.25, 4.25 + 1.875),  # 8.75 rows
    ]


@pytest.mark.parametrize(
    ("cores", "seconds"),
    [
        (1, 2.0),  # 1 + 5 * 2 * 0.1
        (2, 4 / 3),  # 1 + 5 * 4/3 * 0.05
        (5, 10 / 9),
    ],
)
def test_in_the_end_a_round_lasts_as_long_as_its_rows_took_to_arrive(cores: int, seconds: float) -> None:
    rounds = steady(simulate(Cost(1.0, 0.1, cores), 5))
    assert [one.end_s - one.start_s for one in rounds] == pytest.approx([seconds] * 100)
    # An event is one round old if it arrived at the end of the previous one, and two if at its start.
    assert rounds[-1].youngest_s == pytest.approx(seconds)
    assert percentile_s(rounds, 0.5) == pytest.approx(1.5 * seconds)
    assert percentile_s(rounds, 0.99) == pytest.approx(1.99 * seconds)
    assert percentile_s(rounds, 1.0) == pytest.approx(2 * seconds)


def test_a_trigger_that_is_longer_than_a_round_makes_events_wait() -> None:
    rounds = steady(simulate(Cost(0.5, 0.0), 5, trigger_s=2.0))
    assert [one.until_s - one.since_s for one in rounds] == [2.0] * 100
    assert percentile_s(rounds, 0.5) == pytest.approx(1.5)
    assert percentile_s(rounds, 0.99) == pytest.approx(0.5 + 0.99 * 2)


def test_a_table_that_waits_between_merges_makes_one_round_longer_when_it_is_due() -> None:
    # Due at 3 s: the round that starts then takes two seconds more, and the next has what arrived meanwhile.
    rounds = simulate(Cost(1.0, 0.0, waiting_s=2.0, waiting_every_s=3.0), 5, rounds=8)
    assert [(one.start_s, one.end_s) for one in rounds] == [
        (0, 1),
        (1, 2),
        (2, 3),
        (3, 6),
        (6, 9),  # due again
        (9, 12),
        (12, 15),
        (15, 18),
    ]
    longer_apart = simulate(Cost(1.0, 0.0, waiting_s=2.0, waiting_every_s=4.5), 5, rounds=8)
    assert [one.end_s - one.start_s for one in longer_apart] == [1, 1, 1, 1, 1, 3, 1, 1]


def test_a_few_of_a_hundred_rounds_are_longer_by_a_checkpoint() -> None:
    rounds = simulate(Cost(1.0, 0.0, checkpoints=3, checkpoint_s=0.5), 5)
    lengths = [1.5, 1.5, 1.5, *[1.0] * 97]
    assert [one.end_s - one.start_s for one in rounds] == pytest.approx(lengths * 2)


def test_a_bounded_micro_batch_takes_the_oldest_rows_first() -> None:
    rounds = simulate(Cost(1.0, 0.0), 10, rounds=4, max_rows=5)
    assert [(one.since_s, one.until_s) for one in rounds] == [(0, 0), (0, 0.5), (0.5, 1.0), (1.0, 1.5)]
    assert [one.oldest_s for one in rounds[1:]] == [2.0, 2.5, 3.0]


def test_percentiles_weigh_rounds_by_their_events() -> None:
    rounds = [Round(1, 2, 0, 1), Round(2, 10, 1, 4)]  # ages 1 to 2 for a quarter, 6 to 9 for the rest
    assert percentile_s(rounds, 0.25) == pytest.approx(2.0)
    assert percentile_s(rounds, 0.5) == pytest.approx(7.0)
    assert percentile_s(rounds, 1.0) == pytest.approx(9.0)


def test_the_limit_is_what_rows_cost_without_the_fixed_part() -> None:
    assert Cost(1.0, 0.1, cores=4).limit() == pytest.approx(40)
    assert Cost(1.0, 0.1, cores=4).limit(max_rows=40) == pytest.approx(40 / (1 + 1))
    assert Cost(1.0, 0.1, cores=4, changed_share=0.5, export_s=0.05).limit() == pytest.approx(1 / 0.05)
    assert Cost(1.0, 0.1, cores=4, changed_share=0.5, keys=9, export_s=0.05).limit() == pytest.approx(40)
    assert Cost(1.0, 0.0).limit() == inf


def test_cores_are_the_rate_times_the_cost_by_how_busy_they_may_be() -> None:
    # 0.2 cores; 2 at least. 4 cores, in one executor. 40 cores, in ten.
    found = [sizing.size(INPUTS, rate) for rate in (5_000, 100_000, 1_000_000)]
    assert [(one.executors, one.cores, one.partitions) for one in found] == [
        (1, 2, 4),
        (1, 4, 4),
        (10, 4, 40),
    ]


def test_a_size_follows_from_the_rounds_that_it_makes_possible() -> None:
    # 40 cores: 10 us by 40 for each of a million a second, so a round is 1 / (1 - 0.25) s long.
    rounds = sizing.size(INPUTS, 1_000_000).rounds
    assert rounds is not None
    assert rounds.seconds == pytest.approx(4 / 3)
    assert rounds.p50_s == pytest.approx(2.0)
    assert rounds.rows == pytest.approx(4e6 / 3)
    assert rounds.max_records == 3_000_000  # twice the rows, in millions
    assert rounds.heap_gib == 1 + 1  # 2.7 GB of rows on ten executors
    assert rounds.export == 0.0


def test_a_driver_that_sends_a_row_for_every_event_ends_at_a_rate() -> None:
    every_event = replace(INPUTS, changed_share=1.0)
    found = sizing.size(every_event, 100_000)
    assert found.limit == pytest.approx(20_000)
    assert found.rounds is None


@pytest.mark.parametrize(("number", "p99_within"), [(0, 0.25), (1, 0.15)])
def test_the_measured_points_are_near_what_the_defaults_say(number: int, p99_within: float) -> None:
    rate, p50, p99 = sizing.parse_measured(sizing.MEASURED[number])
    found = sizing.ages_on_two_cores(sizing.stream_inputs("metrics"), rate)
    assert found[0] == pytest.approx(p50, rel=0.15)
    assert found[1] == pytest.approx(p99, rel=p99_within)


def test_a_measured_point_has_three_numbers() -> None:
    assert sizing.parse_measured("2500:2.1:2.9") == (2500.0, 2.1, 2.9)
    with pytest.raises(typer.BadParameter, match='"2500" is not RATE:P50:P99'):
        sizing.parse_measured("2500")


def test_the_command_prints_a_line_for_each_rate() -> None:
    done = CliRunner().invoke(sizing.app, ["--stream", "calls", "--rate", "10000", "--rate", "100000"])
    assert done.exit_code == 0, done.output
    assert "10,000 " in done.output
    assert "100,000/s falls behind: one driver sends the rows of at most 64,412/s" in done.output
    refused = CliRunner().invoke(sizing.app, ["--stream", "orders"])
    assert refused.exit_code == 2
