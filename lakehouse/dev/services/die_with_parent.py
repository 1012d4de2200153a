"""Run a program so that the kernel kills it when its parent exits: die_with_parent.py PARENT_PID COMMAND….

This module runs as a script after the fork, and then replaces itself with the program. subprocess's
`preexec_fn` would run Python in the forked process, where locks that other threads (Spark's gateway, Kafka
clients) held at the fork are never released.

The kernel's setting survives exec. It is tied to the *thread* that forked, so processes.py keeps that thread
alive. The signal is SIGKILL, because a program can ignore other signals and no parent remains to try again.
Neither Kafka nor Redis loses acknowledged data, because it is already in the kernel's page cache.

Only Linux has this feature. Elsewhere, the program starts without it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # from <sys/prctl.h>


def main(parent: int, command: list[str]) -> None:
    """Request the signal, check that the parent still exists, and replace this process with the command."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != parent:  # the parent exited before the request, so no signal will arrive
            sys.exit(1)
    os.execvp(command[0], command)  # noqa: S606 - replacing this process, without a shell, is the point


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
