"""The leases of registered endpoints, and their storage across restarts of the agent.

Stored leases contain their expiry as wall clock time, because the monotonic clock restarts with the machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from regional_agent.config.last_known_good import StateFile
from regional_agent.endpoints.endpoint_fields import EndpointSpec

FILE = "registered"
"""Name of the file in the agent's state directory."""


class Lease(msgspec.Struct):
    """The lease of one registered endpoint."""

    spec: EndpointSpec
    ttl_s: float
    expires_at: float
    """Expiry by the monotonic clock, in seconds."""


class StoredLease(msgspec.Struct, frozen=True):
    """A lease as stored on disk."""

    spec: EndpointSpec
    ttl_s: float
    expires_unix_s: float


class StoredLeases(msgspec.Struct, frozen=True):
    """The content of the file."""

    leases: tuple[StoredLease, ...]


class LeaseFile:
    """Loads and saves the leases."""

    def __init__(self, state_dir: Path) -> None:
        """Use the file in `state_dir`; neither reads nor writes it."""
        self._file = StateFile(state_dir / FILE, StoredLeases)

    def load(self, now: float, unix_s: float) -> dict[str, Lease]:
        """Load the leases that have not expired, by endpoint name.

        No lease lasts longer than its time to live, even if the wall clock was set back.

        Args:
            now: current time (s) by the monotonic clock.
            unix_s: current Unix time, in seconds.
        """
        stored = self._file.load()
        leases = {}
        for lease in stored.leases if stored is not None else ():
            left_s = min(lease.ttl_s, lease.expires_unix_s - unix_s)
            # An earlier build could learn the slots, and stored none for such an endpoint.
            if left_s > 0.0 and lease.spec.slots:
                leases[lease.spec.name] = Lease(lease.spec, lease.ttl_s, now + left_s)
        return leases

    async def save(self, leases: Mapping[str, Lease], now: float, unix_s: float) -> None:
        """Replace the stored leases; for `now` and `unix_s` see `load`."""
        stored = [StoredLease(lease.spec, lease.ttl_s, unix_s + lease.expires_at - now) for lease in leases.values()]
        await self._file.save(StoredLeases(tuple(stored)))
