"""The addresses of agents: from the settings if configured, else from the registrations in the store.

The last registrations are stored on disk, so that an agent that starts while the store is unavailable finds its peers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

import msgspec
import structlog

from adapters.store import keys
from adapters.store.codec import CodecError, decode
from adapters.store.config_store import Changed, ConfigStore, StoreError
from adapters.store.informer import Informer
from adapters.store.members import AgentMember
from penstock.wire.identity import BadIdentity, decode_certificate
from penstock.wire.peer_keys import Keyring
from penstock.wire.reserved_addresses import is_reserved
from regional_agent.background_tasks import cancel, keep_running
from regional_agent.config.last_known_good import StateFile
from regional_agent.upstream.address import Address

MAX_AGENTS_PER_REGION = 8
"""Maximum number of probed agents per region; a region may have more agents."""

SAVE_AFTER_S = 1.0
"""Time (s) for which changes are collected before a write to disk, since a starting fleet makes many changes."""

READ_TIMEOUT_S = 0.5
"""Timeout (s) of reading one registration."""

log = structlog.get_logger()


class StoredMembers(msgspec.Struct, frozen=True):
    """All registered agents, as stored on disk."""

    members: dict[str, AgentMember]


class AgentAddresses:
    """The known agents of every region, available without the store."""

    def __init__(
        self,
        store: ConfigStore,
        state_dir: Path,
        fixed: Mapping[str, Sequence[str]],
        rng: Random,
        keyring: Keyring,
        *,
        allow_plaintext: bool = False,
    ) -> None:
        """Create a directory; `start` fills it.

        Args:
            fixed: base URLs by region that replace the agents' registered addresses.
            keyring: records the certificates of the agents.
            allow_plaintext: whether http URLs are used. If not, agents registered with an http URL have no address.
        """
        self._store = store
        self._keyring = keyring
        self._allow_plaintext = allow_plaintext
        self._fixed = {region: self._usable(urls, region) for region, urls in fixed.items()}
        self._members: dict[str, AgentMember] = {}
        self._stored: dict[str, AgentMember] = {}
        """The registrations on disk at the start, used until the store has been listed."""
        self._file = StateFile(state_dir / "agents", StoredMembers)
        self._informer = Informer(store, keys.AGENTS, self._changed, rng=rng)
        self._unsaved = asyncio.Event()
        self._saver: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Load the registrations on disk, and start to follow the store."""
        stored = self._file.load()
        if stored is not None:
            self._stored = {key: member for key, member in stored.members.items() if _is_address(member.peer_address)}
            for member in self._stored.values():
                self._introduce(member)
        self._informer.start()
        self._saver = keep_running("agent addresses", self._keep_saving)

    async def stop(self) -> None:
        """Stop following the store; known registrations are kept."""
        await self._informer.stop()
        if self._saver is not None:
            await cancel([self._saver])

    def addresses(self, region: str) -> tuple[Address, ...]:
        """The addresses of a region's agents for other regions."""
        fixed = self._fixed.get(region)
        if fixed is not None:
            return fixed
        urls = [member.peer_address for member in self._known().values() if member.region == region]
        return self._usable(urls, region)[:MAX_AGENTS_PER_REGION]

    def names(self, region: str) -> tuple[str, ...]:
        """The names of a region's agents, sorted."""
        return tuple(sorted(member.name for member in self._known().values() if member.region == region))

    def count(self, region: str) -> int:
        """The number of a region's agents; of the agents of all regions for ""."""
        return sum(not region or member.region == region for member in self._known().values())

    def member(self, region: str, name: str) -> AgentMember | None:
        """The last known registration under a name; None if there is none."""
        return self._known().get(keys.agent(region, name))

    async def read_member(self, region: str, name: str) -> AgentMember | None:
        """The registration that the store has under a name; the last known one if the read fails or times out."""
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                item = await self._store.get(keys.agent(region, name))
            return decode(item.value, AgentMember) if item is not None else None
        except (TimeoutError, StoreError, CodecError):
            return self.member(region, name)

    async def rival_of(self, own: AgentMember) -> AgentMember | None:
        """Return an agent of the region with the address of `own` and another name, or with its name on another host;
        None if there is none.

        A balancer in front of several agents would send each connection to another one, whose keys differ. Of two
        agents with one name, the leader and other regions know the newer one alone; on one host, it takes over. While
        the store cannot be read, only registrations that this process read from it count: those on disk never expire,
        so that an agent with a new name would find its earlier one.
        """
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                listing = await self._store.list(keys.agents_of(own.region))
            others = [decode(item.value, AgentMember) for item in listing.items if item.value]
        except (TimeoutError, StoreError, CodecError):
            others = list(self._members.values())
        for other in others:
            if other.region != own.region:
                continue
            if other.name == own.name and urlsplit(other.peer_url).hostname != urlsplit(own.peer_url).hostname:
                return other
            if other.name != own.name and other.peer_address == own.peer_address:
                return other
        return None

    def may_have(self, region: str, name: str) -> bool:
        """Whether an agent is registered under this name, or no registrations could be read yet."""
        return not self.is_read or self.member(region, name) is not None

    @property
    def is_read(self) -> bool:
        """Whether the registrations have been read, from the store or from disk."""
        return self._informer.synced or bool(self._stored)

    def _known(self) -> dict[str, AgentMember]:
        return self._members if self._informer.synced else {**self._stored, **self._members}

    def _changed(self, change: Changed) -> None:
        self._unsaved.set()
        if change.now is None:
            self._members.pop(change.key, None)
            return
        try:
            member = decode(change.now.value, AgentMember)
            if change.key != keys.agent(member.region, member.name):
                raise CodecError(f"{member.region}/{member.name} is registered under the key of another agent")
            if not _is_address(member.peer_address):
                raise CodecError(f"{member.peer_address!r} is not an address of an agent")
        except CodecError as error:
            # The last valid registration remains in use, since the agent writes its registration again soon.
            log.warning("agent registration ignored", key=change.key, reason=str(error))
            return
        if not self._usable([member.peer_url], member.region):
            log.warning(
                "agent registered an unencrypted address, which is not used; set its ADVERTISE_PEER_URL to https",
                region=member.region,
                agent=member.name,
                url=member.peer_url,
            )
        self._members[change.key] = member
        self._introduce(member)

    def _usable(self, urls: Iterable[str], region: str) -> tuple[Address, ...]:
        addresses = (Address.parse(url, region) for url in urls)
        return tuple(address for address in addresses if address.tls or self._allow_plaintext)

    def _introduce(self, member: AgentMember) -> None:
        try:
            self._keyring.introduce(decode_certificate(member.certificate), time.time())
        except BadIdentity as error:
            # The probes of the agent also contain its certificate.
            log.warning("certificate ignored", region=member.region, agent=member.name, reason=str(error))

    async def _keep_saving(self) -> None:
        while True:
            await self._unsaved.wait()
            await asyncio.sleep(SAVE_AFTER_S)
            self._unsaved.clear()
            if self._members:
                # An empty list is not written: the store may have lost its data, and the file may be valid.
                await self._file.save(StoredMembers(dict(self._members)))


def _is_address(url: str) -> bool:
    try:
        return not is_reserved(Address.parse(url).host)
    except ValueError:
        return False


def rivalry_of(own: AgentMember, other: AgentMember, prefix: str) -> str:
    """Return why `own` cannot run beside its rival, and the remedy. `prefix` is that of the names of settings."""
    if other.name == own.name:
        return (
            f"{prefix}NAME: an agent {other.name} of the region runs on another host, at {other.peer_address}, and"
            f" this one at {own.peer_address}; stop that one, or give this one a name and a certificate of its own"
        )
    return (
        f"{prefix}ADVERTISE_PEER_URL: agent {other.name} of the region has the same address {own.peer_address}; give"
        f" each agent an address of its own, or a {prefix}ADVERTISE_PEER_SERVER_NAME by which a gateway selects it"
    )
