"""Sinks of installed packages: which are in use, and the errors for those that cannot be."""

from __future__ import annotations

from importlib import invalidate_caches
from pathlib import Path

import pytest

from lakehouse.common.errors import SettingsError
from lakehouse.settings import Settings
from lakehouse.sinks import registry
from tests.sinks import sqlite_of_page
from tests.support.packages import offer

WRONG = """
from lakehouse.sinks import SinkKind

NUMBER = 7
OTHER = SinkKind("other", "Other", is_set=bool, require=print, make=print, audit=print)
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def install(directory: Path, entry: str) -> None:
    (directory / "wrong_sinks.py").write_text(WRONG)
    offer(directory, "shop-sinks", registry.GROUP, entry)
    invalidate_caches()


def under(name: str) -> Settings:
    return Settings().changed({"sinks": {name: {}}})


def test_a_sink_is_in_use_once_the_settings_have_its_table(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sqlite_of_page.installed(directory, sqlite_of_page.source(), monkeypatch) as module:
        assert [kind.name for kind in registry.known(Settings())] == ["redis", "postgres"]
        assert registry.known(under("sqlite"))[2:] == (module.KIND,)
        assert registry.labels(under("sqlite"))["sqlite"] == "SQLite"


OFFERS = "shop-sinks 1.0 offers"
REFUSED = {
    "redis = wrong_sinks:OTHER": "redis is built in, and has its own section, [redis]",
    "othr = wrong_sinks:OTHER": f"{OFFERS} wrong_sinks:OTHER under the name othr, but the sink is called",
    "gone = no_such_module:KIND": f"{OFFERS} no_such_module:KIND, which failed: ModuleNotFoundError: ",
    "number = wrong_sinks:NUMBER": f"{OFFERS} wrong_sinks:NUMBER, which is of type int, not a lakehouse.",
}


def test_a_sink_that_no_package_offers_is_refused_with_the_nearest_name(directory: Path) -> None:
    install(directory, "other = wrong_sinks:OTHER")
    with pytest.raises(SettingsError) as refused:
        registry.known(under("othr"))
    assert str(refused.value) == (
        "sinks.othr: no installed package offers it: no sink 'othr': did you mean other?"
    )


@pytest.mark.parametrize("entry", REFUSED)
def test_a_sink_that_cannot_be_used_is_refused_by_name(directory: Path, entry: str) -> None:
    install(directory, entry)
    name = entry.partition(" ")[0]
    with pytest.raises(SettingsError) as refused:
        registry.known(under(name))
    assert str(refused.value).startswith(f"sinks.{name}: {REFUSED[entry]}")
