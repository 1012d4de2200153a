"""`lakehouse new stream`: what it guesses from samples, and that what it writes holds."""

from __future__ import annotations

import importlib
import json
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from lakehouse.cli import app
from lakehouse.errors import SettingsError
from lakehouse.settings import load_settings
from lakehouse.streams import choose_one
from lakehouse.testing import Case, SameGold

START = 1_774_746_300

Make = Callable[..., Result]

PAYMENTS = [
    {
        "paymentId": f"p{number}",
        "card": {"id": 4000 + number % 2, "type": "debit"},
        "amount": 1.25 * number,
        "paidAt": START + number,
        "count": number,
        "note": None if number % 2 else "",
        "tags": ["a"],
    }
    for number in range(1, 7)
]
READINGS = [
    {"sensor": f"s{number % 2}", "temperature": -1.5 + number, "time": f"2026-03-29T01:0{number}:00"}
    for number in range(6)
]
VISITS = [{"from": "ann", "to": f"page{number % 2}", "ts": START * 1000} for number in range(4)]
CLICKS = [visit | {"click": {"x": 1}} for visit in VISITS]
VIEWS = [visit | {"view": "long"} for visit in VISITS]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Write samples and run the command in a directory of the test's own; its packages are forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def make(name: str, *options: str, **samples: object) -> Result:
        for file, records in samples.items():
            assert isinstance(records, list)
            Path(file).write_text("".join(f"{json.dumps(record)}\n" for record in records))
        return CliRunner().invoke(app, ["new", "stream", name, *options], catch_exceptions=True)

    yield make
    for name in {
        name for name in sys.modules if str(tmp_path) in str(getattr(sys.modules[name], "__file__", ""))
    }:
        del sys.modules[name]


def run_its_tests(name: str, case: Case, assert_same_gold: SameGold) -> list[str]:
    """Run the tests of a package by its name, and return their names; its suites must be suites, too."""
    root = Path(name).absolute()
    sys.path[:0] = [str(root), str(root / "tests")]
    module = importlib.import_module(f"test_{name}")
    tests = [one for one in vars(module) if one.startswith("test_")]
    for one in tests:
        test = getattr(module, one)
        given = {"case": case, "assert_same_gold": assert_same_gold}
        test(*(given[argument] for argument in test.__code__.co_varnames[: test.__code__.co_argcount]))
    for file in root.glob(f"{name}/suites/gold/[a-z]*.py"):
        suite = importlib.import_module(f"{name}.suites.gold.{file.stem}").suite()
        assert suite.name == f"gold.{file.stem}"
    return tests


def test_a_package_is_written_whose_guesses_are_marked_and_whose_contract_takes_the_samples(
    make: Make, case: Case
) -> None:
    ended = make("payments", "--kind", "windowed-sums", "--sample", "s", s=PAYMENTS)

    assert ended.exit_code == 0, ended.output
    assert (
        Path("payments/payments/streams.py").read_text(encoding="utf-8")
        == '''\
"""payments: the sum and the number of amount in windows of each card.id.

Made by `lakehouse new stream` from samples; each guess has a comment.
"""

from dataclasses import replace

from lakehouse.kinds import Field, FieldType, Records, windowed_sums

PAYMENTS = replace(
    windowed_sums(
        "payments",
        Records(
            "payments-events",  # guess: its name
            event_time="paidAt",  # guess: in all 6 samples, a number of s since 1970
            event_time_unit="s",
            also=(
                Field("paymentId", "payment_id", FieldType.STRING),  # guess: in all 6 samples
                Field("card.type", "card_type", FieldType.STRING),  # guess: in all 6 samples
                Field("count", "record_count", FieldType.LONG),  # guess: in all 6 samples
                Field("tags", "tags", FieldType.JSON),  # guess: in all 6 samples
                Field("note", "note", FieldType.STRING, required=False),  # guess: in 3 of 6 samples
            ),
        ),
        # guess: a string or whole number in all 6 samples; others: paymentId, card.type, count
        by=Field("card.id", "card_id", FieldType.STRING, accepts_numbers=True),
        # guess: a number in all 6 samples; others: card.id, count
        value="amount",
        length_s=300,  # guess: five minutes of event time
    ),
    suites="payments.suites",
)
'''
    )
    project = tomllib.loads(Path("payments/pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"] == {"lakehouse.streams": {"payments": "payments.streams:PAYMENTS"}}
    assert "lakehouse try payments tests/samples.jsonl" in Path("payments/README.md").read_text(
        encoding="utf-8"
    )
    sys.path.insert(0, "payments")
    stream = choose_one("payments.streams:PAYMENTS", load_settings())
    case(stream, PAYMENTS, dead=[])


def test_times_in_digits_and_keys_of_several_fields_that_may_be_missing(make: Make, case: Case) -> None:
    points = [
        {
            "resource": {"service.name": "s"} | ({"env": "prod"} if number else {}),
            "timeUnixNano": f"{START + number}000000000",
            "asDouble": 0.5 + number,
        }
        for number in range(3)
    ]
    by = ("--by", r"resource.service\.name", "--by", "resource.env")

    ended = make("points", "--kind", "windowed-statistics", "--sample", "s", *by, s=points)

    assert ended.exit_code == 0, ended.output
    code = Path("points/points/streams.py").read_text(encoding="utf-8")
    assert 'event_time="timeUnixNano",  # guess: in all 3 samples, a number of ns since 1970' in code
    assert r'by=("resource.service\\.name", "resource.env"),' in code
    assert 'absent={"resource.env": "none"},  # guess: not in all samples' in code
    sys.path.insert(0, "points")
    stream = choose_one("points.streams:POINTS", load_settings())
    found = [{"resource_env": "none", "count": 1}, {"resource_env": "prod", "count": 2}]
    case(stream, points, dead=[], gold=found)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["windowed-sums", "windowed-statistics", "running-totals"])
def test_the_tests_of_a_new_package_hold(
    make: Make, case: Case, assert_same_gold: SameGold, kind: str
) -> None:
    ended = make("readings", "--kind", kind, "--sample", "weather=s", s=READINGS)

    assert ended.exit_code == 0, ended.output
    code = Path("readings/readings/streams.py").read_text(encoding="utf-8")
    assert 'event_time_zone="UTC",  # guess: no sample says its zone' in code
    assert len(run_its_tests("readings", case, assert_same_gold)) == 5


@pytest.mark.soak
def test_the_tests_of_calls_of_two_topics_hold(make: Make, case: Case, assert_same_gold: SameGold) -> None:
    samples = ("--sample", "web.clicks=c", "--sample", "web.views=v")

    ended = make("visits", "--kind", "joined-calls", *samples, c=CLICKS, v=VIEWS)

    assert ended.exit_code == 0, ended.output
    assert sorted(path.name for path in Path("visits/tests").iterdir()) == [
        "test_visits.py",
        "web_clicks.jsonl",
        "web_views.jsonl",
    ]
    assert len(run_its_tests("visits", case, assert_same_gold)) == 4


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("Shop", (), "Shop cannot be the name of a stream and its package"),
        ("sales", (), "sales is taken, by lakehouse or by Python"),
        ("json", (), "json is taken, by lakehouse or by Python"),
        ("there", (), "./there already exists"),
        ("dangling", (), "./dangling already exists"),
        ("first", (), "first is taken, by a name in the tests of a new stream"),
        ("pyspark", (), "pyspark is taken, by an installed package"),
        ("shop_", (), "shop_ cannot be the name of a stream and its package"),
        ("shop", ("--sample", "a b=s"), "--sample a b=s: 'a b' cannot be the name of a topic"),
        ("shop", ("--sample", "$(id)\n=s"), r"--sample $(id)\n=s: '$(id)\\n' cannot be the name of a topic"),
        ("shop", ("--sample", "..=s"), "--sample ..=s: '..' cannot be the name of a topic"),
        ("shop", ("--by", "no\nthing"), r"--by no\nthing: no sample has such a field"),
        ("shop", ("--sample", "s"), "two files have samples of shop-events: give topics"),
        ("shop", ("--value", "note"), "--value note: its values are string; expected a number"),
        ("shop", ("--by", "nothing"), "--by nothing: no sample has such a field; known: paymentId, card.id"),
        ("shop", ("--time", "amount"), "--time amount: its values are no times of the years 2000 to 2099"),
        ("shop", ("--kind", "running-totals", "--by", "card.id", "--by", "note"), "a key of one field"),
        ("shop", ("--kind", "joined-calls"), "joined-calls reads several topics: expected --sample TOPIC="),
    ],
)
def test_what_cannot_be_guessed_or_written_is_said_and_nothing_is_written(
    make: Make, name: str, options: tuple[str, ...], why: str
) -> None:
    Path("there").mkdir()
    Path("dangling").symlink_to("nowhere")

    ended = make(name, "--kind", "windowed-sums", "--sample", "s", *options, s=PAYMENTS)

    assert isinstance(ended.exception, SettingsError)
    assert why in str(ended.exception)
    assert sorted(path.name for path in Path().iterdir()) == ["dangling", "s", "there"]


def test_samples_that_are_no_objects_are_named_by_their_line(make: Make) -> None:
    ended = make("shop", "--kind", "windowed-sums", "--sample", "s", s=[PAYMENTS[0], [1]])

    assert str(ended.exception) == "s:2 is not a JSON object; leave it out of the samples"


NESTED: dict[str, object] = {"x": 1}
for _ in range(900):
    NESTED = {"y": NESTED}


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (NESTED, "s:2 nests objects and arrays more than 50 deep; leave it out of the samples"),
        ({"x": [[[]] * 2] * 2} | {"y": json.loads("[" * 51 + "]" * 51)}, "s:2 nests objects and arrays more"),
        ({"x": float("nan")}, "s:2 is not JSON: NaN is no number of JSON; leave it out of the samples"),
        (
            {"x": -float("inf")},
            "s:2 is not JSON: -Infinity is no number of JSON; leave it out of the samples",
        ),
        (
            {f"{number}\n": number for number in range(4_000)},
            (
                r"the samples have 4,008 fields, such as paymentId, card.id, card.type, amount, paidAt, "
                r"count, note, tags, 0\n, 1\n; expected at most 1,000: leave out fields that the stream "
                "does not need, or whose names are data"
            ),
        ),
    ],
)
def test_samples_that_no_stream_could_have_end_in_a_line(make: Make, record: object, why: str) -> None:
    ended = make("shop", "--kind", "windowed-sums", "--sample", "s", s=[PAYMENTS[1], record])

    assert isinstance(ended.exception, SettingsError)
    assert str(ended.exception).startswith(why)
    assert not Path("shop").exists()


def test_bytes_that_json_would_take_and_utf8_does_not_are_named_by_their_line(make: Make) -> None:
    Path("s").write_bytes(b'{"a": "\xed\xa0\x80"}\n')
    ended = make("shop", "--kind", "windowed-sums", "--sample", "s")

    assert str(ended.exception).startswith("s:1 is not JSON: 'utf-8' codec can't decode byte 0xed")
