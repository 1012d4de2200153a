"""Check that no other user can change a file or directory that determines which code runs.

A path is the user's own if the user or root owns it and nobody else can write to it. A group's write
permission is harmless if the owner is its only member, as in the per-user groups of many systems. Any write
permission is harmless on a file system that is mounted read-only.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
import sys
from pathlib import Path

_ROOT = 0
_ACL = "system.posix_acl_access"


class ForeignError(OSError):
    """Another user could change a file. The message names the user or group, and the path."""


def read_own(path: Path) -> bytes:
    """Return the content of a file, provided that no other user can change the file.

    Raises ForeignError if another user can change the file or its directory. The directory can be sticky like
    /tmp, because users cannot replace each other's files there. Raises OSError if the file is missing,
    unreadable or not regular.
    """
    # Without O_NONBLOCK, opening a pipe would block until it has a writer. The checks use the open
    # descriptor.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise OSError("it is not a regular file")
        reason = _reason(descriptor, state)
        if reason is None and path.is_symlink():
            reason = _of_owner(path.lstat())
        for directory in dict.fromkeys((path.absolute().parent, path.resolve().parent)):
            if reason is None and (other := foreign(directory, sticky=True)) is not None:
                reason = f"others can change its directory {directory}: {other}"
        if reason is not None:
            raise ForeignError(reason)
        return file.read()


def foreign(path: Path, *, sticky: bool = False) -> str | None:
    """Return the reason another user could change a file or directory, or None if no other user can.

    With `sticky`, a sticky directory is accepted, even if others can write to it.
    """
    return _reason(path, path.stat(), sticky=sticky)


def _reason(where: Path | int, state: os.stat_result, *, sticky: bool = False) -> str | None:
    if (reason := _of_owner(state)) is not None:
        return reason
    if (sticky and state.st_mode & stat.S_ISVTX) or os.statvfs(where).f_flag & os.ST_RDONLY:
        return None
    mode = f"mode {stat.S_IMODE(state.st_mode):04o}"
    if state.st_mode & stat.S_IWOTH:
        return f"anyone can write to it ({mode})"
    if state.st_mode & stat.S_IWGRP and (_has_acl(where) or not _is_private(state)):
        return f"group {_group(state.st_gid)} can write to it ({mode})"
    return None


def _of_owner(state: os.stat_result) -> str | None:
    mine = os.geteuid()
    if state.st_uid in {mine, _ROOT}:
        return None
    return f"the owner is {_user(state.st_uid)}, but this process runs as {_user(mine)}"


def _is_private(state: os.stat_result) -> bool:
    """Return whether a file's group is named after its owner and has no other members."""
    try:
        owner, group = pwd.getpwuid(state.st_uid).pw_name, grp.getgrgid(state.st_gid)
    except KeyError:
        return False
    return group.gr_name == owner and set(group.gr_mem) <= {owner}


def _has_acl(where: Path | int) -> bool:
    """Return whether a file has an ACL. If so, the file's group mode bits are only an upper bound."""
    if sys.platform != "linux":  # on other systems, Python cannot read ACLs
        return False
    try:
        os.getxattr(where, _ACL)
    except OSError:
        return False
    return True


def _user(number: int) -> str:
    try:
        return f"{pwd.getpwuid(number).pw_name} ({number})"
    except KeyError:
        return f"user {number}"


def _group(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)
