"""Sends a report to the leading control plane once a second, and immediately when another region fails.

The agent serves requests whether or not reports are delivered.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random

import msgspec
import structlog

from adapters.loopback import is_loopback
from adapters.store import keys
from adapters.store.codec import CodecError, decode
from adapters.store.config_store import Changed, ConfigStore
from adapters.store.informer import Informer
from adapters.store.members import Member
from penstock.fleet.report import AgentReport
from penstock.wire import identity, signed_report
from penstock.wire.identity import BadIdentity, ProcessRole, decode_certificate
from penstock.wire.reserved_addresses import is_reserved
from penstock.wire.session import Session, Sessions
from regional_agent.background_tasks import cancel, keep_running
from regional_agent.upstream.address import Address
from regional_agent.upstream.http_fetch import FetchRequest, fetch
from regional_agent.upstream.upstream_pool import UpstreamPool
from regional_agent.upstream.upstream_sink import UpstreamError

INTERVAL_S = 1.0
"""Time (s) between two reports."""

APART_S = 0.25
"""Minimum time (s) between two reports, also when several regions fail."""

TIMEOUT_S = 1.0
"""Timeout of a report in seconds. A report is not retried, since the next one is newer."""

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


_receipts = msgspec.json.Decoder(Receipt)


class Reporter:
    """Sends reports to the leader that the store or a receipt names; if unknown, to a random control plane."""

    def __init__(
        self,
        store: ConfigStore,
        control_planes: ControlPlanes,
        connections: UpstreamPool,
        sessions: Sessions,
        rng: Random,
        build: Callable[[], AgentReport],
    ) -> None:
        """Create a reporter that sends nothing before `start`.

        Args:
            store: holds the key that names the leader.
            control_planes: those that receive the reports while the leader is unknown.
            connections: pool of upstream connections.
            sessions: sign the reports.
            rng: chooses among control planes while the leader is unknown.
            build: builds the current report.
        """
        self._allow_plaintext = control_planes.allow_plaintext
        self._bootstrap = [Address.parse(url) for url in control_planes.urls]
        self._connections = connections
        self._sessions = sessions
        self._by_address: dict[Address, Session] = {}
        """Sessions with the control planes whose certificates were fetched; removed when a report fails."""
        self._rng = rng
        self._build = build
        self._leader: Address | None = None
        self._elected_leader: Address | None = None
        """The leader by the last value read from the store, which may be stale."""
        self._is_delivered = True
        self._informer = Informer(store, keys.LEADER, self._elected, rng=rng)
        self._task: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()

    def wake(self) -> None:
        """Send the next report before the end of the interval, because the leader needs the change as evidence."""
        self._wanted.set()

    def start(self) -> None:
        """Start reporting."""
        self._informer.start()
        self._task = keep_running("reporter", self._keep_reporting)

    async def stop(self) -> None:
        """Stop reporting."""
        await self._informer.stop()
        if self._task is not None:
            await cancel([self._task])

    def _elected(self, change: Changed) -> None:
        if change.key != keys.LEADER or change.now is None:
            return
        try:
            self._leader = self._elected_leader = self._parse(decode(change.now.value, Member).url)
        except (CodecError, ValueError) as error:
            log.warning("leader ignored", reason=str(error))

    async def _keep_reporting(self) -> None:
        while True:
            self._wanted.clear()
            await asyncio.gather(self._report(), self._pause())

    async def _pause(self) -> None:
        await asyncio.sleep(min(APART_S, INTERVAL_S))
        with suppress(TimeoutError):
            async with asyncio.timeout(INTERVAL_S - APART_S):
                await self._wanted.wait()

    async def _report(self) -> None:
        target = self._target()
        if target is None:
            return
        body = msgspec.msgpack.encode(self._build())
        try:
            # A report discloses load and demand, so it is sent only to control planes of this fleet.
            session = self._known_session(target) or await self._fetch_session(target)
            proof = signed_report.report_headers(session, self._sessions.identity.peer.certificate, body)
            headers = [
                (b"content-type", b"application/msgpack"),
                *((name.encode(), value.encode()) for name, value in proof.items()),
            ]
            answer = await fetch(
                self._connections,
                target,
                FetchRequest(signed_report.PATH, headers, body),
                timeout_s=TIMEOUT_S,
            )
        except (BadIdentity, UpstreamError) as error:
            self._by_address.pop(target, None)
            self._failed(target, str(error))
            return
        if answer.status >= 300:
            # The control plane may have a new certificate, so the next report fetches the certificate again.
            self._by_address.pop(target, None)
            self._failed(target, f"answered {answer.status}: {answer.body[:200].decode('utf-8', 'replace')}")
            return
        self._follow(answer.body, target)

    def _known_session(self, target: Address) -> Session | None:
        """Return the known session with a control plane, or None; raises BadIdentity if its certificate is invalid."""
        known = self._by_address.get(target)
        return None if known is None else self._sessions.session_with(known.peer.certificate, time.time())

    async def _fetch_session(self, target: Address) -> Session:
        """Fetch the certificate of a control plane; raises BadIdentity for all but control planes of this fleet."""
        fetched = await fetch(self._connections, target, FetchRequest(identity.PATH), timeout_s=TIMEOUT_S)
        if fetched.status != 200:
            raise BadIdentity(f"returned status {fetched.status} instead of a certificate")
        session = self._sessions.session_with(decode_certificate(fetched.body), time.time())
        if session.peer.id.role is not ProcessRole.CONTROL_PLANE:
            raise BadIdentity(f"{session.peer.id} is not a control plane")
        self._by_address[target] = session
        return session

    def _target(self) -> Address | None:
        """Return the leader; if unknown, a random address of the bootstrap addresses and the elected leader."""
        if self._leader is not None:
            return self._leader
        known = [*self._bootstrap, *([self._elected_leader] if self._elected_leader is not None else [])]
        return self._rng.choice(known) if known else None

    def _follow(self, body: bytes, answered: Address) -> None:
        """Use the leader that a receipt names, unless the store has named another leader since the report was sent."""
        if not self._is_delivered:
            log.info("reports are accepted again", control_plane=str(answered))
        self._is_delivered = True
        if self._leader not in (None, answered):
            return
        try:
            receipt = _receipts.decode(body)
            self._leader = answered if receipt.leading else self._parse(receipt.leader) if receipt.leader else None
        except (ValueError, RecursionError):
            self._leader = None

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

    def _failed(self, target: Address, reason: str) -> None:
        """Drop the leader after a failed report, unless another leader was elected since the report was sent."""
        if self._is_delivered:
            log.warning("report not delivered", control_plane=str(target), reason=reason)
        self._is_delivered = False
        if self._leader == target:
            self._leader = None
