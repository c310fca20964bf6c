"""Assigns a block of ports to a fleet before its start, since each process is configured with the ports of others.

The block is outside the kernel's range for outgoing connections. A connection could otherwise occupy the port of a
server, and a restarted region needs its previous ports.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from adapters.servers.errors import PortTaken
from adapters.servers.free_ports import is_free

LOWEST, HIGHEST = 10_000, 32_000
"""Range of ports below Linux's default ip_local_port_range, which begins at 32768."""

TRIES = 200


def assign_ports(names: Sequence[str], base: int | None, rng: Random) -> dict[str, int]:
    """Assign successive ports to `names`.

    Args:
        names: names of the ports, in the order of assignment.
        base: the first port; None searches for a free block.
        rng: selects the candidate blocks.

    Raises:
        PortTaken: a port of the block from `base` is in use, or no free block was found.
    """
    if base is not None:
        if base + len(names) > 65_536:
            raise PortTaken(f"port {base}: a fleet needs {len(names)} successive ports; give a lower --port-base")
        for name, port in zip(names, range(base, base + len(names)), strict=True):
            if not is_free(port):
                raise PortTaken(f"port {port} (for {name}) is in use by another process; choose another --port-base")
        return {name: base + index for index, name in enumerate(names)}
    for _ in range(TRIES):
        first = rng.randrange(LOWEST, HIGHEST - len(names))
        if all(map(is_free, range(first, first + len(names)))):
            return {name: first + index for index, name in enumerate(names)}
    raise PortTaken(f"no {len(names)} successive free ports between {LOWEST} and {HIGHEST}; stop other servers")
