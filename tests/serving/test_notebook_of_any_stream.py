"""The notebook about gold shows the tables of any stream, also in a lake without the built-in streams."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.notebooks import HARMLESS, execute, rows
from tests.support.processes import ROOT
from tests.support.served_lakes import MINUTE_MS, NOON_MS, ServedLake, product, transactions
from tests.support.streams import PRODUCT_SALES, USER_TRANSACTIONS_5M

pytestmark = pytest.mark.soak
EXPLORE = ROOT / "notebooks" / "explore_gold.ipynb"
PAYMENTS = {
    "payments": {
        "kind": "windowed_sums",
        "topic": "payments",
        "table": "payments",
        "by": "payer",
        "value": "amount",
        "length": "5m",
        "gold_table": "payments_5m",
        "to": "payments-5m",
    }
}


def test_a_lake_of_another_stream_is_explored(lake: ServedLake, tmp_path: Path) -> None:
    windows = [transactions(f"u{n}", NOON_MS + n * 5 * MINUTE_MS, f"{n}.25") for n in range(12)]
    lake.write_to("gold", "payments_5m", USER_TRANSACTIONS_5M.schema, windows)
    settings = lake.settings.changed({"streams": PAYMENTS})

    notebook = execute(EXPLORE, settings, tmp_path / "run")

    (table,) = rows(notebook["overview"])
    assert (table["table"], table["rows"]) == ("payments_5m", "12")
    assert table["first"].startswith("2026-05-04 12:00:00")
    assert table["last"].startswith("2026-05-04 12:55:00")
    assert [row["user_id"] for row in rows(notebook["any"])] == [f"u{n}" for n in range(11, 1, -1)]
    assert rows(notebook["users"]) == rows(notebook["products"]) == []
    for name, cell in notebook.items():
        assert len(cell.images) == cell.source.count("plt.show()"), name
        assert {*cell.warned.splitlines()} - HARMLESS <= {""}, name


def test_some_of_the_built_in_tables_are_enough(lake: ServedLake, tmp_path: Path) -> None:
    lake.write(PRODUCT_SALES, [product("tea", "12.5"), product("cup", "3")])

    notebook = execute(EXPLORE, lake.settings, tmp_path / "run")

    assert [row["table"] for row in rows(notebook["overview"])] == ["product_sales"]
    assert [row["product"] for row in rows(notebook["products"])] == ["tea", "cup"]
    assert rows(notebook["calls"]) == []
