"""Run a program that the kernel kills when its parent ends: die_with_parent.py PARENT_PID COMMAND….

This module runs as a script, by path, between the fork and the actual program. subprocess's `preexec_fn`
would instead run Python in a copy of the process. In that copy, no thread would ever release the locks that
other threads (Spark's gateway, Kafka clients) held at the fork. The signal setting survives exec. It is tied
to the *thread* that forked, so processes.py keeps that thread alive. The signal is SIGKILL, because a program
may ignore other signals and no parent remains to try again. Neither service loses acknowledged data, because
acknowledged writes are already in the kernel's page cache.

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
        if os.getppid() != parent:  # the parent ended before the request, so no signal will arrive
            sys.exit(1)
    os.execvp(command[0], command)  # noqa: S606 - replacing this process, without a shell, is the point


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
