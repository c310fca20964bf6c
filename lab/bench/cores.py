"""Divides the cores of the machine between a router under test and all other processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from lab.bench import pinned


class TooFewCores(Exception):
    """The machine has no separate core for a router. The message is one line."""


class Cores(NamedTuple):
    """A division of the cores of the machine."""

    router: int
    load: tuple[int, ...]
    """For the load generator, the backends, and the servers that Penstock depends on."""


def divide_cores() -> Cores:
    """Assign the first core that this process may use to the router, and the other cores to the load.

    Raises:
        TooFewCores: only one core is available.
    """
    available = sorted(os.sched_getaffinity(0))
    if len(available) < 2:
        raise TooFewCores("only one core is available; a router is measured on a separate core, so two are needed")
    return Cores(available[0], tuple(available[1:]))


def keep_to(cores: Iterable[int]) -> None:
    """Restrict this process and its future children to `cores`."""
    os.sched_setaffinity(0, set(cores))


def pinned_to(core: int, argv: Sequence[str]) -> list[str]:
    """The command line that runs `argv` on `core` only."""
    return [sys.executable, "-I", "-S", pinned.__file__, str(core), *argv]
