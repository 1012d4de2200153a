"""Names that a store cannot have are refused when a stream is declared, whichever stores are configured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

from lakehouse.common.errors import SettingsError
from lakehouse.settings import Settings
from lakehouse.sinks.registry import require_fit
from lakehouse.streams.definition import GoldTable, Stream
from lakehouse.streams.messages.layout import Message, Plain
from tests.support.streams import METRICS, METRICS_1M


def stream_of(name: str, keys: tuple[str, ...], columns: Mapping[str, object] | None = None) -> Stream:
    """Return a stream with one table, which has these columns and key columns of strings."""
    types = dict.fromkeys(keys, StringType()) | dict(columns or {})
    schema = StructType([StructField(one, kind) for one, kind in types.items()])  # type: ignore[arg-type]
    return with_table(replace(METRICS_1M, name=name, keys=keys, schema=schema, state=None))


def with_table(table: GoldTable) -> Stream:
    return replace(METRICS, gold=(table,))


def test_names_that_fit_are_not_refused() -> None:
    require_fit(METRICS, Settings())
    require_fit(stream_of("n" * 63, ("version", "generation", "is_gone", "a" * 63, "b" * 62)), Settings())
    many = {f"c{number}": LongType() for number in range(1_597)}
    require_fit(stream_of("wide", ("id",), many), Settings())


@pytest.mark.parametrize(
    ("stream", "said"),
    [
        (
            stream_of("n" * 64, ("id",)),
            "the table's name nnnn.* is 64 bytes long, but PostgreSQL truncates names to 63",
        ),
        (
            stream_of("t", ("c" * 64,)),
            "the column c{63} is 64 bytes long, but PostgreSQL truncates names to 63",
        ),
        (stream_of("t", ("xmin",)), "the column xmin is reserved by PostgreSQL"),
        (stream_of("t", ("_version",)), "the column _version is reserved for the export"),
        (stream_of("t", ("id",), {"_is_gone": LongType()}), "the column _is_gone is reserved for the export"),
        (
            stream_of("lakehouse_positions", ("id",)),
            "the name lakehouse_positions is reserved for the export",
        ),
        (stream_of("t_pkey", ("id",)), "the name t_pkey is reserved for a primary key's index"),
        (stream_of("t", tuple(f"k{n}" for n in range(33))), "its key has 33 columns, .* at most 32"),
        (
            stream_of("t", ("id",), {f"c{number}": LongType() for number in range(1_598)}),
            "it has 1,599 columns, but a PostgreSQL table can have at most 1,598",
        ),
    ],
)
def test_what_postgresql_cannot_have_is_refused_with_the_table_and_the_way_out(
    stream: Stream, said: str
) -> None:
    (table,) = stream.gold
    with pytest.raises(
        SettingsError, match=rf"^stream metrics: gold.{table.name} cannot be exported to PostgreSQL: "
    ) as caught:
        require_fit(stream, Settings())
    assert caught.match(said)
    assert caught.match(rf"or set streams.metrics.gold.{table.name}.sinks = \['redis'\]$")
    require_fit(with_table(replace(table, export=replace(table.export, sinks=("redis",)))), Settings())


def test_a_key_of_a_type_that_postgresql_has_not_got_is_refused() -> None:
    table = stream_of("t", ("id", "tags")).gold[0]
    schema = StructType([StructField("id", StringType()), StructField("tags", ArrayType(StringType()))])
    with pytest.raises(SettingsError, match="PostgreSQL has no type for the key column tags"):
        require_fit(with_table(replace(table, schema=schema)), Settings())


def test_a_field_of_a_message_that_redis_adds_itself_is_refused() -> None:
    message = Message({"id": Plain("service_id"), "_version": Plain("count")})
    table = replace(METRICS_1M, export=replace(METRICS_1M.export, value=message))
    with pytest.raises(
        SettingsError,
        match=r"gold.metrics_1m cannot be exported to Redis: .* _version, which is reserved for the export",
    ) as caught:
        require_fit(with_table(table), Settings())
    assert caught.match(r"or set streams.metrics.gold.metrics_1m.sinks = \['postgres'\]$")
