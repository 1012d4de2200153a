package lakehouse.storage

import java.nio.file.Files
import java.nio.file.attribute.PosixFilePermissions

import org.apache.hadoop.fs.{FileStatus, LocalFileSystem, Path, RawLocalFileSystem}
import org.apache.hadoop.fs.permission.FsPermission

/** Local files, without the processes that Hadoop starts if it has no native library.
  *
  * Hadoop starts `chmod` for each new file, and `readlink` four times for each rename: 24 processes for a commit of two
  * files.
  */
class LocalFiles extends RawLocalFileSystem {

  /** Sets permissions only if they differ. A new file usually has the right ones already. */
  override def setPermission(path: Path, permission: FsPermission): Unit = {
    val has = PosixFilePermissions.toString(Files.getPosixFilePermissions(pathToFile(path).toPath))
    if (has != permission.toString) super.setPermission(path, permission)
  }

  /** Hadoop calls `readlink` with a URI, which never names a link, and then falls back to this status. */
  override def getFileLinkStatus(path: Path): FileStatus = getFileStatus(path)
}

/** `LocalFiles` with Hadoop's checksums next to the files: `fs.file.impl`. */
class LocalSystem extends LocalFileSystem(new LocalFiles)
