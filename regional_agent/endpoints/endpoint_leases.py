"""Leases of endpoints that registered themselves: how long each stays, and what an agent that restarts goes on with.

They are kept on the agent's disk with their ends by the wall clock, for the monotonic one begins anew with the machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from regional_agent.config.last_known_good import LastKnownGood
from regional_agent.endpoints.endpoint_fields import EndpointSpec

FILE = "registered"
"""In the agent's state directory."""


class Lease(msgspec.Struct):
    """How long a registered endpoint stays without another word of it."""

    spec: EndpointSpec
    ttl_s: float
    until: float
    """When it runs out, in seconds of the monotonic clock."""


class Kept(msgspec.Struct, frozen=True):
    """One of them, as it is on disk."""

    spec: EndpointSpec
    ttl_s: float
    until_unix_s: float


class KeptLeases(msgspec.Struct, frozen=True):
    """All of them."""

    leases: tuple[Kept, ...]


class LeaseMemory:
    """The file."""

    def __init__(self, state_dir: Path) -> None:
        """Nothing is read or written yet."""
        self._file = LastKnownGood(state_dir / FILE, KeptLeases)

    def load(self, now: float, unix_s: float) -> dict[str, Lease]:
        """Those that have not run out, by name; `now` and `unix_s` are the same moment by both clocks.

        None lasts longer than it was given, whatever was done to the wall clock.
        """
        kept = self._file.load()
        left_s = {one: min(one.ttl_s, one.until_unix_s - unix_s) for one in kept.leases} if kept is not None else {}
        return {one.spec.name: Lease(one.spec, one.ttl_s, now + left) for one, left in left_s.items() if left > 0.0}

    async def save(self, leases: Mapping[str, Lease], now: float, unix_s: float) -> None:
        """Keep these instead."""
        kept = [Kept(one.spec, one.ttl_s, unix_s + one.until - now) for one in leases.values()]
        await self._file.save(KeptLeases(tuple(kept)))
