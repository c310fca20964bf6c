"""Where agents are reached: from the settings where they say, else from the registrations in the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

import structlog

from control_plane.client import keys
from control_plane.client.codec import CodecError, decode
from control_plane.client.informer import Informer
from control_plane.client.members import AgentMember
from control_plane.client.store import Changed, ConfigStore
from regional_agent.carry.upstream import Address

MOST_AGENTS_PER_REGION = 8
"""Agents of one region that are probed; more are served through them all the same."""

log = structlog.get_logger()


class AgentDirectory:
    """Every region's agents, as far as they are known; the store's word survives the store."""

    def __init__(self, store: ConfigStore, fixed: Mapping[str, Sequence[str]], rng: Random) -> None:
        """`fixed` are base URLs by region that replace what agents say of themselves."""
        self._fixed = {region: tuple(Address.parse(url) for url in urls) for region, urls in fixed.items()}
        self._members: dict[str, AgentMember] = {}
        self._informer = Informer(store, keys.AGENTS, self._changed, rng=rng)

    def start(self) -> None:
        """Begin to follow registrations."""
        self._informer.start()

    async def stop(self) -> None:
        """Stop following; what is known stays."""
        await self._informer.stop()

    def addresses(self, region: str) -> tuple[Address, ...]:
        """Where a region's agents are reached by other regions."""
        fixed = self._fixed.get(region)
        if fixed is not None:
            return fixed
        found: list[Address] = []
        for member in self._members.values():
            if member.region == region and len(found) < MOST_AGENTS_PER_REGION:
                found.append(Address.parse(member.peer_url))
        return tuple(found)

    def names(self, region: str) -> tuple[str, ...]:
        """A region's agents by name, sorted."""
        return tuple(sorted(member.name for member in self._members.values() if member.region == region))

    def _changed(self, change: Changed) -> None:
        if change.now is None:
            self._members.pop(change.key, None)
            return
        try:
            member = decode(change.now.value, AgentMember)
            Address.parse(member.peer_url)
        except (CodecError, ValueError) as error:
            log.warning("agent registration ignored", key=change.key, reason=str(error))
            return
        if change.key == keys.agent(member.region, member.name):
            self._members[change.key] = member
