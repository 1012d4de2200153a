package lakehouse.storage

import java.io.{FileNotFoundException, IOException}
import java.nio.file.FileAlreadyExistsException
import java.util.UUID

import scala.concurrent.{Await, Future}
import scala.concurrent.ExecutionContext.Implicits.global
import scala.concurrent.duration.Duration
import scala.jdk.CollectionConverters._
import scala.language.existentials
import scala.util.Try

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FSDataOutputStream, FileStatus, Path}
import org.apache.hadoop.fs.s3a.S3AFileSystem
import software.amazon.awssdk.services.s3.model.{ListObjectsV2Request, S3Object}

/** Reads and writes objects on S3, in as few requests as possible. */
object Objects {
  private val Id = "lakehouse-write-id"
  private val Conditional = "fs.option.create.conditional.overwrite" -> "true"
  private val WithoutLooking = "fs.s3a.create.performance" -> "true"

  /** Creates an object; throws FileAlreadyExistsException if another write has already created it. */
  def create(path: Path, content: Array[Byte], conf: Configuration): Unit = {
    val id = UUID.randomUUID().toString
    try put(path, content, conf, overwrite = false, s"fs.s3a.create.header.$Id" -> id, Conditional)
    catch {
      case error: IOException =>
        // Whatever the error was, the existing object decides. Reading it may fail for the same reason.
        val there = try metadata(path, conf) catch { case _: IOException => throw error }
        there match {
          case Some(of) if of.get(Id).contains(id) => ()
          case Some(_) =>
            val refusal = new FileAlreadyExistsException(path.toString)
            refusal.initCause(error)
            throw refusal
          case None => throw error
        }
    }
  }

  /** Writes an object, replacing an existing one. */
  def replace(path: Path, content: Array[Byte], conf: Configuration): Unit =
    put(path, content, conf, overwrite = true, WithoutLooking)

  /** Returns when an object was last modified, in ms since the epoch; -1 if it is missing. Takes one request. */
  def modifiedMs(path: Path, conf: Configuration): Long =
    head(path, conf).fold(-1L)(_.lastModified.toEpochMilli)

  /** Returns `modifiedMs` of two objects in the time of one request, as text, so that Python needs only one call. */
  def modifiedMsOfBoth(one: Path, other: Path, conf: Configuration): String = {
    val meanwhile = Future(modifiedMs(other, conf))
    s"${modifiedMs(one, conf)} ${Await.result(meanwhile, Duration.Inf)}"
  }

  /** Returns the statuses of the objects in a path's directory, sorted by name, starting at the path's own name. */
  def namesFrom(path: Path, conf: Configuration): Iterator[FileStatus] = {
    val (system, directory, name) = (systemOf(path, conf), path.getParent, path.getName)
    val prefix = system.pathToKey(directory) + "/"
    val request = ListObjectsV2Request.builder.bucket(system.getBucket).prefix(prefix).delimiter("/")
      // S3 lists only names after the given one. Dropping the last character therefore includes the name itself.
      .startAfter(prefix + name.dropRight(1)).build
    val pages = system.getS3AInternals.getAmazonS3Client("listing of a log").listObjectsV2Paginator(request)
    pages.contents.iterator.asScala.map(status(system, directory, prefix, _)).filter(_.getPath.getName >= name)
  }

  private def status(system: S3AFileSystem, directory: Path, prefix: String, found: S3Object): FileStatus =
    new FileStatus(
      found.size, false, 1, system.getDefaultBlockSize(directory), found.lastModified.toEpochMilli,
      new Path(system.makeQualified(directory), found.key.stripPrefix(prefix)))

  private def metadata(path: Path, conf: Configuration): Option[Map[String, String]] =
    head(path, conf).map(_.metadata.asScala.toMap)

  private def head(path: Path, conf: Configuration) =
    try Some(systemOf(path, conf).getS3AInternals.getObjectMetadata(path))
    catch { case _: FileNotFoundException => None }

  private def put(
      path: Path, content: Array[Byte], conf: Configuration, overwrite: Boolean, options: (String, String)*): Unit = {
    val builder = systemOf(path, conf).createFile(path)
    builder.overwrite(overwrite)
    for ((name, value) <- options) builder.must(name, value)
    val out: FSDataOutputStream = builder.build()
    try out.write(content)
    catch { case error: Throwable => Try(out.abort()); throw error } // closing would publish a partial object
    out.close()
  }

  private def systemOf(path: Path, conf: Configuration): S3AFileSystem = path.getFileSystem(conf) match {
    case system: S3AFileSystem => system
    case other => throw new IOException(s"$path is on ${other.getClass.getName}, and not on s3a")
  }
}
