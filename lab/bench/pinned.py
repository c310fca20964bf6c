"""Executes another program on given cores (Linux sched_setaffinity(2)).

Run as a script: `python -I -S pinned.py CORE[,CORE...] PROGRAM [ARGUMENT...]`. The affinity is set before the program
starts, because many programs size their thread pools at the start.
"""

import os
import sys


def main() -> None:
    """Set the affinity and execute the program."""
    os.sched_setaffinity(0, {int(core) for core in sys.argv[1].split(",")})
    os.execvp(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
