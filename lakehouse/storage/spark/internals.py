"""The only module that uses private members of Spark and py4j, and JVM classes outside Spark's public API.

Each function does one thing and makes no decisions. `lakehouse.storage.spark.members` lists the members that
a Spark upgrade could remove; `missing` and `missing_here` return the listed members that the JVM and PySpark
lack. Hadoop's files are in `lakehouse.storage.spark.objects`, and Delta's members in
`lakehouse.storage.tables.delta_internals`.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, wraps
from importlib import import_module
from itertools import groupby
from typing import Any

from py4j.java_gateway import JavaClass, JavaMember, JavaPackage, JVMView, is_instance_of
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.utils import get_active_spark_context

from lakehouse.storage.spark.jvm_output import filtered
from lakehouse.storage.spark.members import (
    CLASS,
    COMMANDS,
    HANDLER,
    LATCH,
    MEMBERS,
    METASTORE,
    NEW,
    PRIVATE,
    RUNNING,
    SIGNAL,
    SNAPPY,
    USER,
    ZSTD,
    Member,
)

_NAME = re.compile(r"([^\s(]+)\(([^)]*)\)")


def remember_names() -> None:
    """Make py4j resolve the name of each package, class and static method only once.

    PySpark resolves `org.apache.spark.sql.functions` in every expression. Each part of the name costs a call,
    for which the JVM might search every jar. A name's meaning does not change while the JVM runs.
    """
    for owner in (JVMView, JavaPackage, JavaClass):
        if not hasattr(owner.__getattr__, "__wrapped__"):
            owner.__getattr__ = _remembering(owner.__getattr__)


def _remembering(ask: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    @wraps(ask)
    def remembered(self: Any, name: str) -> Any:
        found = ask(self, name)
        if isinstance(found, (JavaPackage, JavaClass, JavaMember)):  # not a field's value
            self.__dict__[name] = found
        return found

    return remembered


def has_jvm(spark: SparkSession) -> bool:
    """Return whether Python can call a session's JVM, which it cannot with Spark Connect."""
    return hasattr(spark, "_jvm")


def missing(spark: SparkSession, listed: Iterable[Member] = MEMBERS) -> list[str]:
    """Return the listed members that the JVM lacks, as `class.signature`, or `class` for a missing class."""
    found = []
    for owner, of_owner in groupby(listed, lambda member: member.owner):
        known, wanted = _signatures(spark, owner), [member.signature for member in of_owner]
        if known is None:
            found.append(owner)
        else:
            found += [f"{owner}.{signature}" for signature in wanted if signature not in {*known, CLASS}]
    return found


def missing_here() -> list[str]:
    """Return the listed private members that PySpark lacks."""
    return [f"{module}.{name}" for module, name in PRIVATE if not _is_here(module, name)]


def _is_here(module: str, name: str) -> bool:
    try:
        found = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return False
    return True


def _signatures(spark: SparkSession, owner: str) -> frozenset[str] | None:
    """Return the signatures of a class's methods and constructors, or None if the class does not exist."""
    loader = static(spark, "java.lang.Thread").currentThread().getContextClassLoader()
    text = static(spark, "org.apache.commons.lang3.ArrayUtils").toString
    try:
        found = loader.loadClass(owner)
        methods, constructors = str(text(found.getMethods())), str(text(found.getConstructors()))
    except Py4JJavaError as error:
        if "NotFound" in str(error.java_exception) or "NoClassDefFound" in str(error.java_exception):
            return None
        raise
    names = {f"{name.rpartition('.')[2]}({types})" for name, types in _NAME.findall(methods)}
    return frozenset(names | {f"{NEW}({types})" for _, types in _NAME.findall(constructors)})


def static(spark: SparkSession, owner: str) -> Any:
    """Return a JVM class, for its constructor and static methods. Cached; for internals modules only."""
    return _class(spark._jvm, owner)


@lru_cache(maxsize=1_000)
def _class(jvm: Any, owner: str) -> Any:
    return getattr(jvm, owner)


def singleton(spark: SparkSession, owner: str) -> Any:
    """Return the singleton instance of a Scala object. Cached. Only internals modules call this."""
    return _singleton(spark._jvm, owner)


@lru_cache(maxsize=1_000)
def _singleton(jvm: Any, owner: str) -> Any:
    return getattr(getattr(jvm, f"{owner}$"), "MODULE$")


def compiled(spark: SparkSession, name: str) -> Any | None:
    """Return a class compiled from lakehouse/storage/spark/scala/disk, or None if the JVM lacks that jar."""
    found = static(spark, f"org.apache.spark.sql.lakehouse.{name}")
    return None if isinstance(found, JavaPackage) else found


def none(spark: SparkSession) -> Any:
    """Return Scala's None."""
    return _none(spark._jvm)


@lru_cache(maxsize=1)
def _none(jvm: Any) -> Any:
    return getattr(jvm, "scala.Option").empty()


def some(spark: SparkSession, value: Any) -> Any:
    """Return a Scala Option that contains a Java object, a string or a large number."""
    return static(spark, "scala.Option").apply(value)


def some_long(spark: SparkSession, value: int) -> Any:
    """Return a Scala Option with a long. Otherwise, py4j would pass a small number as an Integer."""
    boxed = static(spark, "java.util.stream.LongStream").of(value).boxed().findFirst()
    return static(spark, "scala.jdk.javaapi.OptionConverters").toScala(boxed)


def value_of(option: Any) -> Any | None:
    """Return a Scala Option's value, or None if it is empty."""
    return option.get() if option.isDefined() else None


def scala_seq(spark: SparkSession, values: Iterable[Any]) -> Any:
    """Return a Scala Seq of Java objects."""
    found = static(spark, "java.util.ArrayList")()
    for value in values:
        found.add(value)
    return static(spark, "org.apache.spark.api.python.PythonUtils").toSeq(found)


def elements(seq: Any) -> list[Any]:
    """Return the elements of a Scala Seq."""
    return [seq.apply(place) for place in range(int(seq.size()))]


def scala_map(spark: SparkSession, values: Mapping[str, str]) -> Any:
    """Return a Scala Map of strings."""
    found = static(spark, "java.util.HashMap")()
    for name, value in values.items():
        found.put(name, value)
    return static(spark, "org.apache.spark.api.python.PythonUtils").toScalaMap(found)


def entries(spark: SparkSession, scala: Any) -> dict[str, Any]:
    """Return the entries of a Scala Map."""
    return dict(static(spark, "scala.jdk.javaapi.CollectionConverters").asJava(scala).items())


def timestamp(spark: SparkSession, ms: int) -> Any:
    """Return a Java Timestamp for a time in ms since the epoch."""
    return static(spark, "java.sql.Timestamp")(ms)


def appends(spark: SparkSession) -> Any:
    """Return the save mode for appends."""
    return static(spark, "org.apache.spark.sql.SaveMode").Append


def output_mode(spark: SparkSession, *, updates: bool) -> Any:
    """Return a stream's output mode: update or append."""
    modes = static(spark, "org.apache.spark.sql.streaming.OutputMode")
    return modes.Update() if updates else modes.Append()


def java_session(spark: SparkSession) -> Any:
    """Return the JVM object of a session."""
    return spark._jsparkSession


def java_frame(rows: DataFrame) -> Any:
    """Return the JVM Dataset of a frame."""
    return rows._jdf


def frame(spark: SparkSession, dataset: Any) -> DataFrame:
    """Return a Python frame for a JVM Dataset."""
    return DataFrame(dataset, spark)


def frame_of_relation(spark: SparkSession, relation: Any) -> DataFrame:
    """Return a frame with the rows of a relation from Spark's V1 data source API."""
    return DataFrame(java_session(spark).baseRelationToDataFrame(relation), spark)


def held(rows: DataFrame) -> DataFrame | None:
    """Collect the rows into a frame in the driver's JVM, bypassing Python. Return None if there are none."""
    dataset = rows._jdf
    found = dataset.collectAsList()
    if found.isEmpty():
        return None
    session = java_session(rows.sparkSession)
    return DataFrame(session.createDataFrame(found, dataset.schema()), rows.sparkSession)


def estimated_bytes(rows: DataFrame) -> int:
    """Return the optimizer's estimate of a frame's size in bytes."""
    return int(str(rows._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()))


def folded_condition(filtered: DataFrame) -> Any:
    """Return the condition of a frame whose last operation is a filter, with constants folded."""
    analyzed = java_frame(filtered).queryExecution().analyzed()
    folding = static(filtered.sparkSession, "org.apache.spark.sql.catalyst.optimizer.ConstantFolding")
    return folding.apply(analyzed).condition()


def java_texts(values: Sequence[str]) -> Any:
    """Return a Scala Seq of strings, for `with_columns`."""
    from pyspark.sql.classic.column import _to_seq

    return _to_seq(get_active_spark_context(), list(values))


def java_column(column: Column) -> Any:
    """Return the JVM object of a column, for `aggregate`."""
    from pyspark.sql.classic.column import _to_java_column

    return _to_java_column(column)


def java_columns(columns: Sequence[Column]) -> Any:
    """Return a Scala Seq of columns, for `select`, `with_columns` and `aggregate`."""
    from pyspark.sql.classic.column import _to_java_column, _to_seq

    return _to_seq(get_active_spark_context(), list(columns), _to_java_column)


def select(rows: DataFrame, columns: Any) -> DataFrame:
    """Return a frame with only these JVM columns."""
    return DataFrame(rows._jdf.select(columns), rows.sparkSession)


def with_columns(rows: DataFrame, names: Any, columns: Any) -> DataFrame:
    """Return the frame with JVM columns added or replaced."""
    return DataFrame(rows._jdf.withColumns(names, columns), rows.sparkSession)


def aggregate(rows: DataFrame, by: Any, first: Any, others: Any) -> DataFrame:
    """Return a frame of JVM aggregates, grouped by JVM columns."""
    return DataFrame(rows._jdf.groupBy(by).agg(first, others), rows.sparkSession)


def set_active(spark: SparkSession) -> None:
    """Set the thread's active session, in the JVM."""
    singleton(spark, "org.apache.spark.sql.classic.SparkSession").setActiveSession(java_session(spark))


def is_started() -> bool:
    """Return whether PySpark is connected to a JVM."""
    return SparkContext._gateway is not None


def is_stopped(spark: SparkSession) -> bool:
    """Return whether the session's SparkContext is stopped. Raises an error if the JVM does not respond."""
    context: Any = spark.sparkContext._jsc
    return context is None or bool(context.sc().isStopped())


def launch(options: Mapping[str, str], user: str | None) -> None:
    """Start Spark's JVM with a session's options. `user` is a name for a user without one, or else None.

    Hadoop looks up the user's name before it opens a file, and fails if there is no name. The name must
    therefore be set before Spark opens its jars.
    """
    conf = SparkConf().setAll([(key, value) for key, value in options.items() if key != "spark.jars"])
    with filtered() as standard_error:
        gateway: Any = launch_gateway(conf, {"stderr": standard_error})  # type: ignore[no-untyped-call]
    SparkContext._ensure_initialized(gateway=gateway, conf=conf)
    if user is not None:
        jvm: Any = SparkContext._jvm
        users = getattr(jvm, USER)
        users.setLoginUser(users.createRemoteUser(user))


def speak_english(spark: SparkSession) -> None:
    """Make the driver's JVM write numbers with the digits 0 to 9, whatever locale it was started with."""
    locale = static(spark, "java.util.Locale")
    locale.setDefault(locale.US)


def encoding_of_names(spark: SparkSession) -> str:
    """Return the encoding in which the JVM reads and writes file names."""
    return str(static(spark, "java.lang.System").getProperty("sun.jnu.encoding"))


def load_codecs(spark: SparkSession) -> None:
    """Make the JVM unpack its compression libraries into its temporary directory.

    If unpacking fails when a class is first used, for example on a full disk, the class remains broken for
    the life of the JVM.
    """
    static(spark, SNAPPY).getNativeLibraryVersion()
    static(spark, ZSTD).load()


def stop_with_jvm(spark: SparkSession) -> None:
    """Stop the session, and wait until its JVM has exited."""
    gateway: Any = SparkContext._gateway
    spark.stop()
    with suppress(OSError):
        gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


@contextmanager
def on_signals(spark: SparkSession, names: Iterable[str], handle: Callable[[], None]) -> Iterator[None]:
    """Call `handle` if the JVM receives one of the signals, such as `TERM`. JVM handlers stay disabled.

    A thread waits in the JVM. If the JVM called Python instead, py4j would listen on a port without checking
    the gateway's token.
    """
    signals, told, over = static(spark, SIGNAL), static(spark, LATCH)(1), threading.Event()
    interface = static(spark, "java.lang.Class").forName(HANDLER)
    handler = static(spark, "java.beans.EventHandler").create(interface, told, "countDown")
    for name in names:
        signals.handle(signals(name), handler)

    def wait() -> None:
        with suppress(Py4JError, OSError):  # the JVM has exited
            getattr(told, "await")()
            if not over.is_set():
                handle()

    threading.Thread(target=wait, name="signals", daemon=True).start()
    try:
        yield
    finally:
        over.set()
        with suppress(Py4JError, OSError):
            told.countDown()


@contextmanager
def without_console(spark: SparkSession) -> Iterator[None]:
    """Discard this thread's output to Scala's Console during the block.

    VACUUM prints a line regardless of log levels, and this line would be mixed with a run's JSON log. Scala's
    Console is per thread, so other threads print as before.
    """
    console = singleton(spark, "scala.Console")
    before, nowhere = console.out(), static(spark, "java.io.OutputStream").nullOutputStream()
    console.setOutDirect(static(spark, "java.io.PrintStream")(nowhere))
    try:
        yield
    finally:
        console.setOutDirect(before)


def commands(spark: SparkSession, statement: str) -> Iterator[str]:
    """Yield the classes of a SQL statement's commands, and of the plan nodes that run commands."""
    plans = [java_session(spark).sessionState().sqlParser().parsePlan(statement)]
    while plans:
        plan = plans.pop()
        name = str(plan.getClass().getName())
        is_command = name.endswith(("Command", "Statement"))  # Delta's commands do not extend COMMANDS
        if name in RUNNING or is_command or any(is_a(spark, plan, owner) for owner in COMMANDS):
            yield name
        plans += elements(plan.children())


def class_name(java: Any) -> str:
    """Return the name of an object's class, without its package."""
    return str(java.getClass().getSimpleName())


def is_a(spark: SparkSession, java: Any, owner: str) -> bool:
    """Return whether an object is an instance of a class."""
    return bool(is_instance_of(spark.sparkContext._gateway, java, owner))


def default_file_system(context: SparkContext) -> str:
    """Return the URL of Hadoop's default file system."""
    java: Any = context._jsc
    return str(java.hadoopConfiguration().get("fs.defaultFS"))


def configure_hadoop(spark: SparkSession, properties: Mapping[str, str]) -> None:
    """Set Hadoop properties that must not appear on a command line."""
    java: Any = spark.sparkContext._jsc
    for name, value in properties.items():
        java.hadoopConfiguration().set(name, value)


def hadoop_configuration(spark: SparkSession) -> Any:
    """Return Hadoop's configuration, with the session's own properties."""
    return java_session(spark).sessionState().newHadoopConf()


def metastore_client(spark: SparkSession, properties: Mapping[str, str]) -> Any:
    """Return a client connected to Hive's metastore. `properties` override those of the session."""
    java: Any = spark.sparkContext._jsc
    of_spark = static(spark, "java.lang.Class").forName("org.apache.spark.SparkContext")
    found = static(spark, "org.apache.hadoop.hive.conf.HiveConf")(java.hadoopConfiguration(), of_spark)
    for name, value in properties.items():
        found.set(name, value)
    return static(spark, f"{METASTORE}.HiveMetaStoreClient")(found)
