"""Finds the leading control plane, and sends it signed messages.

The leader is the one that the store names. An agent without access to the store finds it by its reports: each control
plane accepts them, and names the leader in the receipt.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import msgspec
import structlog

from adapters.loopback import is_loopback
from adapters.store import keys
from adapters.store.codec import CodecError, decode
from adapters.store.config_store import Changed, ConfigStore
from adapters.store.informer import Informer
from adapters.store.members import Member
from penstock.wire import identity, signed_report
from penstock.wire.identity import BadIdentity, ProcessRole, decode_certificate
from penstock.wire.peer_keys import Keyring, PeerKeys, Purpose
from penstock.wire.reserved_addresses import is_reserved
from regional_agent.upstream.address import Address
from regional_agent.upstream.http_fetch import FetchRequest, fetch
from regional_agent.upstream.upstream_pool import UpstreamPool
from regional_agent.upstream.upstream_sink import UpstreamError

CERTIFICATE_TIMEOUT_S = 1.0
"""Timeout (s) of fetching the certificate of a control plane."""

log = structlog.get_logger()


class Receipt(msgspec.Struct):
    """The response to a report; see control_plane/planning/report_intake.py."""

    leading: bool
    leader: str | None = None


class ControlPlanes(msgspec.Struct, frozen=True):
    """The control planes of the fleet, as the agent is configured."""

    urls: Sequence[str]
    """Base URLs of some control planes."""
    allow_plaintext: bool = False
    """Whether reports are sent to leaders with http URLs on other machines."""


class NotDelivered(Exception):
    """A control plane did not accept a message."""


class Message(NamedTuple):
    """A message to a control plane."""

    path: str
    purpose: Purpose
    body: bytes
    """MessagePack."""


class Answer(NamedTuple):
    """The answer of a control plane that accepted a message."""

    body: bytes
    peer_keys: PeerKeys
    """The keys shared with the control plane."""


_receipts = msgspec.json.Decoder(Receipt)


class LeaderLink:
    """The way to the leader that the store or a receipt names; if unknown, to a random control plane."""

    def __init__(
        self,
        store: ConfigStore,
        control_planes: ControlPlanes,
        connections: UpstreamPool,
        keyring: Keyring,
        rng: Random,
    ) -> None:
        """Create a link that knows no leader before `start`.

        Args:
            store: holds the key that names the leader.
            control_planes: those that receive reports while the leader is unknown.
            connections: pool of upstream connections.
            keyring: signs the messages.
            rng: chooses among control planes while the leader is unknown.
        """
        self._allow_plaintext = control_planes.allow_plaintext
        self._bootstrap = [Address.parse(url) for url in control_planes.urls]
        self._connections = connections
        self._keyring = keyring
        self._by_address: dict[Address, PeerKeys] = {}
        """The keys shared with the control planes whose certificates were fetched; removed when a message fails."""
        self._rng = rng
        self.leader: Address | None = None
        """The leader; None if unknown."""
        self._elected_leader: Address | None = None
        """The leader by the last value read from the store, which may be stale."""
        self._informer = Informer(store, keys.LEADER, self._elected, rng=rng)

    def start(self) -> None:
        """Follow the store's leader key."""
        self._informer.start()

    async def stop(self) -> None:
        """Stop following the store."""
        await self._informer.stop()

    def target(self) -> Address | None:
        """Return the leader; if unknown, a random address of the bootstrap addresses and the elected leader."""
        if self.leader is not None:
            return self.leader
        known = [*self._bootstrap, *([self._elected_leader] if self._elected_leader is not None else [])]
        return self._rng.choice(known) if known else None

    async def send(self, target: Address, message: Message, timeout_s: float) -> Answer:
        """Send a signed message, and return the answer.

        Raises:
            NotDelivered: the control plane was not reached, is not one of this fleet, or did not accept the message.
        """
        try:
            # A message discloses load and demand, so it is sent only to control planes of this fleet.
            peer_keys = self._known_keys(target) or await self._fetch_keys(target)
            certificate = self._keyring.identity.peer.certificate
            proof = signed_report.report_headers(peer_keys, certificate, message.body, message.purpose)
            headers = [
                (b"content-type", b"application/msgpack"),
                *((name.encode(), value.encode()) for name, value in proof.items()),
            ]
            answer = await fetch(
                self._connections,
                target,
                FetchRequest(message.path, headers, message.body),
                timeout_s=timeout_s,
            )
        except (BadIdentity, UpstreamError) as error:
            self._by_address.pop(target, None)
            raise NotDelivered(str(error)) from None
        if answer.status >= 300:
            # The control plane may have a new certificate, so the next message fetches the certificate again.
            self._by_address.pop(target, None)
            raise NotDelivered(f"answered {answer.status}: {answer.body[:200].decode('utf-8', 'replace')}")
        return Answer(answer.body, peer_keys)

    def follow(self, receipt: bytes, answered: Address) -> None:
        """Use the leader that a receipt names, unless the store has named another leader since the report was sent."""
        if self.leader not in (None, answered):
            return
        try:
            named = _receipts.decode(receipt)
            self.leader = answered if named.leading else self._parse(named.leader) if named.leader else None
        except (ValueError, RecursionError):
            self.leader = None

    def forget(self, target: Address) -> None:
        """Drop the leader after a failed message, unless another leader was elected since it was sent."""
        if self.leader == target:
            self.leader = None

    def _elected(self, change: Changed) -> None:
        if change.key != keys.LEADER or change.now is None:
            return
        try:
            self.leader = self._elected_leader = self._parse(decode(change.now.value, Member).url)
        except (CodecError, ValueError) as error:
            log.warning("leader ignored", reason=str(error))

    def _known_keys(self, target: Address) -> PeerKeys | None:
        """Return the keys shared with a control plane, if known; raises BadIdentity if its certificate is invalid."""
        known = self._by_address.get(target)
        return None if known is None else self._keyring.keys_with(known.peer.certificate, time.time())

    async def _fetch_keys(self, target: Address) -> PeerKeys:
        """Fetch the certificate of a control plane; raises BadIdentity for all but control planes of this fleet."""
        fetched = await fetch(self._connections, target, FetchRequest(identity.PATH), timeout_s=CERTIFICATE_TIMEOUT_S)
        if fetched.status != 200:
            raise BadIdentity(f"returned status {fetched.status} instead of a certificate")
        peer_keys = self._keyring.keys_with(decode_certificate(fetched.body), time.time())
        if peer_keys.peer.id.role is not ProcessRole.CONTROL_PLANE:
            raise BadIdentity(f"{peer_keys.peer.id} is not a control plane")
        self._by_address[target] = peer_keys
        return peer_keys

    def _parse(self, url: str) -> Address:
        """Return the address in a leader's URL.

        Raises:
            ValueError: no control plane has the address, or reports would leave this machine unencrypted.
        """
        address = Address.parse(url)
        if is_reserved(address.host):
            raise ValueError(f"{url} has a reserved address")
        if not address.tls and not is_loopback(address.host) and not self._allow_plaintext:
            raise ValueError(f"{url} is not encrypted, and ALLOW_PLAINTEXT does not have control-planes")
        return address
