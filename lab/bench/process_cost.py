"""CPU time and memory of a process and its children, from /proc (proc(5))."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def cpu_s(pid: int) -> float:
    """CPU time (s), user and system, of a process and its living descendants, with a resolution of about 10 ms.

    On loopback the kernel processes a packet in the sender's context, so each process is charged for packets it sends.
    """
    return sum(map(own_cpu_s, _tree(pid)))


def own_cpu_s(pid: int) -> float:
    """CPU time (s) of a process without its descendants; as `cpu_s`."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def resident_bytes(pid: int) -> int:
    """Resident memory (bytes) of a process and its descendants; shared pages are counted once per process."""
    return sum(int(Path(f"/proc/{member}/statm").read_text().split()[1]) for member in _tree(pid)) * _PAGE_BYTES


def _tree(pid: int) -> Iterator[int]:
    yield pid
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            children = (thread / "children").read_text().split()
        except FileNotFoundError:
            continue  # the thread has ended since it was listed
        for child in children:
            yield from _tree(int(child))


def _stat(pid: int) -> list[str]:
    """Return the fields from the third on. The second is the program's name, which may contain any character."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
