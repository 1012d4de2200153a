package lakehouse.storage

import java.nio.file.Files
import java.nio.file.attribute.PosixFilePermissions

import org.apache.hadoop.fs.{FileStatus, LocalFileSystem, Path, RawLocalFileSystem}
import org.apache.hadoop.fs.permission.FsPermission

/** Files of this machine's disk, without the processes that Hadoop starts where it has no native library.
  *
  * It starts `chmod` for each new file, and `readlink` four times for each rename: 24 processes for a commit of two
  * files.
  */
class LocalFiles extends RawLocalFileSystem {

  /** Changes permissions that are others than these. A new file mostly has them already. */
  override def setPermission(path: Path, permission: FsPermission): Unit = {
    val has = PosixFilePermissions.toString(Files.getPosixFilePermissions(pathToFile(path).toPath))
    if (has != permission.toString) super.setPermission(path, permission)
  }

  /** Hadoop asks `readlink` for a URI, which is never the name of a link, and then takes this. */
  override def getFileLinkStatus(path: Path): FileStatus = getFileStatus(path)
}

/** The same with Hadoop's checksums beside the files: `fs.file.impl`. */
class LocalSystem extends LocalFileSystem(new LocalFiles)
