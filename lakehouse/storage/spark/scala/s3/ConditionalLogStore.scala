package lakehouse.storage

import java.io.FileNotFoundException
import java.nio.charset.StandardCharsets.UTF_8

import scala.jdk.CollectionConverters._

import io.delta.storage.HadoopFileSystemLogStore
import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FileStatus, Path}

/** Delta's log on S3: a commit is one conditional PUT, so that two writers cannot write the same version.
  *
  * Each object stores the id of the write that created it. A client repeats a PUT that gets no answer. If the first PUT
  * succeeded, the second is refused, and the id shows that the existing commit is the writer's own.
  */
class ConditionalLogStore(conf: Configuration) extends HadoopFileSystemLogStore(conf) {

  override def write(
      path: Path, actions: java.util.Iterator[String], overwrite: java.lang.Boolean, conf: Configuration): Unit = {
    val lines = actions.asScala.map(_ + "\n").mkString.getBytes(UTF_8)
    if (overwrite) Objects.replace(path, lines, conf) else Objects.create(path, lines, conf)
  }

  /** Lists from the named file on. A log may have a hundred thousand commits, but only the last few are needed. */
  override def listFrom(path: Path, conf: Configuration): java.util.Iterator[FileStatus] = {
    val found = Objects.namesFrom(path, conf)
    if (!found.hasNext && !path.getFileSystem(conf).exists(path.getParent))
      throw new FileNotFoundException(s"No such file or directory: ${path.getParent}")
    found.asJava
  }

  /** Returns false, because a PUT is atomic. */
  override def isPartialWriteVisible(path: Path, conf: Configuration): java.lang.Boolean = false
}
