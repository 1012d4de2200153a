package lakehouse.storage

import java.io.FileNotFoundException
import java.nio.charset.StandardCharsets.UTF_8

import scala.jdk.CollectionConverters._

import io.delta.storage.HadoopFileSystemLogStore
import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FileStatus, Path}

/** Delta's log on S3: a commit is one PUT on condition that its number is free, so that no two writers get it.
  *
  * Each object has the id of the write that made it. A client sends a PUT again when it gets no answer. If the
  * first one had arrived, the second is refused, and the id tells that the commit there is the writer's own.
  */
class ConditionalLogStore(conf: Configuration) extends HadoopFileSystemLogStore(conf) {

  override def write(
      path: Path, actions: java.util.Iterator[String], overwrite: java.lang.Boolean, conf: Configuration): Unit = {
    val lines = actions.asScala.map(_ + "\n").mkString.getBytes(UTF_8)
    if (overwrite) Objects.replace(path, lines, conf) else Objects.create(path, lines, conf)
  }

  /** Lists from the named file on. A log may have a hundred thousand commits, and the last few are asked for. */
  override def listFrom(path: Path, conf: Configuration): java.util.Iterator[FileStatus] = {
    val found = Objects.namesFrom(path, conf)
    if (!found.hasNext && !path.getFileSystem(conf).exists(path.getParent))
      throw new FileNotFoundException(s"No such file or directory: ${path.getParent}")
    found.asJava
  }

  /** A PUT appears as a whole. */
  override def isPartialWriteVisible(path: Path, conf: Configuration): java.lang.Boolean = false
}
