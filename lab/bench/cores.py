"""Which core a router under test has for itself, and which are left for the load and everything else."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from lab.bench import pinned


class TooFewCores(Exception):
    """There are too few cores for one per router; the message is one line."""


class Cores(NamedTuple):
    """A division of this machine."""

    router: int
    load: tuple[int, ...]
    """Load generator, backends, and the servers that Penstock leans on."""


def divide_cores() -> Cores:
    """The first core that this process may use for the router, the others for the load.

    Raises:
        TooFewCores: there is only one.
    """
    available = sorted(os.sched_getaffinity(0))
    if len(available) < 2:
        raise TooFewCores("one core is all there is; a router is measured on a core of its own, so two are needed")
    return Cores(available[0], tuple(available[1:]))


def keep_to(cores: Iterable[int]) -> None:
    """Restrict this process and its future children to these cores."""
    os.sched_setaffinity(0, set(cores))


def pinned_to(core: int, argv: Sequence[str]) -> list[str]:
    """The command line that runs `argv` on that core only."""
    return [sys.executable, "-I", "-S", pinned.__file__, str(core), *argv]
