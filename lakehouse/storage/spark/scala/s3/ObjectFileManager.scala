package lakehouse.storage

import java.io.ByteArrayOutputStream

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path
import org.apache.hadoop.fs.s3a.S3AFileSystem
import org.apache.spark.sql.execution.streaming.checkpointing.{CheckpointFileManager, FileSystemBasedCheckpointFileManager}

/** Writes small files atomically, such as the checksum that Delta writes next to each commit.
  *
  * By default, such files are written under another name and renamed. On S3, this takes twenty requests, because a
  * rename is a copy. A PUT is atomic by itself.
  */
class ObjectFileManager(path: Path, conf: Configuration) extends FileSystemBasedCheckpointFileManager(path, conf) {

  private val isOnS3 = fs.isInstanceOf[S3AFileSystem]

  /** Does nothing on S3, which has no directories. */
  override def mkdirs(path: Path): Unit = if (!isOnS3) super.mkdirs(path)

  override def createAtomic(
      path: Path, overwriteIfPossible: Boolean): CheckpointFileManager.CancellableFSDataOutputStream =
    if (isOnS3) new Kept(path, overwriteIfPossible, new ByteArrayOutputStream)
    else super.createAtomic(path, overwriteIfPossible)

  /** Buffers the content, and creates the object when it is closed. */
  private class Kept(path: Path, overwrite: Boolean, content: ByteArrayOutputStream)
      extends CheckpointFileManager.CancellableFSDataOutputStream(content) {
    private var isOver = false

    override def cancel(): Unit = isOver = true

    override def close(): Unit = if (!isOver) {
      isOver = true
      if (overwrite) Objects.replace(path, content.toByteArray, conf)
      else Objects.create(path, content.toByteArray, conf)
    }
  }
}
