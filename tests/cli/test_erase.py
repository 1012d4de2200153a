"""`lakehouse erase verify`: its arguments, and what it prints."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from typer.testing import CliRunner

from lakehouse.cli.main import app
from lakehouse.common.errors import LakehouseError, SettingsError
from lakehouse.operations.erasure import verifying


@pytest.fixture(autouse=True)
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a lake with the rows of two people in one file; `ids.txt` has the ids of three."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LAKEHOUSE_LAKE", str(tmp_path / "lake"))
    monkeypatch.setenv("COLUMNS", "300")
    rows = pa.table({"user_id": ["anna-4711", "berta-4712"], "n": [1, 2]})
    write_deltalake(str(tmp_path / "lake/gold/user_transactions_5m"), rows)
    Path("ids.txt").write_text("nobody-1\nanna-4711\nberta-4712\n")
    return tmp_path / "lake"


def refused(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["erase", "verify", *arguments])
    assert isinstance(done.exception, LakehouseError)
    return str(done.exception)


def test_the_places_and_a_summary_are_printed() -> None:
    done = CliRunner().invoke(app, ["erase", "verify", "--subject", "ids.txt", "--place", "lake"])

    assert done.exit_code == 1
    lines = [" ".join(line.replace("│", " ").split()) for line in done.stdout.splitlines()]
    (data,) = [line for line in lines if "newest version" in line]
    assert data.endswith(
        "newest version user_id 2 2, 3 until its rows are deleted, and then like an old version"
    )
    assert lines[-1] == "2 places in lake (2); 0 not certain; left out: redis, kafka"
    assert done.stderr == "lake gold.user_transactions_5m: 2 read, 0.0 MB: 2 PLACES\n"


def test_a_long_table_is_cut_and_says_so(lake: Path) -> None:
    for number in range(120):
        (lake / f"{number}.txt").write_text("anna-4711")

    done = CliRunner().invoke(app, ["erase", "verify", "--subject", "ids.txt", "--place", "lake"])

    assert done.stdout.count(".txt") == 100
    assert "22 more; --format json shows all" in done.stdout


def test_an_id_in_the_place_of_the_file_is_not_repeated() -> None:
    said = refused("--subject", "anna-4711")

    assert "anna" not in said
    assert "an id itself is never an argument" in said


def test_a_store_that_is_not_configured_proves_nothing() -> None:
    said = refused("--subject", "ids.txt", "--place", "postgres")

    assert said == "--place postgres: it is not configured; configured: lake, redis, kafka"


def test_errors_of_settings_do_not_show_an_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEHOUSE_ONLY_STREAMS", "anna-4711")

    said = refused("--subject", "ids.txt")

    assert "<line 2>" in said
    assert "anna" not in said


def test_a_bug_does_not_show_an_id(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("anna-4711")

    monkeypatch.setattr(verifying, "LakeScan", broken)

    done = CliRunner().invoke(app, ["erase", "verify", "--subject", "ids.txt", "--place", "lake"])

    assert str(done.exception) == "KeyError: '<line 2>'"


def test_an_empty_file_is_refused() -> None:
    Path("ids.txt").write_text("\n")

    with pytest.raises(SettingsError, match="there is no id"):
        CliRunner().invoke(app, ["erase", "verify", "--subject", "ids.txt"], catch_exceptions=False)
