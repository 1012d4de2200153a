"""Which streams there are, by the setting and by installed packages, and what is refused at once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lakehouse.errors import SettingsError
from lakehouse.settings import Settings
from lakehouse.streams import choose, load

MODULE = """
from dataclasses import replace
from decimal import Decimal
from lakehouse.kinds import Windows, running_totals, windowed_statistics, windowed_sums
from lakehouse.stream import Stream
from lakehouse.streams.transactions import TRANSACTIONS

(SOURCE,) = TRANSACTIONS.sources
(GOLD,) = TRANSACTIONS.gold

def renamed(name, topic, table, gold, sent_to):
    source = replace(SOURCE, topic=topic, table=table)
    kept = replace(GOLD, name=gold, reads=(table,), export=replace(GOLD.export, topic=sent_to))
    return Stream(name, (source,), (kept,))

PAYMENTS = renamed("payments", "payments-topic", "payments", "payments_5m", "payments-5m")
CHAINED = renamed("chained", "aggregated-transactions", "chained", "chained_5m", None)
SAME_NAME = renamed("metrics", "a", "a", "b", None)
SAME_SILVER = renamed("other", "a", "transactions", "b", None)
SAME_GOLD = renamed("other", "a", "a", "metrics_1m", None)
SAME_TOPIC = renamed("other", "metrics-events", "a", "b", None)
SAME_TOPIC_OUT = renamed("other", "a", "a", "b", "metrics-aggregated-1m")
LETTERS = renamed("other", "a", "dead_letters", "b", None)
ODD = renamed("other", "a", "a b", "b", None)
NUMBER = 7
BY_TOPIC = windowed_sums("other", "a", by="topic", value="amount", length_s=60)
BY_COUNT = windowed_statistics("other", "a", value="v", windows=Windows(by="Count", length_s=60))

def by_settings(settings):
    return replace(PAYMENTS, name=f"payments_{settings.grace_s}")

def by_state(settings):
    return running_totals("other", "a", by="state", value="amount", threshold=Decimal(1))

def failing(settings):
    raise ValueError("no grace")
"""


LOOKED = "looked for in the working directory, in PYTHONPATH and among installed packages"


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("shop")
    (directory / "shop_of_a_user.py").write_text(MODULE)
    (directory / "broken_shop.py").write_text("import no_such_module\n")
    _install(directory / "unreadable-1.0.dist-info", "unreadable", "gone = broken_shop:ORDERS")
    return str(directory)


def _install(info: Path, name: str, entry: str) -> None:
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[lakehouse.streams]\n{entry}\n")


def under(streams: str, grace_s: int = 60) -> Settings:
    return Settings.model_validate({"streams": streams, "grace_s": grace_s})


def names(settings: Settings) -> list[str]:
    return [stream.name for stream in load(settings)]


def test_the_setting_names_streams_and_their_order() -> None:
    assert names(under("")) == ["metrics", "calls", "sales", "transactions"]
    assert names(under("sales, metrics")) == ["sales", "metrics"]


def test_a_stream_is_found_by_its_address_and_may_depend_on_settings(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(module)
    assert names(under("shop_of_a_user:PAYMENTS,transactions")) == ["payments", "transactions"]
    assert names(under("shop_of_a_user:by_settings", grace_s=7)) == ["payments_7"]
    assert names(under("transactions,shop_of_a_user:CHAINED")) == ["transactions", "chained"]
    (chosen,) = choose(["payments"], under("shop_of_a_user:PAYMENTS,sales"))
    assert chosen.sources[0].allowed_lateness_s == 7 * 24 * 3600


def test_the_working_directory_is_looked_in(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one])
    monkeypatch.delitem(sys.modules, "shop_of_a_user", raising=False)
    monkeypatch.chdir(module)
    assert names(under("shop_of_a_user:PAYMENTS")) == ["payments"]


@pytest.mark.parametrize(
    ("streams", "message"),
    [
        (
            "orders",
            (
                "LAKEHOUSE_STREAMS names orders, which no installed package offers; known: metrics, calls, "
                "sales, transactions. A stream in a module is named as module:OBJECT"
            ),
        ),
        (
            "no_such_module:X",
            (
                "LAKEHOUSE_STREAMS names no_such_module:X, which failed: ModuleNotFoundError: No module "
                f"named 'no_such_module' ({LOOKED})"
            ),
        ),
        (
            "shop_of_a_user:GONE",
            (
                "LAKEHOUSE_STREAMS names shop_of_a_user:GONE, which failed: AttributeError: module "
                "'shop_of_a_user' has no attribute 'GONE'"
            ),
        ),
        (
            "shop_of_a_user:NUMBER",
            (
                "LAKEHOUSE_STREAMS names shop_of_a_user:NUMBER, which is a int, not a stream; expected a "
                "lakehouse.stream.Stream, or a function of the settings that returns one"
            ),
        ),
        (
            "shop_of_a_user:by_state",
            (
                "LAKEHOUSE_STREAMS names shop_of_a_user:by_state, which failed: ValueError: field state: its "
                "column cannot be called state here; give it another one, Field(name, column, type)"
            ),
        ),
        (
            "shop_of_a_user:failing",
            "LAKEHOUSE_STREAMS names shop_of_a_user:failing, which failed: ValueError: no grace",
        ),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(
    streams: str, message: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(module)
    # The package with an entry point that fails is asked only if a name has to be looked for.
    monkeypatch.setattr("lakehouse.streams.finding.GROUP", "lakehouse.none")
    with pytest.raises(SettingsError) as refused:
        load(under(streams))
    assert str(refused.value) == message


def test_a_package_whose_stream_cannot_be_imported_is_named(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(module)
    with pytest.raises(SettingsError) as refused:
        load(under(""))
    assert str(refused.value) == (
        "unreadable 1.0 offers broken_shop:ORDERS, which failed: ModuleNotFoundError: No module named "
        f"'no_such_module' ({LOOKED})"
    )


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        ("SAME_NAME", "stream metrics is there twice (stream metrics)"),
        ("SAME_SILVER", "table silver.transactions is there twice (stream other and transactions)"),
        ("SAME_GOLD", "table gold.metrics_1m is there twice (stream metrics and other)"),
        ("SAME_TOPIC", "reading topic metrics-events is there twice (stream metrics and other)"),
        ("SAME_TOPIC_OUT", "filling topic metrics-aggregated-1m is there twice (stream metrics and other)"),
        ("LETTERS", "table silver.dead_letters is lakehouse's own (stream other)"),
    ],
)
def test_names_that_clash_are_refused(
    stream: str, message: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(module)
    with pytest.raises(SettingsError) as refused:
        load(under(f"metrics,transactions,shop_of_a_user:{stream}"))
    assert str(refused.value) == (
        f"{message}: give one another name, or choose what runs with LAKEHOUSE_STREAMS"
    )


def test_a_name_that_no_table_can_have_is_refused(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(module)
    with pytest.raises(SettingsError, match=r"^table silver\.a b of stream other cannot be a name here: "):
        load(under("shop_of_a_user:ODD"))


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        ("BY_TOPIC", "stream other gives silver.other the column topic more than once: "),
        ("BY_COUNT", "stream other gives gold.other_1m the column count more than once: "),
    ],
)
def test_a_column_that_is_there_already_is_refused(
    stream: str, message: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(module)
    with pytest.raises(SettingsError) as refused:
        load(under(f"shop_of_a_user:{stream}"))
    assert str(refused.value) == f"{message}give its field another column, Field(name, column, type)"
