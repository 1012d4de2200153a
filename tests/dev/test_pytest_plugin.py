"""The plugin in another project's pytest: what it costs, and what it offers."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.support.other_project import PLUGIN, run_pytest
from tests.support.processes import ROOT


def test_the_wheel_offers_it_to_pytest() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    assert project["entry-points"]["pytest11"] == {"lakehouse": PLUGIN}


def test_a_run_that_uses_none_of_its_fixtures_does_not_import_spark(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text(
        "import sys\n"
        "def test(): assert not {'pyspark', 'pyarrow', 'lakehouse.testing'} & sys.modules.keys()\n"
    )

    ended = run_pytest(tmp_path)

    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.soak
def test_fixtures_start_spark_once_and_a_failing_case_is_read_in_pytests_report(tmp_path: Path) -> None:
    (tmp_path / "test_orders.py").write_text(
        """
from lakehouse.streams import windowed_sums

ORDERS = windowed_sums("orders", "orders-topic", by="shop", value="price", length="1m")

def test_passes(case, assert_same_gold):
    case(ORDERS, [{"shop": "x", "price": 1}], gold=[{"shop": "x", "total_price": 1}])
    assert_same_gold(ORDERS, [{"shop": "x", "price": price} for price in (1, 2, 3)])

def test_fails(case):
    case(ORDERS, [{"shop": "x", "price": 1}], gold=[{"shop": "x", "total_price": 2}])
"""
    )

    ended = run_pytest(tmp_path)

    assert "1 failed, 1 passed" in ended.stdout, ended.stdout + ended.stderr
    assert "warnings" not in ended.stdout
    assert "expected  shop=x, total_price=2" in ended.stdout
    assert "found     shop=x, total_price=1.000000000" in ended.stdout
