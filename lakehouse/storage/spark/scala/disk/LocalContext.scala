package lakehouse.storage

import java.io.IOException
import java.net.URI
import java.nio.file

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{ChecksumFs, DelegateToFileSystem, FileAlreadyExistsException, Path}

/** Local files for Delta's log, with Hadoop's checksums: `fs.AbstractFileSystem.file.impl`. */
class LocalContext(uri: URI, conf: Configuration) extends ChecksumFs(new RawLocalContext(conf))

/** Local files for Delta's log, without checksums. */
class RawLocalContext(conf: Configuration)
    extends DelegateToFileSystem(URI.create("file:///"), new LocalFiles, conf, "file", false) {

  override def getUriDefaultPort: Int = -1

  /** Accepts any name, like Hadoop's own class. */
  override def isValidName(name: String): Boolean = true

  /** Renames a file; throws FileAlreadyExistsException if the target exists and must not be overwritten.
    *
    * Hadoop checks whether the name is free, and then renames. This would overwrite a file that another process creates
    * in between, so one of two commits of the same version would be lost. A hard link fails if the target exists.
    */
  override def renameInternal(from: Path, to: Path, overwrite: Boolean): Unit =
    if (overwrite || !link(from, to)) super.renameInternal(from, to, overwrite)

  /** Renames a file with a hard link; returns whether the file system supports that. */
  private def link(from: Path, to: Path): Boolean = {
    val (source, target) = (path(from), path(to))
    if (!file.Files.isRegularFile(source)) false
    else
      try {
        file.Files.createLink(target, source)
        file.Files.delete(source)
        true
      } catch {
        case _: file.FileAlreadyExistsException => throw new FileAlreadyExistsException(s"$to exists")
        case _: UnsupportedOperationException | _: IOException => false
      }
  }

  private def path(of: Path): file.Path = fsImpl.asInstanceOf[LocalFiles].pathToFile(of).toPath
}
