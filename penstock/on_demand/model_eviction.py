"""Which models leave a memory so that another one fits: the least recently used ones, and no more than needed.

A model in use never leaves, and one that was used or loaded a moment ago stays for the time that policy states. So
loads that alternate change a memory at most once in that time, and loads that stay change it once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from math import inf
from typing import NamedTuple

from penstock.policy.policy import BYTES_PER_GB

IN_USE = -inf
"""The idle time of a model while requests for it run or wait."""


class HeldModel(NamedTuple):
    """A model in a memory."""

    endpoint: str
    model: str
    size_bytes: float
    idle_s: float
    """Time (s) since its last request or its load; IN_USE while requests run or wait."""
    leaves_after_s: float
    """Idle time (s) after which it may leave; infinite if it stays."""


class Room(NamedTuple):
    """How a model finds room in a memory."""

    leaving: tuple[HeldModel, ...] = ()
    """The models that leave before, least recently used first."""
    in_s: float = 0.0
    """Time (s) until all of them may leave if none is used; infinite if there will be no room."""
    problem: str = ""
    """Why there is no room now; empty if there is."""


def find_room(needed_bytes: float, total_bytes: float, held: Iterable[HeldModel], spare: Mapping[str, int]) -> Room:
    """Find room for a model.

    Args:
        total_bytes: size of the memory.
        held: what is in the memory; models that load or leave are held too, and stay.
        spare: by model, the number of its copies in the region that are not needed, and not the last ones. Models
            without an entry stay.
    """
    known = list(held)
    free_bytes = total_bytes - sum(each.size_bytes for each in known)
    if needed_bytes <= free_bytes:
        return Room()
    numbers = f"it needs {_gb(needed_bytes)} of {_gb(total_bytes)} GB"
    if needed_bytes > total_bytes:
        return Room((), inf, numbers)
    idle = [each for each in known if each.idle_s >= 0.0 and each.leaves_after_s < inf and each.size_bytes > 0.0]
    idle.sort(key=lambda each: (-each.idle_s, each.endpoint, each.model))
    due = [each for each in idle if each.idle_s >= each.leaves_after_s]
    for candidates in (due, idle):
        leaving = _least_recently_used(needed_bytes - free_bytes, candidates, spare)
        if leaving:
            in_s = max(0.0, *(each.leaves_after_s - each.idle_s for each in leaving))
            names = ", ".join(f"{each.model} of {each.endpoint}" for each in leaving)
            return Room(leaving, in_s, f"{numbers}, and {names} may leave in {in_s:.0f} s" if in_s else "")
    free = f"{_gb(max(0.0, free_bytes))} are free"
    return Room((), inf, f"{numbers}: {free}, and the others are in use, the last copies, or do not leave")


def _least_recently_used(
    wanted_bytes: float, candidates: list[HeldModel], spare: Mapping[str, int]
) -> tuple[HeldModel, ...]:
    """Return the models that leave, of candidates in order; none if all together are too small."""
    leaving: list[HeldModel] = []
    taken: Counter[str] = Counter()
    found_bytes = 0.0
    for each in candidates:
        if found_bytes >= wanted_bytes:
            break
        if taken[each.model] < spare.get(each.model, 0):
            taken[each.model] += 1
            leaving.append(each)
            found_bytes += each.size_bytes
    if found_bytes < wanted_bytes:
        return ()
    for each in reversed(leaving[:]):
        if found_bytes - each.size_bytes >= wanted_bytes:
            # What left later makes enough room alone.
            leaving.remove(each)
            found_bytes -= each.size_bytes
    return tuple(leaving)


def _gb(size_bytes: float) -> str:
    return f"{size_bytes / BYTES_PER_GB:.3g}"
