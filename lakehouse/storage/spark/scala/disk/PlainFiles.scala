package org.apache.spark.sql.lakehouse

import java.io.CharArrayWriter
import java.util.UUID

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path
import org.apache.hadoop.mapreduce.{Job, JobID, TaskAttemptID, TaskID, TaskType}
import org.apache.hadoop.mapreduce.task.TaskAttemptContextImpl
import org.apache.spark.TaskContext
import org.apache.spark.broadcast.Broadcast
import org.apache.spark.sql.Row
import org.apache.spark.sql.catalyst.{InternalRow, ProjectingInternalRow}
import org.apache.spark.sql.catalyst.json.{JacksonGenerator, JSONOptions}
import org.apache.spark.sql.catalyst.util.TypeUtils
import org.apache.spark.sql.classic.{Dataset, SparkSession}
import org.apache.spark.sql.delta.OptimisticTransaction
import org.apache.spark.sql.delta.actions.{AddCDCFile, AddFile, FileAction, Metadata}
import org.apache.spark.sql.delta.stats.{SkippingEligibleDataType, StatisticsCollection, StatsCollectionUtils}
import org.apache.spark.sql.execution.SQLExecution
import org.apache.spark.sql.execution.datasources.{OutputWriter, OutputWriterFactory}
import org.apache.spark.sql.execution.datasources.parquet.ParquetWriteSupport
import org.apache.spark.sql.types.{Metadata => SparkMetadata, _}
import org.apache.spark.unsafe.types.UTF8String
import org.apache.spark.util.SerializableConfiguration

/** Writes rows into new files of a transaction's table in one pass.
  *
  * Delta plans a query around the rows for each write: it sorts them by kind of file, computes the statistics in
  * expressions, and serializes the configuration for each task. For a few thousand rows, that costs more than writing
  * the files.
  */
object PlainFiles {
  private val ChangeType = "_change_type"

  /** Table properties that do not affect data files. Tables with any other Delta property are left to Delta. */
  private val Harmless = Set(
    "appendOnly", "checkpoint.writeStatsAsStruct", "checkpointInterval", "dataSkippingStatsColumns",
    "deletedFileRetentionDuration", "enableChangeDataFeed", "enableDeletionVectors", "enableExpiredLogCleanup",
    "enableInCommitTimestamps", "enableTypeWidening", "inCommitTimestampEnablementTimestamp",
    "inCommitTimestampEnablementVersion", "isolationLevel", "logRetentionDuration", "minReaderVersion",
    "minWriterVersion")
  private val HarmlessOfColumns = Set("comment", "delta.typeChanges")

  /** Session settings that affect data files. */
  private val OfFiles = ("spark\\.databricks\\.delta\\.(autoCompact|optimizeWrite|parquet|stats|write)\\..*|" +
    "parquet\\..*|spark\\.sql\\.files\\.maxRecordsPerFile").r

  private val prepared = collection.mutable.HashMap.empty[String, Broadcast[Parquet]]
  private val Most = 64

  /** Writes the rows, and returns the files; null if only Delta can write them. Rows with a `_change_type` go to the
    * change feed.
    */
  def write(txn: OptimisticTransaction, rows: Dataset[Row]): Written = {
    val (session, query) = (rows.sparkSession, rows.queryExecution)
    val schema = query.analyzed.schema.asNullable
    val columns = if (isPlain(txn.metadata, session, schema)) statistics(txn.metadata, schema) else None
    columns.map { stats =>
      val task = new FilesTask(parquet(session, txn), txn.deltaLog.dataPath.toString, schema, ChangeType, stats)
      // Expressions read the session's settings in tasks as well.
      val made = SQLExecution.withSQLConfPropagated(session) {
        session.sparkContext.runJob(query.toRdd, task)
      }.toSeq.flatten
      val length = StatsCollectionUtils.getDataSkippingStringPrefixLength(session, txn.metadata)
      new Written(made, stats, length, session.sessionState.conf.sessionLocalTimeZone)
    }.orNull
  }

  private def isPlain(table: Metadata, session: SparkSession, schema: StructType): Boolean = {
    val properties = table.configuration.keys.filter(_.startsWith("delta.")).map(_.stripPrefix("delta."))
    val declared = table.schema.map(field => field.name -> field).toMap
    def isSame(field: StructField) =
      declared.get(field.name).exists(_.dataType.asNullable == field.dataType) || field.name == ChangeType
    table.partitionColumns.isEmpty && properties.forall(name => Harmless(name) || name.startsWith("feature.")) &&
    table.schema.forall(isBare) && schema.forall(isSame) && !session.sessionState.conf.getAllConfs.keys.exists(OfFiles.matches)
  }

  /** Returns whether a column has no constraint, default, generation rule or different name in files. */
  private def isBare(column: StructField): Boolean = {
    val metadata = new MetadataBuilder().withMetadata(column.metadata)
    column.nullable && HarmlessOfColumns.foldLeft(metadata)(_.remove(_)).build() == SparkMetadata.empty
  }

  /** Returns the columns with statistics, in the table's order; None if Delta chooses other columns. */
  private def statistics(table: Metadata, schema: StructType): Option[Seq[Statistic]] =
    StatisticsCollection.configuredDeltaStatsColumnSpec(table).deltaStatsColumnNamesOpt.flatMap { names =>
      val chosen = names.map(_.nameParts)
      val fields = table.schema.filter(field => chosen.contains(Seq(field.name)))
      val isEach = fields.size == chosen.distinct.size && fields.forall(field => SkippingEligibleDataType(field.dataType))
      Option.when(isEach)(fields.map(field => Statistic(field.name, field.dataType, schema.getFieldIndex(field.name))))
    }

  private def parquet(session: SparkSession, txn: OptimisticTransaction): Broadcast[Parquet] = synchronized {
    val properties = txn.metadata.configuration ++ txn.deltaLog.options
    val key = Key.of(session, StructType(Nil)) + properties.toSeq.sorted
    if (prepared.size == Most) prepared.clear()
    prepared.getOrElseUpdate(key, {
      val job = Job.getInstance(session.sessionState.newHadoopConfWithOptions(properties))
      val format = txn.deltaLog.fileFormat(txn.protocol, txn.metadata)
      val factory = format.prepareWrite(session, job, Map.empty, StructType(Nil))
      session.sparkContext.broadcast(new Parquet(factory, new SerializableConfiguration(job.getConfiguration)))
    })
  }
}

/** A column with statistics, and its position in the rows, if they contain it. */
private final case class Statistic(name: String, dataType: DataType, place: Option[Int])

/** The configuration for writing Parquet files, except for their schema. */
private final class Parquet(factory: OutputWriterFactory, configuration: SerializableConfiguration)
    extends Serializable {

  /** Returns a writer for a new file in a directory. Its name begins with `kind`. */
  def open(directory: String, kind: String, partition: Int, schema: StructType): OutputWriter = {
    val own = new Configuration(configuration.value)
    ParquetWriteSupport.setSchema(schema, own)
    val attempt = new TaskAttemptID(new TaskID(new JobID("lakehouse", 0), TaskType.MAP, partition), 0)
    val context = new TaskAttemptContextImpl(own, attempt)
    val name = f"$kind-$partition%05d-${UUID.randomUUID}.c000${factory.getFileExtension(context)}"
    factory.newInstance(s"$directory/$name", schema, context)
  }

  def status(path: Path) = path.getFileSystem(configuration.value).getFileStatus(path)

  def delete(path: Path): Unit = path.getFileSystem(configuration.value).delete(path, false)
}

/** A written file: its path in the table, its number of rows, and the bounds of their values. */
private final case class MadeFile(
    name: String, isFeed: Boolean, size: Long, modifiedMs: Long, rows: Long, bounds: Seq[Bounds])

/** Writes a partition's rows into a data file, and rows with a change type into a file of the change feed. */
private final class FilesTask(
    parquet: Broadcast[Parquet], directory: String, schema: StructType, changeType: String, stats: Seq[Statistic])
    extends ((TaskContext, Iterator[InternalRow]) => Seq[MadeFile])
    with Serializable {

  override def apply(context: TaskContext, rows: Iterator[InternalRow]): Seq[MadeFile] = {
    val (own, partition) = (parquet.value, context.partitionId())
    val kind = schema.getFieldIndex(changeType)
    val table = StructType(schema.filter(_.name != changeType))
    val bare = ProjectingInternalRow(table, schema.indices.filterNot(kind.contains))
    val bounds = stats.map(new Bounds(_))
    var data, feed = Option.empty[OutputWriter]
    var (count, changes) = (0L, 0L)
    try {
      rows.foreach { row =>
        if (kind.exists(!row.isNullAt(_))) {
          if (feed.isEmpty) feed = Some(own.open(s"$directory/_change_data", "cdc", partition, schema))
          feed.get.write(row)
          changes += 1
        } else {
          if (data.isEmpty) data = Some(own.open(directory, "part", partition, table))
          bare.project(row)
          data.get.write(bare)
          count += 1
          bounds.foreach(_.add(row))
        }
      }
      data.foreach(_.close())
      feed.foreach(_.close())
      def made(writer: OutputWriter, isFeed: Boolean, rows: Long, bounds: Seq[Bounds]) = {
        val status = own.status(new Path(writer.path()))
        val name = (if (isFeed) "_change_data/" else "") + status.getPath.getName
        MadeFile(name, isFeed, status.getLen, status.getModificationTime, rows, bounds)
      }
      data.map(made(_, isFeed = false, count, bounds)).toSeq ++ feed.map(made(_, isFeed = true, changes, Nil))
    } catch {
      case error: Throwable =>
        data.foreach(abandon)
        feed.foreach(abandon)
        throw error
    }
  }

  /** Deletes a failed task's file, if possible, because no commit will name it. */
  private def abandon(writer: OutputWriter): Unit =
    for (step <- Seq(() => writer.close(), () => parquet.value.delete(new Path(writer.path()))))
      try step()
      catch { case _: Throwable => } // the task fails with the first error
}

/** A column's minimum and maximum in a file, and its number of nulls. */
private final class Bounds(column: Statistic) extends Serializable {
  @transient private lazy val order = TypeUtils.getInterpretedOrdering(column.dataType)
  var least, greatest: Any = null
  var nulls = 0L

  def add(row: InternalRow): Unit = column.place.foreach { place =>
    if (row.isNullAt(place)) nulls += 1
    else {
      val value = row.get(place, column.dataType)
      if (least == null || order.lt(value, least)) least = InternalRow.copyValue(value)
      if (greatest == null || order.gt(value, greatest)) greatest = InternalRow.copyValue(value)
    }
  }
}

/** Written files: Delta's actions, and the number of rows added to the table. */
final class Written private[lakehouse] (made: Seq[MadeFile], stats: Seq[Statistic], length: Int, zone: String) {
  def rows: Long = made.filterNot(_.isFeed).map(_.rows).sum

  def actions: Seq[FileAction] = made.map { file =>
    if (file.isFeed) AddCDCFile(file.name, Map.empty, file.size)
    else AddFile(file.name, Map.empty, file.size, file.modifiedMs, dataChange = true, stats = json(file))
  }

  /** Returns a file's statistics as Delta writes them. */
  private def json(file: MadeFile): String = {
    val bounded = stats.zip(file.bounds).filter(_._1.place.nonEmpty)
    val values = StructType(bounded.map { case (column, _) => StructField(column.name, column.dataType) })
    val nulls = StructType(stats.map(column => StructField(column.name, LongType)))
    val schema = new StructType().add("numRecords", LongType).add("minValues", values).add("maxValues", values)
    val row = InternalRow(
      file.rows,
      InternalRow.fromSeq(bounded.map { case (_, bounds) => least(bounds.least) }),
      InternalRow.fromSeq(bounded.map { case (_, bounds) => greatest(bounds.greatest) }),
      InternalRow.fromSeq(stats.zip(file.bounds).map { case (column, bounds) =>
        if (column.place.isEmpty) file.rows else bounds.nulls
      }))
    val text = new CharArrayWriter
    val generator = new JacksonGenerator(schema.add("nullCount", nulls), text, new JSONOptions(Map.empty, zone))
    generator.write(row)
    generator.flush()
    text.toString
  }

  private def least(value: Any): Any = value match {
    case text: UTF8String => text.substringSQL(0, length)
    case other => other
  }

  private def greatest(value: Any): Any = value match {
    case text: UTF8String => UTF8String.fromString(StatisticsCollection.truncateMaxStringAgg(length)(text.toString))
    case other => other
  }
}
