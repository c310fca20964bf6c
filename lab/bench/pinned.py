"""Becomes another program that may only run on the cores it is given (Linux sched_setaffinity(2)).

Run as a script: `python -I -S pinned.py CORE[,CORE...] PROGRAM [ARGUMENT...]`. The cores are set before the program
starts, because many count them once at their start to decide how many threads they need.
"""

import os
import sys


def main() -> None:
    """Keep to the cores and become the program."""
    os.sched_setaffinity(0, {int(core) for core in sys.argv[1].split(",")})
    os.execvp(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
