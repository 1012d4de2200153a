package org.apache.spark.sql.lakehouse

import java.time.ZoneOffset
import java.util.concurrent.ConcurrentLinkedQueue
import java.util.concurrent.atomic.AtomicInteger

import scala.collection.mutable
import scala.util.control.NonFatal

import org.apache.spark.{SparkEnv, TaskContext}
import org.apache.spark.broadcast.Broadcast
import org.apache.spark.sql.Row
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.catalyst.expressions.CodegenObjectFactoryMode.NO_CODEGEN
import org.apache.spark.sql.catalyst.expressions.codegen.GenerateUnsafeProjection
import org.apache.spark.sql.catalyst.plans.logical.Statistics
import org.apache.spark.sql.catalyst.plans.physical.{Partitioning, SinglePartition, UnknownPartitioning}
import org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE
import org.apache.spark.sql.catalyst.types.DataTypeUtils.toAttributes
import org.apache.spark.sql.catalyst.util.DateTimeUtils.convertSpecialTimestamp
import org.apache.spark.sql.classic.{Dataset, SparkSession}
import org.apache.spark.sql.execution.{LogicalRDD, ProjectExec, RDDScanExec, SparkPlan}
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types.{DatetimeType, StructType}
import org.apache.spark.unsafe.types.UTF8String

/** The plans of one row computation, which are analyzed, optimized and compiled once and kept for later rows.
  *
  * There is one plan for each schema and each set of session settings that may change values. A plan can be kept if it
  * only adds, changes and selects columns, based only on the values in the row.
  */
final class KeptPlans {
  private val plans = mutable.HashMap.empty[String, Option[KeptPlan]]

  /** Returns an empty frame with the same columns, for planning the computation. Returns null if it was planned before,
    * or if the session executes for many rows.
    */
  def placeholder(rows: Dataset[Row]): Dataset[Row] = synchronized {
    if (areMany(rows) || plans.contains(key(rows))) null
    else {
      val (session, columns) = (rows.sparkSession, toAttributes(rows.schema))
      Dataset.ofRows(session, LogicalRDD(columns, session.sparkContext.emptyRDD[InternalRow])(session))
    }
  }

  /** Keeps the plan of a computed placeholder, if it can be kept. */
  def keep(rows: Dataset[Row], computed: Dataset[Row]): Unit = synchronized {
    if (plans.size == KeptPlans.Most) plans.clear()
    plans(key(rows)) = KeptPlan.of(computed)
  }

  /** Returns the rows computed by a kept plan; null if there is none, or if the session executes for many rows. */
  def computed(rows: Dataset[Row]): Dataset[Row] =
    if (areMany(rows)) null else synchronized(plans.get(key(rows)).flatten).map(_.computed(rows)).orNull

  /** Returns whether the session executes for many rows, which justify a new plan and whole-stage code. */
  private def areMany(rows: Dataset[Row]): Boolean = rows.sparkSession.sessionState.conf.wholeStageEnabled

  private def key(rows: Dataset[Row]): String = Key.of(rows.sparkSession, rows.schema)
}

private object KeptPlans {
  val Most = 4
}

/** The key of a plan: the schema and the session settings on which its results depend. */
private object Key {
  /** Spark SQL settings that do not affect values. */
  private val OfExecution = Set(
    "spark.sql.adaptive.enabled", "spark.sql.codegen.factoryMode", "spark.sql.codegen.wholeStage",
    "spark.sql.files.maxPartitionBytes", "spark.sql.files.openCostInBytes", "spark.sql.shuffle.partitions")

  def of(session: SparkSession, schema: StructType): String = {
    // Other settings do not affect values, but may change with each commit, like Delta's lastCommitVersionInSession.
    val ofSql = session.sessionState.conf.getAllConfs.filter { case (name, _) => name.startsWith("spark.sql.") }
    val settings = ofSql.removedAll(OfExecution).toSeq.sorted
    s"${session.sparkContext.applicationId} ${schema.json} $settings"
  }
}

private final class KeptPlan(columns: Seq[Attribute], projections: Broadcast[Projections]) {
  private val uses = new AtomicInteger

  def computed(rows: Dataset[Row]): Dataset[Row] = {
    val (session, query, shared) = (rows.sparkSession, rows.queryExecution, projections)
    val isFew = session.sessionState.conf.getConf(SQLConf.CODEGEN_FACTORY_MODE) == NO_CODEGEN
    val isInterpreted = uses.incrementAndGet() <= KeptPlan.Interpreted && isFew
    val found = query.toRdd.mapPartitionsInternal(given => shared.value.of(given, isInterpreted))
    val partitioning: Partitioning =
      if (found.getNumPartitions == 1) SinglePartition else UnknownPartitioning(found.getNumPartitions)
    val size = Statistics(sizeInBytes = query.optimizedPlan.stats.sizeInBytes)
    // New instances of the columns, so that frames of several micro-batches can be joined.
    val leaf = LogicalRDD(columns.map(_.newInstance()), found, partitioning)(session, Some(size))
    Dataset.ofRows(session, leaf)
  }
}

private object KeptPlan {

  /** The number of uses with few rows in which a plan is interpreted. Compiled code pays off only after that. */
  val Interpreted = 8

  def of(computed: Dataset[Row]): Option[KeptPlan] = {
    val query = computed.queryExecution
    if (query.analyzed.exists(_.expressions.exists(dependsOnMore))) None
    else chain(query.sparkPlan).map { steps =>
      val lists = steps.map(one => BindReferences.bindReferences[Expression](one.projectList, one.child.output))
      new KeptPlan(query.analyzed.output, computed.sparkSession.sparkContext.broadcast(new Projections(lists)))
    }
  }

  /** Returns whether a value depends on more than the row, such as the time or a random number. */
  private def dependsOnMore(value: Expression): Boolean =
    !value.deterministic || value.containsPattern(CURRENT_LIKE) || SubqueryExpression.hasSubquery(value) ||
    value.exists {
      case Cast(Literal(text: UTF8String, _), _: DatetimeType, _, _) => // 'today', which the optimizer replaces
        convertSpecialTimestamp(text.toString, ZoneOffset.UTC).isDefined
      case _ => false
    }

  private def chain(plan: SparkPlan): Option[List[ProjectExec]] = plan match {
    case step: ProjectExec => chain(step.child).map(_ :+ step)
    case _: RDDScanExec => Some(Nil)
    case _ => None
  }
}

/** Projections to apply one after another. Each task borrows its own set, because they are not thread-safe. */
private final class Projections(lists: List[Seq[Expression]]) extends Serializable {
  @transient private lazy val (interpreted, generated) =
    (new ConcurrentLinkedQueue[Array[UnsafeProjection]], new ConcurrentLinkedQueue[Array[UnsafeProjection]])

  def of(rows: Iterator[InternalRow], isInterpreted: Boolean): Iterator[InternalRow] = {
    val idle = if (isInterpreted) interpreted else generated
    val own = Option(idle.poll()).getOrElse(made(isInterpreted))
    TaskContext.get().addTaskCompletionListener[Unit](_ => idle.add(own))
    rows.map(row => own.foldLeft(row)((found, projection) => projection(found)))
  }

  private def made(isInterpreted: Boolean): Array[UnsafeProjection] = {
    val serializer = SparkEnv.get.closureSerializer.newInstance()
    val copied = serializer.deserialize[List[Seq[Expression]]](serializer.serialize(lists))
    copied.map(list => if (isInterpreted) InterpretedUnsafeProjection.createProjection(list) else compiled(list)).toArray
  }

  private def compiled(list: Seq[Expression]): UnsafeProjection =
    try GenerateUnsafeProjection.generate(list, subexpressionEliminationEnabled = true)
    catch { case NonFatal(_) => InterpretedUnsafeProjection.createProjection(list) }
}
