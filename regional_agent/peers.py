"""Other regions as this agent sees them: probed four times a second, judged by a state machine, invited by credits."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from random import Random

import structlog

from penstock import probe
from penstock.policy import Failover, Policy
from penstock.probe import Answer, Question
from penstock.region_health import RegionHealth, RegionState, observe
from penstock.report import PeerReport
from penstock.signing import BadSignature, FleetKey
from penstock.spill import Wallet
from penstock.where import RegionView
from regional_agent.agent_directory import AgentDirectory
from regional_agent.background import cancel, keep_running
from regional_agent.carry.fetch import fetch
from regional_agent.carry.upstream import Address, UpstreamError, UpstreamPool

RTT_GAIN = 0.2
"""Weight of a new round trip in the smoothed one; TCP's is 1/8 (RFC 6298), probes are rarer."""

BEFORE_POLICY = Failover()
"""How often to look for a policy when there is none: nothing is probed before it."""

log = structlog.get_logger()


class Peer:
    """One other region."""

    __slots__ = ("answers", "health", "hurry", "reached", "rtt_s", "task")

    def __init__(self) -> None:
        self.health = RegionHealth()
        self.rtt_s: float | None = None
        """Smoothed round trip; None before the first good probe."""
        self.answers: dict[Address, Answer] = {}
        """The newest good answer of each of its agents, while that agent answers."""
        self.reached: tuple[Address, ...] = ()
        """Its agents that answered their last probe."""
        self.hurry = asyncio.Event()
        """Set to probe at once."""
        self.task: asyncio.Task[None] | None = None


class Peers:
    """Probes every other region of the policy and answers what the decision asks about them."""

    def __init__(
        self,
        region: str,
        key: FleetKey,
        connections: UpstreamPool,
        directory: AgentDirectory,
        rng: Random,
        *,
        wanted: Callable[[str], int],
        clock: Callable[[], float],
    ) -> None:
        """Nobody is known before `use`.

        Args:
            wanted: how many spill credits this region would like for a model.
            clock: monotonic, in seconds.
        """
        self._region = region
        self._key = key
        self._connections = connections
        self._directory = directory
        self._rng = rng
        self._wanted = wanted
        self._clock = clock
        self._policy: Policy | None = None
        self._peers: dict[str, Peer] = {}
        self._wallet = Wallet()

    def use(self, policy: Policy) -> None:
        """Watch the regions of a newly accepted policy; state of those that stay is kept."""
        self._policy = policy
        others = policy.regions.keys() - {self._region}
        for gone in self._peers.keys() - others:
            task = self._peers.pop(gone).task
            if task is not None:
                task.cancel()
        for region in sorted(others - self._peers.keys()):
            peer = self._peers[region] = Peer()
            peer.task = keep_running(f"peer {region}", lambda name=region, one=peer: self._watch(name, one))  # type: ignore[misc]

    async def stop(self) -> None:
        """Stop probing."""
        await cancel([peer.task for peer in self._peers.values() if peer.task is not None])

    # what the decision asks

    def state(self, region: str) -> RegionState:
        """What is believed of a region."""
        peer = self._peers.get(region)
        return peer.health.state if peer is not None else RegionState.UNKNOWN

    def view(self, region: str, model: str, now: float) -> RegionView:
        """What is known of a region for a model."""
        peer = self._peers.get(region)
        if peer is None:
            return UNKNOWN
        models = [answer.models[model] for answer in peer.answers.values() if model in answer.models]
        waits = [one.expected_wait_s for one in models if one.ready]
        return RegionView(
            peer.health.state,
            ready=bool(waits),
            weight=peer.health.weight(now, self._policy.failover if self._policy else BEFORE_POLICY),
            expected_wait_s=min(waits, default=0.0),
            credits=self._wallet.available(region, model, now),
        )

    def address(self, region: str) -> Address | None:
        """One of a region's agents that answers; any that is known where none does."""
        peer = self._peers.get(region)
        choices = (peer.reached if peer is not None else ()) or self._directory.addresses(region)
        return self._rng.choice(choices) if choices else None

    def spend(self, region: str, model: str) -> None:
        """A request goes there beyond the plan."""
        self._wallet = self._wallet.spent(region, model)

    def broken(self, region: str, address: Address) -> None:
        """A request could not be carried there: as good as a missed probe, and reason to look at once."""
        peer = self._peers.get(region)
        if peer is None:
            return
        peer.reached = tuple(one for one in peer.reached if one != address)
        peer.answers.pop(address, None)
        if not peer.reached:
            self._observe(region, peer, good=False)
        peer.hurry.set()

    # what others are told

    def report(self) -> tuple[PeerReport, ...]:
        """Every region's state, as evidence for the control plane."""
        return tuple(
            PeerReport(region, peer.health.state, (peer.rtt_s or 0.0) * 1000) for region, peer in self._peers.items()
        )

    @property
    def regions(self) -> dict[str, tuple[RegionState, float | None]]:
        """State and smoothed round trip (s) by region."""
        return {region: (peer.health.state, peer.rtt_s) for region, peer in self._peers.items()}

    # probing

    async def _watch(self, region: str, peer: Peer) -> None:
        while True:
            assert self._policy is not None
            failover = self._policy.failover
            began_at = self._clock()
            peer.hurry.clear()
            await self._probe_all(region, peer, failover)
            rest_s = began_at + failover.probe_interval_s * self._rng.uniform(0.9, 1.1) - self._clock()
            if rest_s > 0.0:
                try:
                    async with asyncio.timeout(rest_s):
                        await peer.hurry.wait()
                except TimeoutError:
                    pass

    async def _probe_all(self, region: str, peer: Peer, failover: Failover) -> None:
        """Ask each of a region's agents; one that answers well speaks for the region."""
        addresses = self._directory.addresses(region)
        answers = await asyncio.gather(*(self._probe(region, peer, address, failover) for address in addresses))
        found = {address: answer for address, answer in zip(addresses, answers, strict=True) if answer is not None}
        peer.answers = found
        peer.reached = tuple(found)
        ready = any(one.ready for answer in found.values() for one in answer.models.values())
        # A region without a known address cannot be lost: it was never found.
        if addresses or peer.health.state is not RegionState.UNKNOWN:
            self._observe(region, peer, good=ready)
        self._receive_credits(region, list(found.values()))

    async def _probe(self, region: str, peer: Peer, address: Address, failover: Failover) -> Answer | None:
        assert self._policy is not None
        wanted = {model: count for model in self._policy.models if (count := self._wanted(model)) > 0}
        question = Question(self._region, region, os.urandom(8).hex(), time.time(), wanted)
        header = (probe.HEADER.encode(), probe.ask(question, self._key).encode())
        usual_s = peer.rtt_s if peer.rtt_s is not None else self._policy.round_trip_ms(self._region, region) / 1000
        asked_at = self._clock()
        try:
            # A new connection costs a second round trip.
            fetched = await fetch(
                self._connections,
                address,
                probe.PATH,
                headers=[header],
                timeout_s=failover.probe_timeout_s + 2 * usual_s,
            )
            if fetched.status != 200:
                return None
            answer = probe.heard(fetched.body, question, self._key)
        except UpstreamError:
            return None
        except BadSignature as error:
            log.warning("probe answer not believed", region=region, address=str(address), reason=str(error))
            return None
        took_s = self._clock() - asked_at
        peer.rtt_s = took_s if peer.rtt_s is None else peer.rtt_s + RTT_GAIN * (took_s - peer.rtt_s)
        return answer

    def _observe(self, region: str, peer: Peer, *, good: bool) -> None:
        assert self._policy is not None
        before = peer.health.state
        peer.health = observe(peer.health, good, self._clock(), self._policy.failover)
        if peer.health.state is not before:
            log.info("region", region=region, was=before.value, now=peer.health.state.value)

    def _receive_credits(self, region: str, answers: list[Answer]) -> None:
        now = self._clock()
        for model in {model for answer in answers for model in answer.models}:
            credits = sum(answer.models[model].credits for answer in answers if model in answer.models)
            ttl_s = min(answer.credit_ttl_s for answer in answers)
            self._wallet = self._wallet.received(region, model, credits, now, ttl_s)


UNKNOWN = RegionView(RegionState.UNKNOWN, ready=False)
