"""The members of Spark and py4j that `lakehouse.storage.spark.internals` uses. An upgrade could remove them.

tests/storage/spark/test_internals.py checks that every member exists in the JVM or in PySpark.
"""

from __future__ import annotations

from dataclasses import dataclass

NEW = "new"
"""The method name that stands for a constructor in a signature."""
CLASS = ""
"""The signature of a class that is used only by its name."""

SQL = "org.apache.spark.sql"
PLANS = f"{SQL}.catalyst.plans.logical"
COMMANDS = (f"{PLANS}.Command", f"{PLANS}.ParsedStatement")
"""The base classes of Spark's commands."""
RUNNING = (f"{PLANS}.Call", f"{PLANS}.CompoundBody", f"{SQL}.catalyst.analysis.UnresolvedExecuteImmediate")
"""Classes of plan nodes that are not commands themselves but run commands."""
SHOWING = (
    f"{PLANS}.DescribeColumn",
    f"{PLANS}.DescribeFunction",
    f"{PLANS}.DescribeNamespace",
    f"{PLANS}.DescribeRelation",
    f"{PLANS}.ShowColumns",
    f"{PLANS}.ShowCreateTable",
    f"{PLANS}.ShowFunctions",
    f"{PLANS}.ShowTableProperties",
    f"{PLANS}.ShowTables",
    f"{PLANS}.ShowTablesExtended",
    f"{PLANS}.ShowViews",
    f"{SQL}.execution.command.DescribeQueryCommand",
    f"{SQL}.execution.command.ExplainCommand",
    f"{SQL}.execution.command.ShowNamespacesCommand",
)
"""Commands, as Spark's parser returns them, that only show existing objects."""
FILES = f"{SQL}.execution.streaming.checkpointing.CheckpointFileManager"
SIGNAL, HANDLER = "sun.misc.Signal", "sun.misc.SignalHandler"
LATCH = "java.util.concurrent.CountDownLatch"
METASTORE = "org.apache.hadoop.hive.metastore"
USER = "org.apache.hadoop.security.UserGroupInformation"
SNAPPY, ZSTD = "org.xerial.snappy.Snappy", "com.github.luben.zstd.util.Native"


@dataclass(frozen=True)
class Member:
    """A method or constructor of a class in the JVM, as `name(parameter types)`."""

    owner: str
    signature: str


def members(owner: str, *signatures: str) -> tuple[Member, ...]:
    """Return a Member of the class `owner` for each of these signatures."""
    return tuple(Member(owner, signature) for signature in signatures)


MEMBERS = (
    *members(f"{SQL}.classic.SparkSession$", f"setActiveSession({SQL}.SparkSession)"),
    *members(
        f"{SQL}.classic.SparkSession",
        f"baseRelationToDataFrame({SQL}.sources.BaseRelation)",
        f"createDataFrame(java.util.List,{SQL}.types.StructType)",
        "sessionState()",
    ),
    *members(f"{SQL}.internal.SessionState", "newHadoopConf()", "sqlParser()"),
    *members(f"{SQL}.catalyst.parser.ParserInterface", "parsePlan(java.lang.String)"),
    *members(
        f"{SQL}.classic.Dataset",
        "collectAsList()",
        "groupBy(scala.collection.immutable.Seq)",
        "queryExecution()",
        "schema()",
        "select(scala.collection.immutable.Seq)",
        "withColumns(scala.collection.immutable.Seq,scala.collection.immutable.Seq)",
    ),
    *members(
        f"{SQL}.classic.RelationalGroupedDataset",
        f"agg({SQL}.Column,scala.collection.immutable.Seq)",
    ),
    *members(f"{SQL}.execution.QueryExecution", "analyzed()", "optimizedPlan()"),
    *members(f"{PLANS}.LogicalPlan", "children()", "stats()"),
    *members(f"{PLANS}.Statistics", "sizeInBytes()"),
    *members(f"{PLANS}.Filter", "condition()"),
    *(Member(name, CLASS) for name in (*COMMANDS, *RUNNING, *SHOWING)),
    *members(f"{SQL}.catalyst.optimizer.ConstantFolding", f"apply({PLANS}.LogicalPlan)"),
    *members(
        FILES,
        "create(org.apache.hadoop.fs.Path,org.apache.hadoop.conf.Configuration)",
        "createAtomic(org.apache.hadoop.fs.Path,boolean)",
        "mkdirs(org.apache.hadoop.fs.Path)",
    ),
    *members(f"{FILES}$CancellableFSDataOutputStream", "cancel()"),
    *members("org.apache.spark.api.python.PythonUtils", "toScalaMap(java.util.Map)", "toSeq(java.util.List)"),
    *members("org.apache.spark.api.java.JavaSparkContext", "hadoopConfiguration()", "sc()"),
    *members("org.apache.spark.SparkContext", "isStopped()"),
    *members(
        f"{METASTORE}.HiveMetaStoreClient",
        "new(org.apache.hadoop.hive.conf.HiveConf)",
        f"alter_table(java.lang.String,java.lang.String,{METASTORE}.api.Table)",
        "close()",
        f"createDatabase({METASTORE}.api.Database)",
        f"createTable({METASTORE}.api.Table)",
        "getDatabase(java.lang.String)",
        "getTable(java.lang.String,java.lang.String)",
    ),
    *members(
        "org.apache.hadoop.hive.conf.HiveConf",
        "new(org.apache.hadoop.conf.Configuration,java.lang.Class)",
        "set(java.lang.String,java.lang.String)",
    ),
    *members(USER, "createRemoteUser(java.lang.String)", f"setLoginUser({USER})"),
    *members("scala.Console$", "out()", "setOutDirect(java.io.PrintStream)"),
    *members("scala.jdk.javaapi.CollectionConverters", "asJava(scala.collection.Map)"),
    *members("scala.jdk.javaapi.OptionConverters", "toScala(java.util.Optional)"),
    *members(SIGNAL, "new(java.lang.String)", f"handle({SIGNAL},{HANDLER})"),
    *members(HANDLER, f"handle({SIGNAL})"),
    *members(SNAPPY, "getNativeLibraryVersion()"),
    *members(ZSTD, "load()"),
)
"""Every JVM member used here that is not part of the public API of Spark, Hadoop or Java."""

COMPILED = (
    *members(
        f"{SQL}.lakehouse.KeptPlans",
        "new()",
        f"computed({SQL}.classic.Dataset)",
        f"keep({SQL}.classic.Dataset,{SQL}.classic.Dataset)",
        f"placeholder({SQL}.classic.Dataset)",
    ),
)
"""Every member of the jar for lakehouse/storage/spark/scala/disk that Python calls, if the jar exists."""

PRIVATE = (
    ("py4j.java_gateway", "JVMView.__getattr__"),
    ("py4j.java_gateway", "JavaClass.__getattr__"),
    ("py4j.java_gateway", "JavaPackage.__getattr__"),
    ("pyspark", "SparkContext._ensure_initialized"),
    ("pyspark", "SparkContext._gateway"),
    ("pyspark", "SparkContext._jvm"),
    ("pyspark.sql.classic.column", "_to_java_column"),
    ("pyspark.sql.classic.column", "_to_seq"),
)
"""Every private member of PySpark's modules and classes that is used here, except instance members."""
