"""What Spark's ports answer without the secret: to other users of this machine, or to neighbouring pods."""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark import StorageLevel
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakehouse.storage.spark import properties

_ROOT = Path(__file__).parents[3]
_RPC_REQUEST = 3
_MASTER = "spark://127.0.0.1:1"
_OPEN = {"spark.authenticate": "false", "spark.network.crypto.enabled": "false"}
_DRIVER = """
import json, sys
from lakehouse.settings import load_settings
from lakehouse.storage.spark.session import build_session
spark = build_session(load_settings(), "driver", brief=True, options=json.loads(sys.argv[1]))
print("port", spark.sparkContext.getConf().get("spark.driver.port"), flush=True)
sys.stdin.read()
"""


def answer(port: int, body: bytes) -> str:
    """Send an RPC as Spark's protocol frames it, and return the printable part of the answer."""
    message = struct.pack(">bqi", _RPC_REQUEST, 1, len(body)) + body
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(struct.pack(">q", len(message) + 8) + message)
        return re.sub(rb"[^ -~]+", b" ", connection.recv(65_536)).decode()


def ports(spark: SparkSession) -> dict[str, int]:
    blocks: Any = spark._jvm.org.apache.spark.SparkEnv.get().blockManager()  # type: ignore[union-attr]
    return {
        "driver": int(spark.sparkContext.getConf().get("spark.driver.port") or 0),
        "blocks": blocks.blockManagerId().port(),
    }


@pytest.mark.parametrize("which", ["driver", "blocks"])
def test_a_message_without_the_secret_is_refused_before_it_is_read(spark: SparkSession, which: str) -> None:
    """Otherwise the driver would read it as a Java object of any class on its class path."""
    said = answer(ports(spark)[which], b"\xac\xed\x00\x05 an object")
    assert "java.lang.IllegalArgumentException: Unknown challenge message." in said
    assert "ObjectInputStream" not in said


def test_files_of_blocks_are_encrypted(spark: SparkSession) -> None:
    """In local mode they are in the temporary directory, where everybody can read them."""
    blocks: Any = spark._jvm.org.apache.spark.SparkEnv.get().blockManager()  # type: ignore[union-attr]
    directories = [Path(one) for one in blocks.diskBlockManager().localDirsString()]
    word = "not-for-everybody"
    rows = spark.range(100).select(F.concat(F.lit(word), F.col("id")))
    rows.persist(StorageLevel.DISK_ONLY).count()
    try:
        files = [file for directory in directories for file in directory.glob("*/rdd_*")]
        assert files != []
        assert [file for file in files if word.encode() in file.read_bytes()] == []
    finally:
        rows.unpersist(blocking=True)


@contextmanager
def driver(directory: Path, options: Mapping[str, str]) -> Iterator[int]:
    """Start a driver on this machine, and yield its RPC port."""
    with subprocess.Popen(
        [sys.executable, "-c", _DRIVER, json.dumps(options)],
        cwd=_ROOT,
        env=os.environ | {"LAKEHOUSE_HOME": str(directory)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        port = next(line.split()[1] for line in process.stdout if line.startswith("port "))
        yield int(port)
        process.stdin.close()


def stranger(port: int, options: Mapping[str, str]) -> str:
    words = [f"{name}={value}" for name, value in options.items()]
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.stranger", str(port), *words],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout.strip()


@pytest.mark.soak
def test_a_jvm_without_the_secret_is_let_in_only_where_authentication_is_off(tmp_path: Path) -> None:
    another = properties.read(properties.CLUSTER) | {"spark.authenticate.secret": "another"}
    with driver(tmp_path, _OPEN) as port:
        found = f"NettyRpcEndpointRef(spark://MapOutputTracker@127.0.0.1:{port})"
        assert stranger(port, _OPEN) == f"let in: {found}"
    with driver(tmp_path, {}) as port:
        unknown = "java.lang.IllegalArgumentException: Unknown challenge message."
        assert stranger(port, _OPEN) == f"refused: {unknown}"
        # Through Spark's protocol, and through SASL, which it would fall back to.
        for options in (another, another | {"spark.network.crypto.enabled": "false"}):
            assert stranger(port, options).startswith("refused: ")


@pytest.mark.soak
@pytest.mark.parametrize(
    ("file", "said"),
    [
        (
            "",
            (
                f"{_MASTER} needs its secret: set spark.secret_file (LAKEHOUSE_SPARK_SECRET_FILE) to the "
                "file that contains it"
            ),
        ),
        ("/dev/null", "spark.secret_file names /dev/null, which is empty"),
    ],
)
def test_a_standalone_master_without_its_secret_is_a_line(tmp_path: Path, file: str, said: str) -> None:
    own = {"LAKEHOUSE_HOME": str(tmp_path), "LAKEHOUSE_SPARK_MASTER": _MASTER}
    done = subprocess.run(
        [sys.executable, "-m", "lakehouse", "sql", "SELECT 1"],
        cwd=_ROOT,
        env=os.environ | own | ({"LAKEHOUSE_SPARK_SECRET_FILE": file} if file else {}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"error: {said}"
