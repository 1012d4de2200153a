"""Which streams there are, by the setting and by installed packages, and what is refused at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lakehouse.common.errors import SettingsError
from lakehouse.settings import Settings
from lakehouse.streams.registry import choose, choose_one, load

MODULE = """
from dataclasses import replace
from decimal import Decimal
from lakehouse.streams import Field, FieldType, Stream, Windows
from lakehouse.streams import running_totals, windowed_statistics, windowed_sums
from lakehouse.streams.builtin.transactions import TRANSACTIONS

(SOURCE,) = TRANSACTIONS.sources
(GOLD,) = TRANSACTIONS.gold

def renamed(name, topic, table, gold, sent_to):
    source = replace(SOURCE, topic=topic, table=table)
    kept = replace(GOLD, name=gold, reads=(table,), export=replace(GOLD.export, topic=sent_to))
    return Stream(name, (source,), (kept,))

PAYMENTS = renamed("payments", "payments-topic", "payments", "payments_5m", "payments-5m")
CHAINED = renamed("chained", "aggregated-transactions", "chained", "chained_5m", None)
ITSELF = renamed("itself", "round", "itself", "itself_5m", "round")
SAME_NAME = renamed("metrics", "a", "a", "b", None)
SAME_SILVER = renamed("other", "a", "transactions", "b", None)
SAME_GOLD = renamed("other", "a", "a", "metrics_1m", None)
SAME_TOPIC = renamed("other", "metrics-events", "a", "b", None)
SAME_TOPIC_OUT = renamed("other", "a", "a", "b", "metrics-aggregated-1m")
LETTERS = renamed("other", "a", "dead_letters", "b", None)
ODD = renamed("other", "a", "a b", "b", None)
NUMBER = 7
BY_TOPIC = windowed_sums("other", "a", by="topic", value="amount", length_s=60)
OF_NO_WORD = windowed_sums("other", "a", by="数", value="amount", length_s=60)
SQL = Field("k", "k) FROM x --", FieldType.STRING)
WITH_SQL = windowed_sums("other", "a", by=SQL, value="amount", length_s=60)
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
    return Settings.model_validate({"only_streams": streams, "grace_s": grace_s})


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
    (chosen,) = choose(["payments"], under("shop_of_a_user:PAYMENTS,sales"))
    assert chosen.sources[0].allowed_lateness_s == 7 * 24 * 3600


def test_the_working_directory_is_looked_in(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one])
    monkeypatch.delitem(sys.modules, "shop_of_a_user", raising=False)
    monkeypatch.chdir(module)
    assert names(under("shop_of_a_user:PAYMENTS")) == ["payments"]


@pytest.fixture
def here(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the module, which is on no path, as where the command is installed."""
    (tmp_path / "shop_of_a_user.py").write_text(Path(module, "shop_of_a_user.py").read_text())
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one and one != str(Path.cwd())])
    monkeypatch.delitem(sys.modules, "shop_of_a_user", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_working_directory_is_looked_in_last(here: Path) -> None:
    (here / "colorsys.py").write_text("raise SystemExit('imported from the working directory')")
    sys.modules.pop("colorsys", None)
    assert names(under("shop_of_a_user:PAYMENTS")) == ["payments"]
    assert sys.path[-1] == str(here)
    with pytest.raises(SettingsError, match="module 'colorsys' has no attribute 'STREAM'"):
        names(under("colorsys:STREAM"))


@pytest.mark.parametrize(
    ("of", "owner", "mode", "why"),
    [
        (".", 41_002, 0o755, "the owner is user 41002, and this runs as root (0)"),
        (".", 0, 0o777, "everybody may write it (mode 0777)"),
        (".", 0, 0o1777, "everybody may write it (mode 1777)"),
        ("shop_of_a_user.py", 41_002, 0o644, "the owner is user 41002, and this runs as root (0)"),
        ("shop_of_a_user.py", 0, 0o666, "everybody may write it (mode 0666)"),
    ],
)
def test_modules_that_somebody_else_may_change_are_not_imported(
    here: Path, of: str, owner: int, mode: int, why: str
) -> None:
    os.chown(here / of, owner, 0)
    (here / of).chmod(mode)
    with pytest.raises(SettingsError) as refused:
        load(under("shop_of_a_user:PAYMENTS"))
    assert str(refused.value) == (
        "LAKEHOUSE_ONLY_STREAMS names shop_of_a_user:PAYMENTS, which failed: ModuleNotFoundError: No module "
        "named "
        "'shop_of_a_user' (looked for in PYTHONPATH and among installed packages, not in the working "
        f"directory: {here / of} is not trusted, because {why}. Make it yours (chown, chmod go-w), or "
        "install the package)"
    )
    assert str(here) not in sys.path
    assert "shop_of_a_user" not in sys.modules


def test_a_run_as_a_module_imports_nothing_from_the_working_directory(tmp_path: Path) -> None:
    """Neither in the place of an installed package, nor a stream that a file there declares."""
    for name in ("typer", "rich", "pydantic", "evil"):
        (tmp_path / f"{name}.py").write_text(f"print('{name} has run')\n")
    _install(tmp_path / "evil-1.0.dist-info", "evil", "evil = evil:STREAM")
    root = Path(__file__).parents[2]
    ended = subprocess.run(
        [sys.executable, "-m", "lakehouse", "contract", "export", "metrics", "--format", "odcs"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert json.loads(ended.stdout)["id"] == "urn:lakehouse:metrics_events"


@pytest.mark.parametrize(
    ("streams", "message"),
    [
        (
            "orders",
            (
                "LAKEHOUSE_ONLY_STREAMS names orders, which no installed package offers; known: metrics, "
                "calls, sales, transactions. A stream in a module is named as module:OBJECT"
            ),
        ),
        (
            "no_such_module:X",
            (
                "LAKEHOUSE_ONLY_STREAMS names no_such_module:X, which failed: ModuleNotFoundError: No module "
                f"named 'no_such_module' ({LOOKED})"
            ),
        ),
        (
            "shop_of_a_user:GONE",
            (
                "LAKEHOUSE_ONLY_STREAMS names shop_of_a_user:GONE, which failed: AttributeError: module "
                "'shop_of_a_user' has no attribute 'GONE'"
            ),
        ),
        (
            "shop_of_a_user:NUMBER",
            (
                "LAKEHOUSE_ONLY_STREAMS names shop_of_a_user:NUMBER, which is a int, not a stream; expected "
                "a "
                "lakehouse.streams.definition.Stream, or a function of the settings that returns one"
            ),
        ),
        (
            "shop_of_a_user:by_state",
            (
                "LAKEHOUSE_ONLY_STREAMS names shop_of_a_user:by_state, which failed: ValueError: "
                "field state: its column cannot be called state here; give it another one, "
                "Field(name, column, type)"
            ),
        ),
        (
            "shop_of_a_user:failing",
            "LAKEHOUSE_ONLY_STREAMS names shop_of_a_user:failing, which failed: ValueError: no grace",
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
        f"{message}: give one another name, or choose what runs with LAKEHOUSE_ONLY_STREAMS"
    )


ALIAS = {"metrics-events": "one"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"only_streams": "metrics,shop_of_a_user:SAME_TOPIC"},
            "topic metrics-events has 2 uses: stream metrics reads it; stream other reads it. ",
        ),
        (
            {"only_streams": "metrics,shop_of_a_user:SAME_TOPIC_OUT"},
            (
                "topic metrics-aggregated-1m has 2 uses: stream metrics sends gold.metrics_1m to it; stream "
                "other sends gold.b to it. "
            ),
        ),
        (
            {"only_streams": "shop_of_a_user:ITSELF"},
            "topic round has 2 uses: stream itself reads it; stream itself sends gold.itself_5m to it. ",
        ),
        (
            {"only_streams": "transactions,shop_of_a_user:CHAINED"},
            (
                "topic aggregated-transactions has 2 uses: stream transactions sends "
                "gold.user_transactions_5m to it; stream chained reads it. "
            ),
        ),
        (
            {"topics": {"analyticsTopic": "one", "metricsTopic": "one"}},
            (
                "topic one has 2 uses: stream calls reads it as analyticsTopic (LAKEHOUSE_TOPICS); stream "
                "calls reads it as metricsTopic (LAKEHOUSE_TOPICS). "
            ),
        ),
        (
            {"topics": {"metrics-events": "sales-events-v1"}},
            (
                "topic sales-events-v1 has 2 uses: stream metrics reads it as metrics-events "
                "(LAKEHOUSE_TOPICS); stream sales reads it. "
            ),
        ),
        (
            {"topics": {"transactions-topic": "notifications-events-v1"}},
            (
                "topic notifications-events-v1 has 2 uses: stream sales sends gold.sales_notifications to "
                "it; stream transactions reads it as transactions-topic (LAKEHOUSE_TOPICS). "
            ),
        ),
        (
            {"topics": ALIAS, "kafka": {"dead_letter_topic": "one"}},
            (
                "topic one has 2 uses: stream metrics reads it as metrics-events (LAKEHOUSE_TOPICS); dead "
                "letters go to it (LAKEHOUSE_KAFKA_DEAD_LETTER_TOPIC). "
            ),
        ),
        (
            {"kafka": {"dead_letter_topic": "metrics-aggregated-1m"}},
            (
                "topic metrics-aggregated-1m has 2 uses: stream metrics sends gold.metrics_1m to it; dead "
                "letters go to it (LAKEHOUSE_KAFKA_DEAD_LETTER_TOPIC). "
            ),
        ),
        (
            {"topics": ALIAS, "alerts": {"topic": "one"}},
            (
                "topic one has 2 uses: stream metrics reads it as metrics-events (LAKEHOUSE_TOPICS); alerts "
                "go to it (LAKEHOUSE_ALERTS_TOPIC). "
            ),
        ),
        (
            {"kafka": {"dead_letter_topic": "lakehouse-alerts-state"}},
            (
                "topic lakehouse-alerts-state has 2 uses: dead letters go to it "
                "(LAKEHOUSE_KAFKA_DEAD_LETTER_TOPIC); the state of alerts is in it (LAKEHOUSE_ALERTS_TOPIC). "
            ),
        ),
    ],
)
def test_a_topic_with_two_uses_is_refused_by_its_name_under_the_settings(
    changes: dict[str, object], message: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(module)
    monkeypatch.setattr("lakehouse.streams.finding.GROUP", "lakehouse.none")
    with pytest.raises(SettingsError) as refused:
        load(Settings.model_validate(changes))
    assert str(refused.value).startswith(
        f"{message}Expected one, as the input of one stream or as one output: "
    )


def test_an_alias_may_take_the_name_of_a_topic_that_has_another_one_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lakehouse.streams.finding.GROUP", "lakehouse.none")
    swapped = {"analyticsTopic": "metricsTopic", "metricsTopic": "analyticsTopic"}
    settings = Settings.model_validate({"topics": swapped, "kafka": {"dead_letter_topic": "letters"}})
    assert len(load(settings)) == 4


def test_a_stream_that_is_named_by_its_address_is_checked_too(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(module)
    with pytest.raises(SettingsError, match=r"^topic payments-5m has 2 uses: "):
        choose_one(
            "shop_of_a_user:PAYMENTS",
            Settings.model_validate({"kafka": {"dead_letter_topic": "payments-5m"}}),
        )


def test_a_name_that_no_table_can_have_is_refused(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(module)
    with pytest.raises(SettingsError, match=r"^table silver\.a b of stream other is not a valid name: "):
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


@pytest.mark.parametrize(("stream", "column"), [("OF_NO_WORD", ""), ("WITH_SQL", "k) FROM x --")])
def test_a_column_that_sql_would_misread_is_refused(
    stream: str, column: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(module)
    with pytest.raises(SettingsError) as refused:
        load(under(f"shop_of_a_user:{stream}"))
    assert str(refused.value).startswith(
        f"stream other gives silver.other the column '{column}', which is not a valid name: use ASCII letters"
    )
