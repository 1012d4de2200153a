"""Files of a lake on a disk and elsewhere: the same answers. Elsewhere is Arrow's in-memory file system.

S3 is tested in tests/storage/s3.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyarrow import fs

from lakehouse.storage.files import arrow_directory, files_of, is_object_store, stored_below


@pytest.fixture(params=["disk", "elsewhere"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Create a directory with `a/one` and `a/two`."""
    path = str(tmp_path) if request.param == "disk" else f"mock://{tmp_path.name}/lake"
    system, root = arrow_directory(path)
    system.create_dir(f"{root}/a")
    for name in ("two", "one"):
        write(path, f"a/{name}", name)
    return path


def write(lake: str, name: str, text: str) -> None:
    system, root = arrow_directory(lake)
    with system.open_output_stream(f"{root}/{name}") as stream:
        stream.write(text.encode())


def test_a_file_is_found_read_and_opened_and_a_directory_listed(lake: str) -> None:
    files = files_of(lake)
    found = files.find("a/one")
    assert found is not None
    assert found.text() == "one"
    assert files.find("a/three") is None
    assert files.names("a") == ["one", "two"]
    assert files.names("b") == []
    with files.open("a/two") as source:
        assert source.read() == b"two"
    with pytest.raises(FileNotFoundError):
        files.open("a/three")
    assert files.exist()
    assert not files_of(f"{lake}/b").exist()


def test_a_file_that_is_replaced_has_another_stamp(lake: str) -> None:
    files = files_of(lake)
    before, again = files.find("a/one"), files.find("a/one")
    assert before is not None
    assert again is not None
    assert before.stamp == again.stamp
    write(lake, "a/new", "other")
    system, root = arrow_directory(lake)
    system.move(f"{root}/a/new", f"{root}/a/one")
    after = files.find("a/one")
    assert after is not None
    assert after.stamp != before.stamp
    assert after.text() == "other"


def test_results_come_in_the_order_of_their_items(lake: str) -> None:
    assert files_of(lake).each(lambda number: number * 2, range(100)) == [n * 2 for n in range(100)]
    assert files_of(lake).each(str, []) == []


def test_s3_is_addressed_by_the_bucket_alone_and_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    system, root = arrow_directory("s3a://a-box-of-a-test/a+b=c/lake/")
    assert isinstance(system, fs.S3FileSystem)
    assert root == "a-box-of-a-test/a+b=c/lake"


def test_what_pyarrow_cannot_list_is_left_to_hadoop() -> None:
    assert is_object_store("s3a://box/lake")
    assert is_object_store("abfss://box@account/lake")
    assert not is_object_store("hdfs://names/lake")
    assert stored_below("hdfs://names/lake") is None
    with pytest.raises(OSError, match="wasbs://box@account cannot be read without Spark: Unrecognized"):
        files_of("wasbs://box@account/lake").exist()
