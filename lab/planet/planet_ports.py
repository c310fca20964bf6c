"""A block of ports for a planet, chosen before the start, because the processes are configured with each other's.

Ports that the kernel hands out to outgoing connections are avoided: one of those may be in use at the moment that a
server wants it, and a killed region has to come back where it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from lab.servers.errors import PortTaken
from lab.servers.free_ports import is_free

LOWEST, HIGHEST = 10_000, 32_000
"""Below Linux's default ip_local_port_range, which begins at 32768."""

TRIES = 200


def assign_ports(names: Sequence[str], base: int | None, rng: Random) -> dict[str, int]:
    """A port for each name, one after the other.

    Args:
        names: what needs a port; the order is kept, so the same planet at the same base is the same everywhere.
        base: the first port; None looks for a free block.
        rng: where to look.

    Raises:
        PortTaken: a port of the block that was asked for is in use, or no block is free.
    """
    if base is not None:
        if base + len(names) > 65_536:
            raise PortTaken(f"port {base}: a planet takes {len(names)} ports from there, more than there are; go lower")
        for name, port in zip(names, range(base, base + len(names)), strict=True):
            if not is_free(port):
                raise PortTaken(f"port {port} (for {name}) is taken by another process; choose another --port-base")
        return {name: base + index for index, name in enumerate(names)}
    for _ in range(TRIES):
        first = rng.randrange(LOWEST, HIGHEST - len(names))
        if all(map(is_free, range(first, first + len(names)))):
            return {name: first + index for index, name in enumerate(names)}
    raise PortTaken(f"no {len(names)} free ports in a row between {LOWEST} and {HIGHEST}; stop what uses them")
