"""Ids planted in every kind of file of a lake are found, and named by kind."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import shutil
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from lakehouse.operations.erasure.columns import search_column
from lakehouse.operations.erasure.report import Report
from lakehouse.operations.erasure.searching import Search
from lakehouse.operations.erasure.subjects import subjects_in
from lakehouse.operations.erasure.verifying import verify
from lakehouse.settings import Settings
from lakehouse.streams.registry import load

IDS = "anna-4711\ncafé/4712\n4713000\n550e8400-e29b-41d4-a716-446655440000\nnobody-1\n"
ANNA, CAFE, NUMBER, UUID = 1, 2, 3, 4
PLANTED = ("anna-4711", "café/4712", "4713000", "550e8400-e29b-41d4-a716-446655440000")
UUID_HEX = PLANTED[3].replace("-", "")
WINDOW = 4 * 1024 * 1024
FEED = {"delta.enableChangeDataFeed": "true"}


@pytest.fixture
def root(lake_settings: Settings) -> Path:
    return Path(lake_settings.lake)


@pytest.fixture
def searched(lake_settings: Settings, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], Report]]:
    """Search the lake; afterwards, no output may contain a planted id."""

    def search() -> Report:
        told = list[str]()
        report = verify(
            subjects_in(IDS.encode()),
            lake_settings,
            load(lake_settings),
            lambda done: told.append(str(done)),
            only=["lake"],
        )
        said = repr(report) + json.dumps(report.as_json(), ensure_ascii=False) + "".join(told)
        assert [one for one in PLANTED if one in said] == []
        return report

    yield search
    printed = capsys.readouterr()
    assert [one for one in PLANTED if one in printed.out + printed.err] == []


def found(report: Report) -> dict[str, tuple[str, dict[str, int], tuple[int, ...]]]:
    """Return each place's kind, parts and lines, keyed by its name."""
    return {one.name: (one.kind, dict(one.parts), one.lines) for one in report.places}


def write(path: Path, columns: dict[str, Any], **options: Any) -> DeltaTable:
    write_deltalake(str(path), pa.table(columns), **options)
    return DeltaTable(str(path))


def kinds(report: Report) -> dict[str, int]:
    """Return how many places there are of each kind."""
    count: dict[str, int] = {}
    for one in report.places:
        count[one.kind] = count.get(one.kind, 0) + 1
    return count


def test_a_lake_without_the_ids_is_proven(root: Path, searched: Callable[[], Report]) -> None:
    write(root / "gold/user_transactions_5m", {"user_id": ["berta-1"], "n": [4_713_001]}).create_checkpoint()

    report = searched()

    assert (report.is_clean, report.is_proven) == (True, False)
    assert report.summary == "0 places; left out: redis, kafka"


def test_a_lake_that_is_not_there_proves_nothing(searched: Callable[[], Report]) -> None:
    report = searched()

    assert not report.is_clean
    assert [one.why for one in report.unread] == ["there are no files here; is the setting lake right?"]


def test_every_type_of_column_is_searched(root: Path, searched: Callable[[], Report]) -> None:
    table = root / "bronze/transactions"
    nested = pa.map_(pa.string(), pa.list_(pa.struct([("of", pa.string())])))
    columns = {
        "text": pa.array(["x", "anna-4711"] * 500).dictionary_encode().cast(pa.string()),
        "bytes": pa.array([None, b'{"user":"caf\\u00e9\\/4712"}'] * 500, pa.binary()),
        "map": pa.array([[], [("anna-4711", [{"of": "café/4712"}])]] * 500, nested),
        "long": pa.array([1, 4_713_000] * 500, pa.int64()),
        "decimal": pa.array([None, Decimal("4713000.00")] * 500, pa.decimal128(9, 2)),
        "double": pa.array([None, 4_713_000.0] * 500, pa.float64()),
        "raw": pa.array([b"\x00" * 16, bytes.fromhex(UUID_HEX)] * 500, pa.binary()),
        "offset": pa.array([1, 4_713_000] * 500, pa.int64()),
    }
    write(table, columns)

    (place,) = [one for one in searched().places if one.kind == "newest version"]

    assert place.parts == {
        "text": 500,
        "bytes": 500,
        "map.key": 500,
        "map.value.of": 500,
        "long": 500,
        "decimal": 500,
        "double": 500,
        "raw": 500,
    }
    assert (place.lines, place.certain, place.uncertain) == ((ANNA, CAFE, NUMBER, UUID), 4000, 0)


@pytest.mark.parametrize(
    "kind", [pa.list_view(pa.string()), pa.large_list(pa.string()), pa.list_(pa.string(), 2)]
)
def test_every_kind_of_list_is_searched(
    root: Path, searched: Callable[[], Report], kind: pa.DataType
) -> None:
    root.mkdir(parents=True)
    pq.write_table(pa.table({"of": pa.array([["x", "anna-4711"]], kind)}), root / "x.parquet")

    assert found(searched()) == {"x.parquet": ("other file", {"of": 1}, (ANNA,))}


def test_a_column_of_another_type_is_not_passed_over() -> None:
    column = pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), pa.array(["anna-4711"]))

    with pytest.raises(TypeError, match="column who has the type run_end_encoded"):
        list(search_column(column, "who", Search(subjects_in(IDS.encode()))))


def test_a_number_with_more_digits_than_a_long_is_found_in_decimals() -> None:
    column = pa.array([Decimal(10**24), Decimal(10**24 + 1)], pa.decimal128(38, 0))

    ((_, hits),) = search_column(column, "n", Search(subjects_in(b"1000000000000000000000001\n")))

    assert hits == {(1, 1): True}


def test_a_deleted_row_stays_in_each_kind_of_file_until_a_known_time(
    root: Path, searched: Callable[[], Report], lake_settings: Settings
) -> None:
    path = root / "gold/user_transactions_5m"
    made = write(path, {"user_id": ["anna-4711", "berta-1"]}, configuration=FEED)
    made.create_checkpoint()
    made.delete("user_id = 'anna-4711'")
    (path / "_delta_log" / f"{1:020}.crc").write_text(
        '{"allFiles":[{"stats":"{\\"user_id\\":\\"anna-4711\\"}"}]}'
    )

    report = searched()

    assert kinds(report) == {"log": 2, "checkpoint": 1, "checksum": 1, "old version": 1, "change feed": 1}
    assert {one.lines for one in report.places} == {(ANNA,)}
    kept = timedelta(seconds=lake_settings.redis.ttl_s, hours=1)
    kept = max(kept, timedelta(seconds=lake_settings.maintenance.keep_versions_s))
    for place in report.places:
        until, written = place.until.at, (root / place.name).stat().st_mtime
        assert until is not None
        early = datetime.fromtimestamp(written, UTC) + kept
        assert early <= until + timedelta(milliseconds=1)
        assert until <= early + timedelta(hours=1)


def test_a_file_that_vacuum_will_delete_counts_from_its_removal(
    root: Path, searched: Callable[[], Report]
) -> None:
    path = root / "silver/transactions"
    write(path, {"user_id": ["anna-4711"]})
    (old,) = path.glob("*.parquet")
    long_ago = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    os.utime(old, (long_ago, long_ago))
    before = datetime.now(UTC)
    write(path, {"user_id": ["berta-1"]}, mode="overwrite")

    (place,) = [one for one in searched().places if one.kind == "old version"]

    assert place.until.at is not None
    assert place.until.at >= before + timedelta(days=2) - timedelta(seconds=1)


@pytest.mark.parametrize("broken", ["", None])
def test_a_log_with_a_gap_does_not_tell_what_maintenance_removes(
    root: Path, searched: Callable[[], Report], broken: str | None
) -> None:
    path = root / "silver/transactions"
    write(path, {"user_id": ["anna-4711"]})
    write(path, {"user_id": ["berta-1"]}, mode="append")
    first = path / "_delta_log" / f"{0:020}.json"
    first.unlink() if broken is None else first.write_text(broken)

    (place,) = searched().places

    assert (place.kind, str(place.until)) == ("other file", "until it is removed by hand")


def test_dates_that_need_a_maintenance_by_hand_are_remarked(root: Path, lake_settings: Settings) -> None:
    write(root / "silver/transactions", {"user_id": ["berta-1"]})
    by_hand = lake_settings.maintenance.model_copy(update={"every_s": None})
    settings = lake_settings.model_copy(update={"maintenance": by_hand})

    report = verify(subjects_in(b"x-1\nanna-4711\n"), settings, (), lambda _: None, only=["lake"])

    assert report.notes == (
        "maintenance.every is never: old files and commits stay until `lakehouse maintain` runs",
    )


def test_an_id_in_the_name_of_a_partition_is_masked(root: Path, searched: Callable[[], Report]) -> None:
    path = root / "silver/calls"
    write(path, {"user": ["café/4712"], "n": [1]}, partition_by=["user"])

    report = searched()

    (data,) = [one for one in report.places if one.kind == "newest version"]
    assert data.name.startswith("silver/calls/user=<line 2>/")
    assert data.parts == {"its path": 1}
    assert data.until.at is None
    (log,) = [one for one in report.places if one.kind == "log"]
    assert log.parts == {"its lines": 1}


def test_a_table_that_no_stream_has_is_searched_and_said_to_stay(
    root: Path, searched: Callable[[], Report]
) -> None:
    write(root / "silver/of_old", {"user_id": ["anna-4711"]}, mode="append")
    write(root / "silver/of_old", {"user_id": ["berta-1"]}, mode="overwrite")

    (place,) = [one for one in searched().places if one.kind == "old version"]

    assert str(place.until) == "no stream has this table, so maintenance removes nothing"


def test_files_beside_the_tables_are_searched(root: Path, searched: Callable[[], Report]) -> None:
    write(root / "gold/t", {"n": [1]})
    (root / "_lakehouse_schemas").mkdir()
    (root / "_lakehouse_schemas/1.json").write_text('{"doc":"caf\\u00e9\\/4712"}')
    (root / "gold/t/_lakehouse_export").mkdir()
    (root / "gold/t/_lakehouse_export/x.json").write_text('{"of":"anna-4711"}')
    (root / "backup.bin").write_bytes(b"\x00" * (WINDOW - 4) + b"anna-4711\x00" + b"\xffcaf\\u00e9\\/4712")
    outside = root.parent / "elsewhere"
    outside.mkdir()
    (outside / "notes.txt").write_text("anna-4711")
    (root / "linked").symlink_to(outside)
    os.mkfifo(root / "pipe")  # whoever opens it waits forever

    assert found(searched()) == {
        "_lakehouse_schemas/1.json": ("other file", {"its lines": 1}, (CAFE,)),
        "backup.bin": ("other file", {"its bytes": 2}, (ANNA, CAFE)),
        "gold/t/_lakehouse_export/x.json": ("other file", {"its lines": 1}, (ANNA,)),
        "linked/notes.txt": ("other file", {"its lines": 1}, (ANNA,)),
    }


def test_bytes_between_the_pages_and_the_end_of_a_parquet_file_are_searched(
    root: Path, searched: Callable[[], Report]
) -> None:
    root.mkdir(parents=True)
    table = pa.table({"n": [1, 2]}).replace_schema_metadata({"made for": "anna-4711"})
    pq.write_table(table, root / "x.parquet")

    assert found(searched()) == {"x.parquet": ("other file", {"its bytes": 1}, (ANNA,))}


def test_a_line_that_does_not_fit_in_memory_is_searched_in_parts(
    root: Path, searched: Callable[[], Report]
) -> None:
    root.mkdir(parents=True)
    cut = '"' + "é" * (WINDOW // 2)  # the first part ends in the middle of a character
    (root / "long.json").write_text(cut + "y" * 13_000_000 + ',\\u0061nna-4711,"', encoding="utf-8")

    assert found(searched()) == {"long.json": ("other file", {"its lines": 1}, (ANNA,))}


def test_what_cannot_be_read_is_out_of_reach(root: Path, searched: Callable[[], Report]) -> None:
    write(root / "gold/t", {"n": [1]})
    (root / "gold/t/part-broken.parquet").write_bytes(b"PAR1 anna-4711 broken")
    (root / "old.json.gz").write_bytes(gzip.compress(b"anna-4711"))
    (root / "secret.parquet").write_bytes(b"PARE encrypted PARE")
    (root / "z.xz").write_bytes(lzma.compress(b"anna-4711"))
    (root / "z.zz").write_bytes(zlib.compress(b"anna-4711"))

    report = searched()

    assert not report.is_clean
    assert report.summary == "0 places; 5 out of reach; left out: redis, kafka"
    assert [one.name for one in report.unread] == [
        "old.json.gz",
        "secret.parquet",
        "z.xz",
        "z.zz",
        "gold/t/part-broken.parquet",
    ]


def test_a_file_that_vanishes_is_said_and_what_was_added_is_searched(
    root: Path, lake_settings: Settings
) -> None:
    write(root / "gold/a", {"user_id": ["berta-1"]})
    write(root / "gold/b", {"user_id": ["anna-4711"]})

    def change(done: object) -> None:
        if "gold.a:" in str(done) and (root / "gold/b").exists():
            shutil.rmtree(root / "gold/a")
            shutil.rmtree(root / "gold/b")
            write(root / "gold/a", {"user_id": ["anna-4711"]})  # its log has the same names
            write(root / "gold/c", {"user_id": ["anna-4711"]})

    report = verify(subjects_in(IDS.encode()), lake_settings, load(lake_settings), change, only=["lake"])

    assert sorted((one.name.split("/")[1], one.kind) for one in report.places) == [
        *(("a", "log"), ("a", "newest version")),
        *(("c", "log"), ("c", "newest version")),
    ]
    assert report.unread == ()
    assert "2 files of the lake were removed during the search" in report.notes[0]
