"""Probes other regions: health, expected waits, and spill credits for this agent."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from http import HTTPStatus
from random import Random
from typing import Any, NamedTuple

from penstock.dns.name_answer import EntryState
from penstock.fleet.report import PeerReport
from penstock.health.region_health import RegionState, probe_timeout_s
from penstock.policy.kinds.spillover_and_failover import Failover, Spillover
from penstock.policy.policy import Policy
from penstock.policy.residency import regions_beside
from penstock.routing.prefixes.prefix_sketch import NOTHING_HELD, Held
from penstock.routing.region_selection import RegionView
from penstock.wire import identity, peer_probe
from penstock.wire.identity import BadIdentity, decode_certificate, encode_certificate
from penstock.wire.peer_keys import BadSignature, Keyring, PeerKeys
from penstock.wire.peer_probe import PeerProbeRequest, PeerProbeResponse
from regional_agent.background_tasks import cancel, keep_running, wait_for_event
from regional_agent.config.start_epoch import AgentInstance
from regional_agent.peers.agent_addresses import AgentAddresses
from regional_agent.peers.peer_region import PeerRegion
from regional_agent.peers.server_certificates import require_agent_of
from regional_agent.upstream.address import Address
from regional_agent.upstream.http_fetch import Fetched, FetchRequest, fetch
from regional_agent.upstream.upstream_pool import UpstreamPool
from regional_agent.upstream.upstream_sink import TimedOut, UpstreamError

MIN_INTERVAL_S = 0.05
"""Minimum interval (s) between two rounds of probes when the outcome of one triggers the next."""

MAX_ROUNDS = 6
"""Maximum number of concurrent rounds of probes to one region."""

OWN_LAG_S = 0.1
"""Delay (s) of a timer above which a timeout is attributed to this process and does not count against the peer.

The idea is Lifeguard's (Dadgar, Phillips, Currey: https://arxiv.org/abs/1707.00788).
"""

MAX_LAGGED_ROUNDS = 2
"""Maximum number of successive rounds ignored because of local delay: an agent that is always delayed must still
detect failures."""

UNKNOWN = RegionView(RegionState.UNKNOWN, ready=False)


class _Lagged(Exception):
    """A timeout that a delay of this process may have caused."""


class _Round:
    """The result of one round of probes to one region."""

    __slots__ = ("can_serve", "is_answered", "lagged", "started_at")

    def __init__(self, started_at: float) -> None:
        self.started_at = started_at
        self.can_serve = False
        """Whether an agent reported that it can serve."""
        self.is_answered = False
        """Whether an agent answered; an agent without a policy or without a ready endpoint counts too."""
        self.lagged = False
        """Whether a delay of this process may have caused the timeout of a probe."""


class CreditRequests(NamedTuple):
    """What a prober needs to know of this agent's spill credits."""

    wanted: Callable[[str, Spillover], int]
    """Returns the number of credits to request from each region for a model."""
    batch_wanted: Callable[[str, Spillover], int]
    """Returns the number of batch credits to request from each region for a model."""
    on_granted: Callable[[], None]
    """Called when a region has granted credits."""


class PeerProber:
    """Probes every other region of the policy and provides their views for routing decisions."""

    def __init__(
        self,
        agent: AgentInstance,
        keyring: Keyring,
        connections: UpstreamPool,
        directory: AgentAddresses,
        credits: CreditRequests,
        rng: Random,
    ) -> None:
        """Create a prober without regions; `use` starts the probes.

        Args:
            agent: this start of the agent.
            keyring: authenticates probes.
            credits: the spill credits to request.
        """
        self.on_failed: Callable[[], None] = lambda: None
        """Called when a region enters or leaves the state FAILED."""
        self.regions: dict[str, PeerRegion] = {}
        """The other regions of the policy, by name."""
        self._region = agent.region
        self._agent = agent.name
        self._keyring = keyring
        self._connections = connections
        self._directory = directory
        self._rng = rng
        self._credits = credits
        self._clock = time.monotonic
        self._policy: Policy | None = None
        self._failover = Failover()
        self._permitted: frozenset[str] = frozenset()
        """The regions that may serve clients of this one."""
        self._probe_now: dict[str, asyncio.Event] = {}
        self._watches: dict[str, asyncio.Task[None]] = {}

    def use(self, policy: Policy) -> None:
        """Probe the regions of a newly accepted policy; the state of regions that remain is kept."""
        self._policy, self._failover = policy, policy.failover
        self._permitted = regions_beside(policy, self._region)
        others = policy.regions.keys() - {self._region}
        for gone in self.regions.keys() - others:
            del self.regions[gone], self._probe_now[gone]
            self._watches.pop(gone).cancel()
        for name in sorted(others - self.regions.keys()):
            self.regions[name] = PeerRegion(name, lambda: self.on_failed())
            self._probe_now[name] = asyncio.Event()
            watch = partial(self._watch, self.regions[name], self._probe_now[name])
            self._watches[name] = keep_running(f"peer {name}", watch)

    async def stop(self) -> None:
        """Stop probing."""
        await cancel(self._watches.values())
        self._watches.clear()

    # For routing decisions.

    def state(self, region: str) -> RegionState:
        """The detected state of a region."""
        peer = self.regions.get(region)
        return peer.health.state if peer is not None else RegionState.UNKNOWN

    def is_lost(self, region: str) -> bool:
        """Whether a region has failed and none of its agents answers."""
        peer = self.regions.get(region)
        return peer is not None and peer.is_lost

    def view(self, region: str, model: str, now: float) -> RegionView:
        """The view of a region for a model."""
        peer = self.regions.get(region)
        return peer.view(model, now, self._failover) if peer is not None else UNKNOWN

    def waits_s(self, model: str) -> dict[str, float]:
        """The other regions that have a ready endpoint of a model, with the expected wait (s) of one more request."""
        now = self._clock()
        views = {name: self.view(name, model, now) for name in self.regions}
        return {name: view.expected_wait_s for name, view in views.items() if view.ready}

    def in_use(self, model: str) -> dict[str, int]:
        """The slots of a model that are in use in other regions, by their last answers."""
        now = self._clock()
        return {name: self.view(name, model, now).in_use for name in self.regions}

    def regions_with(self, model: str) -> frozenset[str]:
        """The other regions that have an endpoint of a model, ready or not, or may have one that is not known yet."""
        known = {name: peer.has_endpoint(model) for name, peer in self.regions.items()}
        return frozenset(name for name, has in known.items() if has or (has is None and self._may_have_agents(name)))

    def is_awaited(self, region: str) -> bool:
        """Whether a region may answer its first probe soon, as after a start of this agent."""
        peer = self.regions.get(region)
        return peer is not None and self._may_have_agents(region) and peer.is_awaited(self._clock(), self._failover)

    def _may_have_agents(self, region: str) -> bool:
        return not self._directory.is_read or bool(self._directory.addresses(region))

    def entry_states(self) -> dict[str, EntryState]:
        """The state of every other region as an entry of clients."""
        now = self._clock()
        return {name: peer.entry_state(now, self._failover) for name, peer in self.regions.items()}

    def serve_any(self) -> bool:
        """Whether requests of this region's clients may be sent to another region, by health and residency. A region
        without a ready endpoint fails its probes."""
        now, permitted = self._clock(), self._permitted
        return any(
            name in permitted and peer.health.weight(now, self._failover) > 0.0 for name, peer in self.regions.items()
        )

    def has_probed_all(self) -> bool:
        """Whether every region with known agents has been probed: before, no request can be sent there."""
        return all(peer.is_probed or not self._directory.addresses(name) for name, peer in self.regions.items())

    def address(self, region: str) -> Address | None:
        """The address of a reachable agent of a region, else of any known agent; None if no agent is known."""
        peer = self.regions.get(region)
        choices = (peer.reachable if peer is not None else ()) or self._directory.addresses(region)
        if len(choices) > 1:
            return self._rng.choice(choices)
        return choices[0] if choices else None

    def held(self, region: str, prefix: Sequence[int]) -> Held:
        """What the caches of a region hold of a prompt, given by the keys of its leading blocks."""
        peer = self.regions.get(region)
        return peer.held(prefix) if peer is not None else NOTHING_HELD

    def peer_keys(self, region: str, address: Address) -> PeerKeys | None:
        """The keys shared with the agent at an address; None if the certificate of the agent is unknown."""
        peer = self.regions.get(region)
        return peer.peer_keys(address) if peer is not None else None

    def spend(self, region: str, model: str) -> None:
        """Use a spill credit for a request."""
        peer = self.regions.get(region)
        if peer is not None:
            peer.spend(model, self._clock())

    def spend_batch(self, region: str, model: str) -> None:
        """Use a batch credit for a request."""
        peer = self.regions.get(region)
        if peer is not None:
            peer.spend_batch(model, self._clock())

    def spend_burst(self, region: str, model: str) -> None:
        """Count a request that is sent to a burst endpoint of a region."""
        peer = self.regions.get(region)
        if peer is not None:
            peer.spend_burst(model)

    def request_failed(self, region: str, address: Address) -> None:
        """Record a failed request to an agent, and probe the region at once."""
        peer = self.regions.get(region)
        if peer is not None:
            peer.request_failed(address, self._clock(), self._failover)
            self._probe_now[region].set()

    def report(self) -> tuple[PeerReport, ...]:
        """Every region's state, as evidence for the control plane."""
        return tuple(
            PeerReport(name, peer.health.state, self._expected_rtt_s(peer) * 1000)
            for name, peer in self.regions.items()
        )

    def held_credits(self, model: str) -> int:
        """Unexpired spill credits for a model that other regions have granted to this agent."""
        now = self._clock()
        return sum(peer.held_credits(model, now) for peer in self.regions.values())

    def status(self) -> dict[str, Any]:
        """The state for the status page: each region's state, round-trip time (ms) and reachable agents."""
        return {
            name: {
                "state": peer.health.state.value,
                "rtt_ms": None if peer.rtt_s is None else round(peer.rtt_s * 1000, 1),
                "agents": [str(address) for address in peer.reachable],
            }
            for name, peer in self.regions.items()
        }

    async def _watch(self, peer: PeerRegion, probe_now: asyncio.Event) -> None:
        """Start a round each interval, even if earlier rounds have not ended, so that a hung region is detected."""
        rounds: set[asyncio.Task[None]] = set()
        lagged_rounds_left = [MAX_LAGGED_ROUNDS]
        try:
            while True:
                probe_now.clear()
                if len(rounds) < MAX_ROUNDS:
                    rounds.add(asyncio.create_task(self._round(peer, probe_now, lagged_rounds_left)))
                interval_s = self._failover.probe_interval_s * self._rng.uniform(0.9, 1.1)
                await wait_for_event(probe_now, at_least_s=MIN_INTERVAL_S, at_most_s=interval_s)
                for ended in [task for task in rounds if task.done()]:
                    rounds.remove(ended)
                    ended.result()
        finally:
            await cancel(rounds)

    async def _round(self, peer: PeerRegion, probe_now: asyncio.Event, lagged_rounds_left: list[int]) -> None:
        """Probe all agents of a region; the region is healthy as soon as one agent reports that it can serve."""
        peer.set_addresses(self._directory.addresses(peer.name))
        if not peer.agents and peer.health.state is RegionState.UNKNOWN:
            if not self._directory.is_read:
                peer.round_began(self._clock())
            return  # a region without a known address was never reachable, so it cannot be lost
        current = _Round(self._clock())
        peer.round_began(current.started_at)
        async with asyncio.TaskGroup() as probes:
            for address in peer.agents:
                probes.create_task(self._probe(peer, address, current))
        peer.is_probed = True
        if current.can_serve:
            lagged_rounds_left[0] = MAX_LAGGED_ROUNDS
            return
        is_unknown = peer.health.state is RegionState.UNKNOWN
        if is_unknown and (current.is_answered or peer.is_awaited(self._clock(), self._failover)):
            return  # the region starts, and its endpoints load for minutes: a region that never served cannot fail
        if current.lagged and lagged_rounds_left[0] > 0:
            lagged_rounds_left[0] -= 1
        else:
            peer.round_failed(current.started_at, self._clock(), self._failover)
        if peer.health.state is not RegionState.FAILED:
            probe_now.set()

    async def _probe(self, peer: PeerRegion, address: Address, current: _Round) -> None:
        """Probe one agent and apply the result."""
        timeout_s = probe_timeout_s(
            self._failover, self._expected_rtt_s(peer), connected=address in peer.reachable, tls=bool(address.tls)
        )
        try:
            answer, rtt_s = await self._answer(peer, address, timeout_s, current)
        except _Lagged:
            current.lagged = True
            return
        except UpstreamError:
            peer.unreachable(address)
            return
        except (BadIdentity, BadSignature) as error:
            peer.answer_rejected(address, str(error))
            return
        current.is_answered = True
        now = self._clock()
        peer.answered(address, answer, rtt_s, now)
        # An agent without a ready endpoint that accepts clients has models that sleep until requests need them.
        serves = any(model.ready for model in answer.models.values()) or (answer.accepts_clients and answer.models)
        if serves and not current.can_serve:
            current.can_serve = True
            peer.round_succeeded(current.started_at, now, self._failover)
        rooms = (model.credits or model.batch_credits or model.burst_room for model in answer.models.values())
        if answer.burst_only or any(rooms):
            self._credits.on_granted()

    async def _answer(
        self, peer: PeerRegion, address: Address, timeout_s: float, current: _Round
    ) -> tuple[PeerProbeResponse, float]:
        """The verified answer of an agent, and the round-trip time (s) of its probe.

        An agent that was replaced by an agent with another certificate rejects the known keys. This rejection does
        not count as a failed probe: two of them, in overlapping rounds, would fail a region during its upgrade.
        """
        try:
            known = self._known_keys(peer, address)
            if known is not None:
                return await self._ask(peer.name, address, known, timeout_s, current)
        except (BadIdentity, BadSignature):
            pass
        peer_keys = await self._fetch_keys(peer, address, timeout_s)
        return await self._ask(peer.name, address, peer_keys, timeout_s, current)

    async def _ask(
        self, region: str, address: Address, peer_keys: PeerKeys, timeout_s: float, current: _Round
    ) -> tuple[PeerProbeResponse, float]:
        """Send one signed probe, and verify the answer; returns the round-trip time (s) too."""
        request = self._request(region, address)
        headers = [
            (peer_probe.HEADER.encode(), peer_probe.seal_request(request, peer_keys).encode()),
            (identity.HEADER.encode(), encode_certificate(self._keyring.identity.peer.certificate).encode()),
        ]
        fetched, rtt_s = await self._fetch(address, peer_probe.PATH, timeout_s, headers)
        current.is_answered |= fetched.status == HTTPStatus.SERVICE_UNAVAILABLE
        return self._verified(fetched, request, peer_keys), rtt_s

    async def _fetch(
        self, address: Address, path: str, timeout_s: float, headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> tuple[Fetched, float]:
        """The response of an agent to one request, and the time (s) until its arrival.

        Raises:
            _Lagged: the request timed out, perhaps because of a delay of this process.
        """
        sent_at = self._clock()
        try:
            fetched = await fetch(self._connections, address, FetchRequest(path, headers), timeout_s=timeout_s)
        except TimedOut:
            if self._clock() - sent_at > timeout_s + OWN_LAG_S:
                raise _Lagged from None
            raise
        return fetched, self._clock() - sent_at

    def _known_keys(self, peer: PeerRegion, address: Address) -> PeerKeys | None:
        """The keys shared with an agent, by the newest certificate of this process; None if the agent's is unknown.

        Raises:
            BadIdentity: the certificate of the agent has expired or is revoked.
        """
        known = peer.peer_keys(address)
        if known is None:
            return None
        peer_keys = self._keyring.keys_with(known.peer.certificate, time.time())
        peer.agents[address].peer_keys = peer_keys
        return peer_keys

    async def _fetch_keys(self, peer: PeerRegion, address: Address, timeout_s: float) -> PeerKeys:
        """Fetch the certificate of an agent, and return the keys shared with the agent.

        Raises:
            BadIdentity: the certificate does not identify an agent of this region in this fleet.
        """
        fetched, _ = await self._fetch(address, identity.PATH, timeout_s)
        if fetched.status != 200:
            raise BadIdentity(f"returned status {fetched.status} instead of a certificate")
        peer_keys = self._keyring.keys_with(decode_certificate(fetched.body), time.time())
        require_agent_of(peer.name, peer_keys.peer.id)
        if address in peer.agents:
            peer.agents[address].peer_keys = peer_keys
        return peer_keys

    def _verified(self, fetched: Fetched, request: PeerProbeRequest, peer_keys: PeerKeys) -> PeerProbeResponse:
        """Verify and decode a probe response; raises BadSignature unless the probed agent signed it."""
        if fetched.status != 200:
            reason = fetched.body[:200].decode("utf-8", "replace").strip()
            raise BadSignature(f"returned status {fetched.status}: {reason}")
        return peer_probe.open_response(fetched.body, request, peer_keys)

    def _request(self, region: str, address: Address) -> PeerProbeRequest:
        policy = self._policy
        models = policy.models if policy is not None else {}
        spillover = policy.spillover if policy is not None else Spillover()
        wanted = {model: credits for model in models if (credits := self._credits.wanted(model, spillover)) > 0}
        for_batch = {
            model: credits for model in models if (credits := self._credits.batch_wanted(model, spillover)) > 0
        }
        peer = self.regions.get(region)
        agent = peer.agents.get(address) if peer is not None else None
        digest = agent.prefix_digest if agent is not None else 0
        nonce, now = os.urandom(8).hex(), time.time()
        return PeerProbeRequest(self._region, self._agent, region, nonce, now, wanted, digest, for_batch)

    def _expected_rtt_s(self, peer: PeerRegion) -> float:
        if peer.rtt_s is not None:
            return peer.rtt_s
        assert self._policy is not None
        return self._policy.round_trip_ms(self._region, peer.name) / 1000
