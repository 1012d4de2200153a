"""What is written under a name, when it is changed, and whose names are left alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from typer.testing import CliRunner

from lakehouse.cli.main import app
from lakehouse.common.errors import ServiceError, SettingsError
from lakehouse.engine.layers import gold
from lakehouse.operations.catalog.metastore_names import (
    Outcome,
    Registered,
    address,
    compare,
    specs,
    sync_names,
    with_comments,
)
from lakehouse.settings import load_settings
from lakehouse.storage import tables
from lakehouse.storage.spark.metastore import Entry, Found
from lakehouse.storage.tables import Lake, described
from tests.support.processes import closed_port
from tests.support.streams import STREAMS, USER_TRANSACTIONS_5M

ENTRY = Entry("gold", "t", "file:///lake/gold/t", "One row per user.", '{"type":"struct","fields":[]}')
MINE, THEIRS = True, False
MOVED = (
    "gold.t is registered at s3a://old/t, but this lake has it at file:///lake/gold/t. `lakehouse "
    "sync-names --move` updates the location"
)
FOREIGN = (
    "gold.t in the metastore was not created by lakehouse and is left unchanged. Rename or drop it there, "
    "then rerun"
)


def test_gold_and_the_dead_letters_get_names_and_ops_tables_on_demand() -> None:
    users = [
        "silver.dead_letters",
        "gold.metrics_1m",
        "gold.metrics_summary_10m",
        "gold.call_records",
        "gold.product_sales",
        "gold.sales_notifications",
        "gold.user_transactions_5m",
    ]
    assert [spec.qualified_name for spec in specs(STREAMS)] == users
    assert [spec.qualified_name for spec in specs(STREAMS, ops=True)] == [
        *users,
        "ops.data_losses",
        "ops.unsent_rows",
        "ops.retention",
        "ops.retained_ids",
        "ops.lateness",
        "ops.expectation_results",
        "ops.gates",
        "ops.events",
        "ops.history",
    ]


def test_every_such_table_says_what_it_is_column_by_column() -> None:
    for spec in specs(STREAMS, ops=True):
        assert spec.comment, spec.qualified_name
        assert [column.name for column in spec.schema if not column.metadata.get("comment")] == [], spec.name


def test_an_entry_is_what_spark_itself_would_write_and_a_mark() -> None:
    assert ENTRY.properties() == {
        "EXTERNAL": "TRUE",
        "spark.sql.sources.provider": "delta",
        "lakehouse.registered": "true",
        "comment": "One row per user.",
        "spark.sql.sources.schema.numParts": "1",
        "spark.sql.sources.schema.part.0": '{"type":"struct","fields":[]}',
    }
    longer = replace(ENTRY, columns="x" * 4_000 + "y" * 4_000 + "z").properties()
    assert [
        longer[f"spark.sql.sources.schema.{key}"] for key in ("numParts", "part.0", "part.1", "part.2")
    ] == [
        "3",
        "x" * 4_000,
        "y" * 4_000,
        "z",
    ]


@pytest.mark.parametrize(
    ("there", "whose", "moves", "outcome", "about"),
    [
        ({}, MINE, False, Outcome.UNCHANGED, ""),
        ({"comment": "A row."}, MINE, False, Outcome.CHANGED, "comment"),
        ({"comment": "A row.", "columns": "{}"}, MINE, False, Outcome.CHANGED, "comment, columns"),
        ({"location": "s3a://old/t"}, MINE, True, Outcome.CHANGED, "location"),
        (
            {"location": "s3a://old/t"},
            MINE,
            False,
            Outcome.REFUSED,
            MOVED,
        ),
        (
            {},
            THEIRS,
            True,
            Outcome.REFUSED,
            FOREIGN,
        ),
    ],
)
def test_a_name_is_changed_if_it_is_ours_and_moved_if_that_is_asked_for(
    there: dict[str, str], whose: bool, moves: bool, outcome: Outcome, about: str
) -> None:
    found = Found(replace(ENTRY, **there), whose)
    assert compare(ENTRY, found, moves=moves) == Registered("gold.t", outcome, about)


def test_columns_have_the_declared_comments_and_those_of_a_user_their_own() -> None:
    standing = described(("k", "string", "Older words."), ("n", "long", ""), ("note", "string", "By hand."))
    standing["n"].metadata["delta.typeChanges"] = "[]"
    declared = described(("k", "string", "The key."), ("n", "long", "How many."), ("gone", "string", "?"))

    found = with_comments(standing, declared)

    assert [(column.name, column.metadata) for column in found] == [
        ("k", {"comment": "The key."}),
        ("n", {"comment": "How many."}),
        ("note", {"comment": "By hand."}),
    ]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/srv/it's a lake/gold/t", "file:///srv/it's a lake/gold/t"),
        ("file:/srv/gold/t", "file:///srv/gold/t"),
        ("s3a://bucket/lake/gold/t", "s3a://bucket/lake/gold/t"),
    ],
)
def test_a_location_is_a_url_for_every_client(path: str, expected: str) -> None:
    assert address(path) == expected


def test_a_new_table_has_its_comments_in_its_log(lake: Lake) -> None:
    path = lake.ensure(gold.spec(USER_TRANSACTIONS_5M))

    (noted,) = tables.read_commit(lake.spark, path, 0).of("metaData")
    assert (
        noted["description"]
        == "One row per user and five minutes of event time, with the total of the transactions."
    )
    assert [(column.name, column.metadata["comment"]) for column in tables.schema_of(lake.spark, path)] == [
        ("user_id", "Part of the key by which amounts are grouped."),
        ("window_start", "Start of the window in event time, UTC (inclusive)."),
        ("window_end", "End of the window in event time, UTC (exclusive)."),
        ("total_amount", "Sum of the amounts; null if it does not fit in decimal(38,9)."),
        ("count", "Number of amounts, at least one."),
    ]


def test_a_metastore_that_is_away_is_named_in_a_line(lake: Lake) -> None:
    with closed_port() as port, pytest.raises(ServiceError) as caught:
        list(sync_names(lake, specs(STREAMS), f"thrift://127.0.0.1:{port}"))

    assert str(caught.value) == (
        f"the metastore at thrift://127.0.0.1:{port} does not answer: Connection refused; "
        "check metastore (LAKEHOUSE_METASTORE)"
    )


def test_the_command_asks_for_the_setting() -> None:
    asked = CliRunner().invoke(app, ["sync-names"])
    assert str(asked.exception) == (
        "metastore (LAKEHOUSE_METASTORE) is not set; expected a Hive metastore, such as thrift://host:9083"
    )


@pytest.mark.parametrize("given", ["127.0.0.1:9083", "thrift://host", "thrift://a:1,b:2", "thrift://me@a:1"])
def test_a_setting_that_is_no_metastore_is_refused(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("LAKEHOUSE_METASTORE", given)
    with pytest.raises(SettingsError, match=r"^LAKEHOUSE_METASTORE.*: expected thrift://host:port"):
        load_settings()
