package lakehouse.storage

import java.io.IOException
import java.net.URI
import java.nio.file

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{ChecksumFs, DelegateToFileSystem, FileAlreadyExistsException, Path}

/** Files of this machine's disk as Delta writes its log, with Hadoop's checksums: `fs.AbstractFileSystem.file.impl`. */
class LocalContext(uri: URI, conf: Configuration) extends ChecksumFs(new RawLocalContext(conf))

/** The same without checksums. */
class RawLocalContext(conf: Configuration)
    extends DelegateToFileSystem(URI.create("file:///"), new LocalFiles, conf, "file", false) {

  override def getUriDefaultPort: Int = -1

  /** Any name, as for Hadoop's own class. */
  override def isValidName(name: String): Boolean = true

  /** Renames a file; FileAlreadyExistsException if the name is taken and must not be.
    *
    * Hadoop looks whether the name is free, and then renames, which replaces what another process has put there
    * meanwhile: of two commits of one version, one would be lost. A second link to the file is refused by the disk.
    */
  override def renameInternal(from: Path, to: Path, overwrite: Boolean): Unit =
    if (overwrite || !link(from, to)) super.renameInternal(from, to, overwrite)

  /** Renames a file by a link; tells whether the disk can do that. */
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
