"""A Hive metastore and the two Spark servers that use its names, from pyspark's own jars.

    with metastore(directory) as uri: ...

Each is a process of its own that ends with this one. A metastore of this version listens on every address of
the machine, the others only on loopback.
"""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from xml.sax.saxutils import escape

import pyspark

from lakehouse.dev.services.processes import LOOPBACK, Child, free_port
from lakehouse.storage.spark import java
from lakehouse.storage.spark.jars import jars_directory
from lakehouse.storage.spark.properties import for_laptop

JARS = Path(pyspark.__file__).parent / "jars"
_START_TIMEOUT_S = 900.0
_STOP_TIMEOUT_S = 20.0
AS_NOBODY = ("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "--pdeathsig=keep")
"""Runs a command as a user who owns nothing, which only root may do. It still ends with this process."""


@contextmanager
def metastore(directory: Path) -> Iterator[str]:
    """Run a metastore on a Derby database in the directory; yield its URI."""
    directory.mkdir(parents=True)
    site = {
        "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={directory}/db;create=true",
        "javax.jdo.option.ConnectionDriverName": "org.apache.derby.iapi.jdbc.AutoloadedDriver",
        "datanucleus.schema.autoCreateAll": "true",
        "datanucleus.connectionPoolingType": "NONE",
        "hive.metastore.schema.verification": "false",
        "hive.metastore.warehouse.dir": f"file:{directory}/warehouse",
        "hive.async.log.enabled": "false",  # its asynchronous logger is not among the jars
    }
    pairs = (f"<property><name>{k}</name><value>{escape(v)}</value></property>" for k, v in site.items())
    (directory / "hive-site.xml").write_text(f"<configuration>{''.join(pairs)}</configuration>")
    port = free_port()
    program = ["org.apache.hadoop.hive.metastore.HiveMetaStore", "-p", str(port)]
    command = [java.find(), "-Xmx256m", "-cp", f"{directory}:{JARS}/*", *program]
    with _running("the metastore", command, directory, port):
        yield f"thrift://{LOOPBACK}:{port}"


@contextmanager
def thrift_server(
    directory: Path,
    metastore_uri: str,
    *,
    as_nobody: bool = False,
    more: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[int]:
    """Run Spark's Thrift server on a metastore's names, with more properties; yield its port."""
    port = free_port()
    options = {
        **more,
        "spark.hadoop.hive.server2.thrift.port": str(port),
        "spark.hadoop.hive.server2.thrift.bind.host": LOOPBACK,
    }
    server = "org.apache.spark.sql.hive.thriftserver.HiveThriftServer2"
    with _spark_server(server, directory, metastore_uri, options, port, as_nobody=as_nobody):
        yield port


@contextmanager
def connect_server(directory: Path, metastore_uri: str) -> Iterator[str]:
    """Run a Spark Connect server on a metastore's names; yield its address."""
    port = free_port()
    options = {
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.grpc.binding.address": LOOPBACK,
    }
    server = "org.apache.spark.sql.connect.service.SparkConnectServer"
    with _spark_server(server, directory, metastore_uri, options, port):
        yield f"sc://{LOOPBACK}:{port}"


@contextmanager
def _spark_server(
    server: str,
    directory: Path,
    metastore_uri: str,
    options: Mapping[str, str],
    port: int,
    *,
    as_nobody: bool = False,
) -> Iterator[None]:
    directory.mkdir(parents=True)
    # Jars, including those for S3, are on the class path: classes from spark.jars cannot be loaded once the
    # first client has left.
    given = for_laptop(archive=False) | {
        "spark.master": "local[2]",
        "spark.driver.memory": "1g",
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.hive.metastore.uris": metastore_uri,
        "spark.sql.warehouse.dir": f"{directory}/warehouse",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",  # otherwise VACUUM has 10,000 tasks
        "spark.local.dir": str(directory),
        "spark.driver.defaultJavaOptions": f"-Djava.io.tmpdir={directory}",
        "spark.hadoop.hive.exec.scratchdir": f"{directory}/scratch",
        **options,
    }
    confs = [word for key, value in given.items() for word in ("--conf", f"{key}={value}")]
    submit = str(JARS.parent / "bin" / "spark-submit")
    command = [submit, *confs, "--class", server, "spark-internal"]
    if as_nobody:
        shutil.chown(directory, "nobody", "nogroup")
        command = [*AS_NOBODY, *command]
    variables = {
        "HOME": directory,
        "LAKEHOUSE_HOME": directory,
        "SPARK_DIST_CLASSPATH": jars_directory() / "s3" / "*",
    }
    own = ["/usr/bin/env", *(f"{name}={value}" for name, value in variables.items())]
    with _running(server, [*own, *command], directory, port):
        yield


@contextmanager
def _running(name: str, command: Sequence[str], directory: Path, port: int) -> Iterator[None]:
    child = Child(list(command), directory=directory, console=directory / "console.log", with_parent=True)
    try:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not _listens(port):
            assert child.exit_code() is None, f"{name} has ended:\n{child.last_lines(40)}"
            assert time.monotonic() < deadline, f"{name} does not answer:\n{child.last_lines(40)}"
            time.sleep(0.2)
        yield
    finally:
        child.stop(timeout_s=_STOP_TIMEOUT_S)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return not probe.connect_ex((LOOPBACK, port))
