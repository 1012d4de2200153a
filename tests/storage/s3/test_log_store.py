"""Commits on S3: no two writers get the same number, and a writer whose answer is lost recognizes its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow.fs import FileSelector

from tests.support import s3_proxy as proxy
from tests.support.processes import BIN, Process, running
from tests.support.s3_proxy import Request
from tests.support.seaweed import BUCKET, READER, driver, environment, files_of, options_of, settings_of

pytestmark = pytest.mark.soak

LONG_S = 3600.0
FIRST_COMMIT = re.compile(r"/silver/numbers/_delta_log/0{19}1\.json$")


def opened(store: str, prefix: str) -> DeltaTable:
    return DeltaTable(f"s3://{BUCKET}/{prefix}/silver/numbers", storage_options=options_of(store))


def rows_of(store: str, prefix: str) -> list[tuple[str, int]]:
    names = [file.removeprefix("s3://") for file in opened(store, prefix).file_uris()]
    found = ds.dataset(names, filesystem=files_of(store)).to_table().to_pylist()
    return sorted((row["writer"], row["n"]) for row in found)


def commits_of(store: str, prefix: str) -> list[int]:
    log = files_of(store).get_file_info(FileSelector(f"{BUCKET}/{prefix}/silver/numbers/_delta_log"))
    return sorted(int(file.base_name[:20]) for file in log if re.fullmatch(r"\d{20}\.json", file.base_name))


def test_a_commit_whose_answer_is_lost_is_known_as_ones_own(store: str, tmp_path: Path) -> None:
    lost: list[Request] = []

    def loses(request: Request) -> bool:
        is_first = not lost and request.status == 200 and FIRST_COMMIT.search(request.path) is not None
        if is_first and request.is_conditional:
            lost.append(request)
        return lost[-1:] == [request]

    with proxy.before(store) as between:
        between.loses = loses
        with running(
            driver("one", 2), environment(tmp_path, between.endpoint, "lost"), tmp_path / "one"
        ) as one:
            assert one.wait() == 0, one.errors
        tries = [(one.status, one.is_conditional) for one in between.seen if is_put(one, FIRST_COMMIT)]

    assert tries == [(200, True), (412, True)]
    assert one.output.splitlines() == ["0 in version 1", "1 in version 2"]
    assert commits_of(store, "lost") == [0, 1, 2]
    assert rows_of(store, "lost") == [("one", 0), ("one", 1)]


def test_two_drivers_and_a_writer_without_a_jvm_lose_no_commit(store: str, tmp_path: Path) -> None:
    many, beside = 100, 50
    wanted = environment(tmp_path, store, "race")
    with (
        running(driver("one", many), wanted, tmp_path / "one") as one,
        running(driver("two", many), wanted, tmp_path / "two") as two,
    ):
        one.await_output(" in version ")
        two.await_output(" in version ")
        for number in range(beside):
            append_without_a_jvm(store, "race", number)
        assert (one.wait(LONG_S), two.wait(LONG_S)) == (0, 0), one.errors + two.errors

    versions = [int(line.rsplit(" ", 1)[1]) for each in (one, two) for line in each.output.splitlines()]
    assert len(versions) == len(set(versions)) == 2 * many
    assert commits_of(store, "race") == list(range(1 + 2 * many + beside))
    assert Counter(writer for writer, _ in rows_of(store, "race")) == {
        "one": many,
        "two": many,
        "three": beside,
    }
    assert len(set(rows_of(store, "race"))) == 2 * many + beside


def test_a_driver_that_is_killed_before_the_answer_leaves_a_whole_commit(store: str, tmp_path: Path) -> None:
    killed: list[Process] = []

    def loses(request: Request) -> bool:
        if not killed and request.status == 200 and is_put(request, FIRST_COMMIT):
            os.killpg(one.pid, signal.SIGKILL)
            killed.append(one)
        return bool(killed)

    with proxy.before(store) as between:
        between.loses = loses
        with running(
            driver("one", 9), environment(tmp_path, between.endpoint, "kill"), tmp_path / "one"
        ) as one:
            assert one.wait() == -signal.SIGKILL
    with running(driver("two", 2), environment(tmp_path, store, "kill"), tmp_path / "two") as two:
        assert two.wait() == 0, two.errors

    assert one.output == ""
    assert two.output.splitlines() == ["0 in version 2", "1 in version 3"]
    assert rows_of(store, "kill") == [("one", 0), ("two", 0), ("two", 1)]


def test_a_store_without_conditional_writes_is_refused_or_has_one_writer(store: str, tmp_path: Path) -> None:
    with proxy.before(store) as between:
        between.hides_refusals = True
        wanted = environment(tmp_path, between.endpoint, "old")
        refused = subprocess.run(
            [str(BIN / "lakehouse"), "maintain"], env=wanted, capture_output=True, text=True, check=False
        )
        assert refused.returncode == 1
        assert "it accepts a second object of the same name" in refused.stderr
        assert "LAKEHOUSE_S3_SINGLE_WRITER=true" in refused.stderr

        alone = wanted | {"LAKEHOUSE_S3_SINGLE_WRITER": "true"}
        with running(driver("one", 10_000), alone, tmp_path / "one") as one:
            one.await_output(" in version ")
            second = subprocess.run(driver("two", 1), env=alone, capture_output=True, text=True, check=False)
            assert second.returncode == 1
            assert f"already has a writer, process {one.pid} on" in second.stderr
            reading = subprocess.run(
                [str(BIN / "lakehouse"), "sql", "SELECT 1 AS one"], env=alone, check=False
            )
            assert reading.returncode == 0


def test_a_key_that_may_only_read_reads(store: str, tmp_path: Path) -> None:
    with running(driver("one", 3), environment(tmp_path, store, "read"), tmp_path / "one") as one:
        assert one.wait() == 0, one.errors
    reader = environment(tmp_path, store, "read") | settings_of(store, "read", READER)
    with running(driver("two", 1), reader, tmp_path / "two") as two:
        assert two.wait() == 1
    assert "AccessDenied" in two.errors
    assert rows_of(store, "read") == [("one", 0), ("one", 1), ("one", 2)]


def is_put(request: Request, name: re.Pattern[str]) -> bool:
    return request.method == "PUT" and name.search(request.path) is not None


def append_without_a_jvm(store: str, prefix: str, number: int) -> None:
    table = opened(store, prefix)
    write_deltalake(table, pa.table({"writer": ["three"], "n": [number]}), mode="append")
