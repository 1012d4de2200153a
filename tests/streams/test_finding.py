"""Which streams exist, from tables in the settings and installed packages; what is refused immediately."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from lakehouse.common.errors import SettingsError
from lakehouse.settings import Settings
from lakehouse.streams.registry import choose, choose_one, load
from tests.support.packages import offer

MODULE = """
from dataclasses import replace
from decimal import Decimal
from lakehouse.streams import Field, FieldType, Stream, Windows
from lakehouse.streams import running_totals, windowed_statistics, windowed_sums

(SOURCE,), (GOLD,) = (lambda stream: (stream.sources, stream.gold))(
    windowed_sums("transactions", "transactions-topic", by="userId", value="amount", length="5m")
)

def renamed(name, topic, table, gold, sent_to):
    source = replace(SOURCE, topic=topic, table=table)
    kept = replace(GOLD, name=gold, reads=(table,), export=replace(GOLD.export, topic=sent_to))
    return Stream(name, (source,), (kept,))

PAYMENTS = renamed("payments", "payments-topic", "payments", "payments_5m", "payments-5m")
OTHER_CHAINED = renamed("other", "aggregated-transactions", "chained", "chained_5m", None)
ITSELF = renamed("other", "round", "itself", "itself_5m", "round")
SAME_SILVER = renamed("other", "a", "transactions", "b", None)
SAME_GOLD = renamed("other", "a", "a", "metrics_1m", None)
SAME_TOPIC = renamed("other", "metrics-events", "a", "b", None)
SAME_TOPIC_OUT = renamed("other", "a", "a", "b", "metrics-aggregated-1m")
LETTERS = renamed("other", "a", "dead_letters", "b", None)
ODD = renamed("other", "a", "a b", "b", None)
NUMBER = 7
BY_TOPIC = windowed_sums("other", "a", by="topic", value="amount", length="1m")
OF_NO_WORD = windowed_sums("other", "a", by="数", value="amount", length="1m")
SQL = Field("k", "k) FROM x --", FieldType.STRING)
WITH_SQL = windowed_sums("other", "a", by=SQL, value="amount", length="1m")
BY_COUNT = windowed_statistics("other", "a", value="v", windows=Windows(by="Count", length="1m"))

def of_topic(topic, value="amount"):
    return windowed_sums("other", topic, by="userId", value=value, length="5m")

def by_state():
    return running_totals("other", "a", by="state", value="amount", threshold=Decimal(1))

def failing():
    raise ValueError("no grace")
"""


LOOKED = "looked for in the working directory, in PYTHONPATH and among installed packages"


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("shop")
    (directory / "shop_of_a_user.py").write_text(MODULE)
    (directory / "broken_shop.py").write_text("import no_such_module\n")
    offer(directory, "unreadable", "lakehouse.streams", "gone = broken_shop:ORDERS")
    return str(directory)


def under(**tables: Mapping[str, object]) -> Settings:
    """Return settings with these tables of streams."""
    return Settings.model_validate({"streams": tables})


def other(name: str) -> dict[str, object]:
    """Return a table with the stream of this name from the module."""
    return {"python": f"shop_of_a_user:{name}"}


PAYMENTS = {"python": "shop_of_a_user:PAYMENTS"}
OF_A_KIND = {"kind": "windowed_sums", "topic": "t", "by": "a", "value": "v", "length": "1h"}


def names(settings: Settings) -> list[str]:
    return [stream.name for stream in load(settings)]


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakehouse.streams.names.GROUP", "lakehouse.none")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ["metrics", "calls", "sales", "transactions"]),
        ({"only_streams": "sales, metrics"}, ["sales", "metrics"]),
        ({"streams": {"sales": {"threshold": 3}}}, ["metrics", "calls", "sales", "transactions"]),
        ({"streams": {"sales": {"enabled": False}}}, ["metrics", "calls", "transactions"]),
        ({"streams": {"mine": OF_A_KIND}}, ["mine"]),
        ({"streams": {"mine": OF_A_KIND, "sales": {}}}, ["sales", "mine"]),
        ({"streams": {"mine": OF_A_KIND}, "only_streams": "mine,calls"}, ["mine", "calls"]),
        ({"streams": {"mine": OF_A_KIND | {"enabled": False}, "sales": {}}}, ["sales"]),
    ],
)
def test_tables_decide_which_streams_run_and_one_setting_chooses_among_them(
    settings: dict[str, object], expected: list[str]
) -> None:
    assert names(Settings.model_validate(settings)) == expected


def test_a_table_changes_single_keys_of_a_built_in_stream() -> None:
    metrics, calls, sales, _ = load(
        under(
            metrics={
                "grace": "2m",
                "gold": {"metrics_1m": {"to": False, "emit": "final", "sinks": ["redis"]}},
            },
            calls={"gap": "5s", "sources": {"call_metrics": {"topic": "m", "start": "latest"}}},
            sales={"threshold": 3, "topic": "s", "allowed_lateness": "1h", "suites": "shop.suites"},
        )
    )
    (first, second) = metrics.gold
    assert (first.export.topic, first.export.sinks, second.export.topic) == (
        None,
        ("redis",),
        "metrics-summary-10m",
    )
    assert first.wall_clock is not None
    assert first.wall_clock.after.total_seconds() == 120
    assert [(one.topic, one.start) for one in calls.sources] == [
        ("analyticsTopic", "earliest"),
        ("m", "latest"),
    ]
    assert calls.gold[0].pinned_settings == {"streams.calls.gap": "5s", "streams.calls.grace": "3m"}
    assert (sales.sources[0].topic, sales.sources[0].allowed_lateness_s, sales.suites) == (
        "s",
        3600,
        "shop.suites",
    )
    assert sales.gold[0].pinned_settings["streams.sales.threshold"] == "3"


def test_a_stream_is_found_by_its_address_and_a_function_gets_its_arguments(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(module)
    assert names(under(payments=PAYMENTS, transactions={})) == ["transactions", "payments"]
    function = other("of_topic") | {"arguments": {"topic": "t", "value": "sum"}, "unique_by": "id"}
    (chosen,) = choose(["other"], under(other=function))
    assert chosen.gold[0].totals == {"total_sum": "count"}
    assert (chosen.sources[0].topic, chosen.sources[0].unique_by) == ("t", "id")
    assert chosen.sources[0].allowed_lateness_s == 7 * 24 * 3600


def test_the_working_directory_is_looked_in(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one])
    monkeypatch.delitem(sys.modules, "shop_of_a_user", raising=False)
    monkeypatch.chdir(module)
    assert names(under(payments=PAYMENTS)) == ["payments"]


@pytest.fixture
def here(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a working directory with the module that is not on sys.path, as with an installed command."""
    (tmp_path / "shop_of_a_user.py").write_text(Path(module, "shop_of_a_user.py").read_text())
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one and one != str(Path.cwd())])
    monkeypatch.delitem(sys.modules, "shop_of_a_user", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_working_directory_is_looked_in_last(here: Path) -> None:
    (here / "colorsys.py").write_text("raise SystemExit('imported from the working directory')")
    sys.modules.pop("colorsys", None)
    assert names(under(payments=PAYMENTS)) == ["payments"]
    assert sys.path[-1] == str(here)
    with pytest.raises(SettingsError, match="module 'colorsys' has no attribute 'STREAM'"):
        names(under(stream={"python": "colorsys:STREAM"}))


@pytest.mark.parametrize(
    ("of", "owner", "mode", "why"),
    [
        (".", 41_002, 0o755, "the owner is user 41002, but this process runs as root (0)"),
        (".", 0, 0o777, "anyone can write to it (mode 0777)"),
        (".", 0, 0o1777, "anyone can write to it (mode 1777)"),
        ("shop_of_a_user.py", 41_002, 0o644, "the owner is user 41002, but this process runs as root (0)"),
        ("shop_of_a_user.py", 0, 0o666, "anyone can write to it (mode 0666)"),
    ],
)
def test_modules_that_somebody_else_may_change_are_not_imported(
    here: Path, of: str, owner: int, mode: int, why: str
) -> None:
    os.chown(here / of, owner, 0)
    (here / of).chmod(mode)
    with pytest.raises(SettingsError) as refused:
        load(under(payments=PAYMENTS))
    assert str(refused.value) == (
        "streams.payments.python = 'shop_of_a_user:PAYMENTS', which failed: ModuleNotFoundError: No module "
        "named 'shop_of_a_user' (looked for in PYTHONPATH and among installed packages, not in the working "
        f"directory: {here / of} is not trusted, because {why}. Make sure that you own it and only "
        "you can write to it (chown, chmod go-w), or install the package)"
    )
    assert str(here) not in sys.path
    assert "shop_of_a_user" not in sys.modules


def test_a_run_as_a_module_imports_nothing_from_the_working_directory(tmp_path: Path) -> None:
    """Files there neither replace installed packages nor declare streams."""
    for name in ("typer", "rich", "pydantic", "evil"):
        (tmp_path / f"{name}.py").write_text(f"print('{name} has run')\n")
    offer(tmp_path, "evil", "lakehouse.streams", "evil = evil:STREAM")
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
    ("settings", "message"),
    [
        (
            {"only_streams": "orders"},
            (
                "only_streams: no stream 'orders': calls, metrics, sales or transactions. To add a stream, "
                "declare it in [streams.orders]"
            ),
        ),
        (
            {"only_streams": "sales", "streams": {"sales": {"enabled": False}}},
            "only_streams names sales, but streams.sales.enabled is false",
        ),
        (
            {"streams": {"slaes": {"threshold": 3}, "metrics": {"grce": "1m"}}},
            (
                "streams.slaes: no stream 'slaes': did you mean sales? your own stream needs kind "
                "(windowed_sums, windowed_statistics, running_totals, joined_calls, sql) or python; "
                "streams.metrics.grce: no key 'grce': did you mean grace?"
            ),
        ),
        (
            {"streams": {"sales": OF_A_KIND}},
            (
                "streams.sales.kind: sales is a built-in stream of the kind running_totals; choose another "
                "name for your own stream"
            ),
        ),
        (
            {"streams": {"calls": {"sources": {"call_metric": {}}}}},
            "streams.calls.sources.call_metric: no table 'call_metric': did you mean call_metrics?",
        ),
        (
            {"streams": {"other": {"python": "no_such_module:X"}}},
            (
                "streams.other.python = 'no_such_module:X', which failed: ModuleNotFoundError: No module "
                f"named 'no_such_module' ({LOOKED})"
            ),
        ),
        (
            {"streams": {"other": other("GONE")}},
            (
                "streams.other.python = 'shop_of_a_user:GONE', which failed: AttributeError: module "
                "'shop_of_a_user' has no attribute 'GONE'"
            ),
        ),
        (
            {"streams": {"other": other("NUMBER")}},
            (
                "streams.other.python = 'shop_of_a_user:NUMBER', which is of type int, not a stream; "
                "expected a lakehouse.streams.Stream, or a function that returns one"
            ),
        ),
        (
            {"streams": {"other": other("by_state")}},
            (
                "streams.other.python = 'shop_of_a_user:by_state', which failed: ValueError: field state: "
                "this kind already has a column state; assign the field to a different column"
            ),
        ),
        (
            {"streams": {"other": other("failing")}},
            "streams.other.python = 'shop_of_a_user:failing', which failed: ValueError: no grace",
        ),
        (
            {"streams": {"other": PAYMENTS}},
            (
                "streams.other.python: the stream at shop_of_a_user:PAYMENTS is called payments; rename its "
                "table to [streams.payments]"
            ),
        ),
        (
            {"streams": {"other": other("of_topic") | {"arguments": {"tpic": "t"}}}},
            (
                "streams.other.python = 'shop_of_a_user:of_topic', with arguments.tpic: no argument 'tpic': "
                "did you mean topic?"
            ),
        ),
        (
            {"streams": {"other": other("of_topic")}},
            (
                "streams.other.python = 'shop_of_a_user:of_topic', without arguments.topic, which the "
                "function requires"
            ),
        ),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(
    settings: dict[str, object], message: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(module)
    with pytest.raises(SettingsError) as refused:
        load(Settings.model_validate(settings))
    assert str(refused.value) == message


def test_a_package_whose_stream_cannot_be_imported_is_named(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(module)
    monkeypatch.setattr("lakehouse.streams.names.GROUP", "lakehouse.streams")
    with pytest.raises(SettingsError) as refused:
        load(under())
    assert str(refused.value) == (
        "unreadable 1.0 offers broken_shop:ORDERS, which failed: ModuleNotFoundError: No module named "
        f"'no_such_module' ({LOOKED})"
    )


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        ("SAME_SILVER", "table silver.transactions is declared twice (stream other and transactions)"),
        ("SAME_GOLD", "table gold.metrics_1m is declared twice (stream metrics and other)"),
        ("LETTERS", "table silver.dead_letters is reserved (stream other)"),
    ],
)
def test_names_that_clash_are_refused(
    stream: str, message: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(module)
    with pytest.raises(SettingsError) as refused:
        load(under(metrics={}, transactions={}, other=other(stream)))
    assert str(refused.value) == f"{message}: choose another name, or list the streams to run in only_streams"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"streams": {"metrics": {}, "other": other("SAME_TOPIC")}},
            "topic metrics-events has 2 uses: stream metrics reads it; stream other reads it. ",
        ),
        (
            {"streams": {"metrics": {}, "other": other("SAME_TOPIC_OUT")}},
            (
                "topic metrics-aggregated-1m has 2 uses: stream metrics sends gold.metrics_1m to it; stream "
                "other sends gold.b to it. "
            ),
        ),
        (
            {"streams": {"other": other("ITSELF")}},
            "topic round has 2 uses: stream other reads it; stream other sends gold.itself_5m to it. ",
        ),
        (
            {"streams": {"transactions": {}, "other": other("OTHER_CHAINED")}},
            (
                "topic aggregated-transactions has 2 uses: stream transactions sends "
                "gold.user_transactions_5m to it; stream other reads it. "
            ),
        ),
        (
            {"streams": {"metrics": {"topic": "sales-events-v1"}}},
            "topic sales-events-v1 has 2 uses: stream metrics reads it; stream sales reads it. ",
        ),
        (
            {"streams": {"metrics": {"topic": "one"}}, "kafka": {"dead_letter_topic": "one"}},
            (
                "topic one has 2 uses: stream metrics reads it; dead letters go to it "
                "(kafka.dead_letter_topic). "
            ),
        ),
        (
            {"streams": {"metrics": {"topic": "one"}}, "alerts": {"topic": "one"}},
            "topic one has 2 uses: stream metrics reads it; alerts go to it (alerts.topic). ",
        ),
        (
            {"kafka": {"dead_letter_topic": "lakehouse-alerts-state"}},
            (
                "topic lakehouse-alerts-state has 2 uses: dead letters go to it (kafka.dead_letter_topic); "
                "it holds the state of alerts (alerts.topic). "
            ),
        ),
    ],
)
def test_a_topic_with_two_uses_is_refused(
    changes: dict[str, object], message: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(module)
    with pytest.raises(SettingsError) as refused:
        load(Settings.model_validate(changes))
    assert str(refused.value).startswith(
        f"{message}A topic can be one stream's input, or one output: choose another topic for one of these "
    )


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
    with pytest.raises(SettingsError, match=r"^table silver\.a b \(stream other\) has an invalid name: "):
        load(under(other=other("ODD")))


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
        load(under(other=other(stream)))
    assert str(refused.value) == f"{message}assign the field to a different column"


@pytest.mark.parametrize(("stream", "column"), [("OF_NO_WORD", ""), ("WITH_SQL", "k) FROM x --")])
def test_a_column_that_sql_would_misread_is_refused(
    stream: str, column: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(module)
    with pytest.raises(SettingsError) as refused:
        load(under(other=other(stream)))
    assert str(refused.value).startswith(
        f"stream other gives silver.other the column '{column}', which is not a valid name: use ASCII letters"
    )


def test_a_field_that_records_may_lack_is_no_id() -> None:
    with pytest.raises(SettingsError, match="environment: an id or sequence must be a required field"):
        choose_one("metrics", under(metrics={"unique_by": "environment"}))


def test_a_sequence_needs_an_id_and_calls_cannot_be_corrected() -> None:
    with pytest.raises(SettingsError, match="set unique_by"):
        choose_one("sales", under(sales={"sequence_by": "version"}))
    ids = {"unique_by": "id", "sequence_by": "version"}
    with pytest.raises(SettingsError, match="cannot apply corrections"):
        choose_one("calls", under(calls={"sources": {"call_metrics": ids}}))


def test_a_form_of_deletions_that_is_none_is_refused() -> None:
    ids = {"unique_by": "transactionId", "sequence_by": "version"}

    (source,) = choose_one(
        "transactions", under(transactions={**ids, "deletion_key": "json:id", "deleted_if": "op=d"})
    ).sources
    assert (source.deletion_key, source.deleted_if) == ("json:id", "op=d")
    with pytest.raises(SettingsError, match="deletion_key 'jsn' is not a key form; expected text, "):
        choose_one("transactions", under(transactions={**ids, "deletion_key": "jsn"}))
    with pytest.raises(SettingsError, match="deleted_if 'op' is not FIELD=VALUE, such as op=d"):
        choose_one("transactions", under(transactions={**ids, "deleted_if": "op"}))
