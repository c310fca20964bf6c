"""Executes a program that the kernel kills when the starter dies, even by SIGKILL (Linux prctl(2)).

Run as a script: `python -I -S die_with_parent.py STARTER_PID PROGRAM [ARGUMENT...]`. It is a separate program because
Python code between fork and exec of a threaded process may deadlock.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>; kept across execve


def main() -> None:
    """Request SIGKILL on the death of the starter, check that the starter is alive, and execute the program."""
    starter_pid, program = int(sys.argv[1]), sys.argv[2]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != starter_pid:
        sys.exit("the starter has died already")
    os.execv(program, sys.argv[2:])


if __name__ == "__main__":
    main()
