"""Where agents are reached: from the settings where they say, else from the registrations in the store.

What the store said last is remembered on disk, so that an agent which starts while the store is away finds its peers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

import msgspec
import structlog

from adapters.store import keys
from adapters.store.codec import CodecError, decode
from adapters.store.config_store import Changed, ConfigStore
from adapters.store.informer import Informer
from adapters.store.members import AgentMember
from regional_agent.background_tasks import cancel, keep_running
from regional_agent.config.last_known_good import LastKnownGood
from regional_agent.upstream.address import Address

MAX_AGENTS_PER_REGION = 8
"""Agents of one region that are probed; more are served through them all the same."""

SAVE_AFTER_S = 1.0
"""Changes within this long (s) are written to disk together: a planet that starts makes many."""

log = structlog.get_logger()


class Registered(msgspec.Struct, frozen=True):
    """Every agent that was registered, as it is kept on disk."""

    members: dict[str, AgentMember]


class AgentDirectory:
    """Every region's agents, as far as they are known; the store's word survives the store."""

    def __init__(self, store: ConfigStore, state_dir: Path, fixed: Mapping[str, Sequence[str]], rng: Random) -> None:
        """`fixed` are base URLs by region that replace what agents say of themselves."""
        self._fixed = {region: tuple(Address.parse(url) for url in urls) for region, urls in fixed.items()}
        self._members: dict[str, AgentMember] = {}
        self._remembered: dict[str, AgentMember] = {}
        """Until the store has been listed."""
        self._memory = LastKnownGood(state_dir / "agents", Registered)
        self._informer = Informer(store, keys.AGENTS, self._changed, rng=rng)
        self._unsaved = asyncio.Event()
        self._saver: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Take what the disk remembers, and begin to follow registrations."""
        remembered = self._memory.load()
        if remembered is not None:
            self._remembered = {
                key: member for key, member in remembered.members.items() if _is_address(member.peer_url)
            }
        self._informer.start()
        self._saver = keep_running("agent directory", self._keep_saving)

    async def stop(self) -> None:
        """Stop following; what is known stays."""
        await self._informer.stop()
        if self._saver is not None:
            await cancel([self._saver])

    def addresses(self, region: str) -> tuple[Address, ...]:
        """Where a region's agents are reached by other regions."""
        fixed = self._fixed.get(region)
        if fixed is not None:
            return fixed
        urls = (member.peer_url for member in self._known().values() if member.region == region)
        return tuple(Address.parse(url) for url, _ in zip(urls, range(MAX_AGENTS_PER_REGION), strict=False))

    def names(self, region: str) -> tuple[str, ...]:
        """A region's agents by name, sorted."""
        return tuple(sorted(member.name for member in self._known().values() if member.region == region))

    def member(self, region: str, name: str) -> AgentMember | None:
        """Who was registered last under this name."""
        return self._known().get(keys.agent(region, name))

    def _known(self) -> dict[str, AgentMember]:
        return self._members if self._informer.synced else {**self._remembered, **self._members}

    def _changed(self, change: Changed) -> None:
        self._unsaved.set()
        if change.now is None:
            self._members.pop(change.key, None)
            return
        try:
            member = decode(change.now.value, AgentMember)
            if change.key != keys.agent(member.region, member.name):
                raise CodecError(f"{member.region}/{member.name} is registered under another's key")
            if not _is_address(member.peer_url):
                raise CodecError(f"{member.peer_url!r} is no address")
        except CodecError as error:
            log.warning("agent registration ignored", key=change.key, reason=str(error))
            self._members.pop(change.key, None)
            return
        self._members[change.key] = member

    async def _keep_saving(self) -> None:
        while True:
            await self._unsaved.wait()
            await asyncio.sleep(SAVE_AFTER_S)
            self._unsaved.clear()
            if self._members:
                # A store that was wiped says nothing of where agents are; what it said before may still be true.
                await self._memory.save(Registered(dict(self._members)))


def _is_address(url: str) -> bool:
    try:
        Address.parse(url)
    except ValueError:
        return False
    return True
