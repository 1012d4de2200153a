"""The only module that builds Spark sessions.

Under spark-submit, the properties file and flags define the session. Elsewhere (`lakehouse run`, `lakehouse
sql`, the demo, the tests), the session uses `laptop.properties`, with the sizes from the settings.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
from py4j.protocol import Py4JError
from pyspark import SparkConf
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from lakehouse.common.errors import ServiceError, VersionError
from lakehouse.common.paths import is_on_s3, local_path
from lakehouse.common.state_files import make_private
from lakehouse.settings import Settings
from lakehouse.storage.spark import internals, java
from lakehouse.storage.spark.jars import class_archive, jars_directory, require_jars
from lakehouse.storage.spark.properties import for_cluster, for_laptop

_JVM_TIMEOUT_S = 120.0
_KILL_AGAIN_S = 0.1
_SMALL_LAKE_BYTES = 64 << 20
_BRIEFLY = "-XX:TieredStopAtLevel=1"
_LOOPBACK = "127.0.0.1"
_SECRET = "spark.authenticate.secret"  # noqa: S105 - a property's name
_OF_HOST = {"SPARK_LOCAL_HOSTNAME", "SPARK_LOCAL_IP"}
_OF_CONNECT = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
_NO_JVM = (
    "lakehouse calls Spark's JVM, which a Spark Connect session does not have: {} or run it with "
    "spark-submit (docs/where-it-runs.md)"
)


def build_session(
    settings: Settings, name: str, *, brief: bool = False, options: Mapping[str, str] | None = None
) -> SparkSession:
    """Return a session for this project's tables. `options` override everything else.

    Set `brief` if the session will be too short for the JVM's optimizing compiler to pay off. A second call
    in a process returns the first session. Raises ServiceError if the runtime jars are missing, if the JVM
    does not start within two minutes, or if the temporary directory is full. Raises VersionError if PySpark
    would connect to a Spark Connect server instead.
    """
    for variable in _OF_CONNECT:
        if variable in os.environ:
            raise VersionError(_NO_JVM.format(f"unset {variable}"))
    # PySpark would print an error as JSON, with a stack trace, before raising it.
    for name_of_logger in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name_of_logger).disabled = True
    internals.remember_names()
    builder, launched = SparkSession.Builder().appName(name), dict[str, str]()
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        # Outside spark-submit, this sets the Python for tasks, and overrides spark.pyspark.python.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        launched = _launch_options(settings, brief=brief) | dict(options or {})
        for key, value in launched.items():
            builder = builder.config(key, value)
    with _impatient(), _environment(_variables(settings)):
        if not internals.is_started():
            internals.launch(launched, f"uid-{os.getuid()}" if launched and java.user() is None else None)
        secret = _secret(settings)
        spark = (builder if secret is None else builder.config(_SECRET, secret)).getOrCreate()
    internals.speak_english(spark)
    internals.configure_hadoop(spark, settings.s3.access.for_hadoop() if is_on_s3(settings.lake) else {})
    _require_names(spark, settings)
    try:
        internals.load_codecs(spark)
    except Py4JError as error:
        spark.stop()
        raise ServiceError(
            "Spark's JVM could not unpack and load its libraries; is the temporary directory full, or "
            "mounted noexec?"
        ) from error
    return spark


@contextlib.contextmanager
def _impatient() -> Iterator[None]:
    """Kill a JVM that does not start in time.

    The JVM passes its port to PySpark in a file, and PySpark waits for the file while the JVM is alive. If
    the JVM could not write the file because the disk was briefly full, PySpark would wait forever.
    """
    here = psutil.Process()
    before, over, given_up = set(here.children(recursive=True)), threading.Event(), threading.Event()

    def watch() -> None:
        if over.wait(_JVM_TIMEOUT_S) or internals.is_started():
            return
        given_up.set()
        while not over.wait(_KILL_AGAIN_S):  # shells keep starting processes until they are killed
            # Kill parents first, so that no shell is left to report a child's exit.
            for child in here.children(recursive=True):
                if child not in before:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        child.kill()

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    except PySparkException as error:
        if not given_up.is_set():
            raise
        raise ServiceError(
            f"Spark's JVM did not start within {_JVM_TIMEOUT_S:.0f} s; is the temporary directory's "
            "disk full?"
        ) from error
    finally:
        over.set()
        watching.join()


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for processes that the block starts."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _require_names(spark: SparkSession, settings: Settings) -> None:
    """Raise ServiceError if the JVM would encode the lake's path differently from Python.

    Under spark-submit, the user's locale determines the encoding.
    """
    encoding = internals.encoding_of_names(spark)
    if encoding not in {"UTF-8", "utf8"} and not f"{settings.lake}{settings.home}".isascii():
        spark.stop()
        raise ServiceError(
            f"Spark's JVM encodes file names in {encoding}, so it would not find {settings.lake}: set "
            "LC_ALL=C.UTF-8 in the environment, or choose a path that contains only ASCII characters"
        )


@contextlib.contextmanager
def start_session(settings: Settings, name: str, *, brief: bool | None = None) -> Iterator[SparkSession]:
    """Build a session, and stop it after the block. By default, `brief` is true if the lake is small."""
    spark = build_session(settings, name, brief=is_small(settings.lake) if brief is None else brief)
    try:
        yield spark
    finally:
        spark.stop()


def require_jvm(spark: SparkSession) -> None:
    """Raise VersionError if Python cannot call the session's JVM, as with Spark Connect."""
    if not internals.has_jvm(spark):
        raise VersionError(_NO_JVM.format("create the session with build_session"))


def activate(spark: SparkSession) -> None:
    """Set the thread's active session, which Delta uses."""
    internals.set_active(spark)


def is_small(lake: str) -> bool:
    """Return whether a lake is on this machine, and so small that every command finishes quickly."""
    root, found = local_path(lake), 0
    if root is None:
        return False
    for directory, _, names in os.walk(root):
        for name in names:
            with contextlib.suppress(OSError):  # a running layer removes files
                found += Path(directory, name).stat().st_size
        if found > _SMALL_LAKE_BYTES:
            return False
    return True


def _variables(settings: Settings) -> dict[str, str]:
    """Return the environment variables to set for Spark's JVM.

    Without SPARK_LOCAL_IP, Spark resolves the host name, which might have no address.
    """
    is_alone = _is_local(settings) and not _OF_HOST & os.environ.keys()
    # Appended to the class path, which must begin with the class archive's entries.
    jars = {"SPARK_DIST_CLASSPATH": f"{require_jars('s3')[0].parent}/*"} if is_on_s3(settings.lake) else {}
    return java.ENVIRONMENT | ({"SPARK_LOCAL_IP": _LOOPBACK} if is_alone else {}) | jars


def _is_local(settings: Settings) -> bool:
    return settings.spark.master.startswith("local")


def _secret(settings: Settings) -> str | None:
    """Return a standalone cluster's secret, or None for other masters. Call this after the JVM has started.

    Raises ServiceError if there is no secret, because Spark would only print a stack trace. The
    secret is not passed to `launch` as an option, because `ps` shows options.
    """
    master = SparkConf().get("spark.master", "") or ""
    if not master.startswith("spark://"):
        return None
    if settings.spark.secret_file is None:
        raise ServiceError(
            f"{master} needs its secret: set spark.secret_file (LAKEHOUSE_SPARK_SECRET_FILE) to the file "
            "that contains it"
        )
    try:
        secret = settings.spark.secret_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ServiceError(f"spark.secret_file cannot be read: {error}") from error
    if not secret:
        raise ServiceError(f"spark.secret_file names {settings.spark.secret_file}, which is empty")
    return secret


def _quoted(option: str) -> str:
    """Quote a JVM option so that Spark splits a list of options correctly."""
    escaped = option.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _launch_options(settings: Settings, *, brief: bool) -> dict[str, str]:
    java.find()
    java.require_files()
    options = for_laptop(archive=class_archive().exists())
    logs = settings.home / "logs"
    make_private(logs)
    paths = {"lakehouse.logs": logs, "java.io.tmpdir": java.temporary_directory()}
    if not java.has_home():
        paths["user.home"] = settings.home  # Ivy, for example, must be able to write there
    added = [_quoted(f"-D{name}={path}") for name, path in paths.items()]
    if settings.kafka.oauth_token_url:  # newer Kafka clients request tokens only from allowed addresses
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={settings.kafka.oauth_token_url}"
        added.append(_quoted(allowed))
    options["spark.driver.extraJavaOptions"] += " ".join(["", *added, *([_BRIEFLY] if brief else [])])
    if not _is_local(settings):
        # Remote executors read the jars from their disks. Reading a disk must therefore not need a class in
        # these jars.
        options = {name: value for name, value in options.items() if not name.endswith(".file.impl")}
        options["spark.jars"] = for_cluster()["spark.jars"]
        # The executors lack the disk jar, and on YARN it would hide YARN's properties.
        options["spark.driver.extraClassPath"] = str(jars_directory() / "spark" / "*")
    return options | {
        "spark.master": settings.spark.master,
        "spark.driver.memory": settings.spark.driver_memory,
        "spark.sql.shuffle.partitions": str(settings.spark.shuffle_partitions),
        "spark.pyspark.python": sys.executable,
        "spark.sql.warehouse.dir": str(settings.home / "spark-warehouse"),
        "spark.ui.showConsoleProgress": "false",
    }
