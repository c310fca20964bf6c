"""The state of one other region: health, its agents' newest probe responses, and spill credits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf

import structlog

from penstock.dns.name_answer import EntryState
from penstock.health.region_health import RegionHealth, RegionState, observe
from penstock.policy.kinds.spillover_and_failover import Failover
from penstock.routing.prefixes.prefix_sketch import EMPTY, NOTHING_HELD, Held, Sketch, decode_sketch, held_in
from penstock.routing.region_selection import RegionView
from penstock.routing.spill_credits import HeldCredits
from penstock.wire.peer_keys import PeerKeys
from penstock.wire.peer_probe import PeerProbeResponse
from regional_agent.upstream.address import Address

RTT_GAIN = 0.2
"""Weight of a new sample in the smoothed round-trip time. TCP uses 1/8 (RFC 6298); probes are less frequent."""

RAMP_STEP_S = 0.05
"""Interval (s) at which the view of a region on its failback ramp is recomputed."""

MAX_AWAITED_S = 10.0
"""Maximum time (s) for which the first answer of a region is awaited."""

log = structlog.get_logger()


class PeerAgent:
    """The state of one agent of the region."""

    def __init__(self) -> None:
        self.answer: PeerProbeResponse | None = None
        """The newest valid response; None after a failure."""
        self.rejection_logged = False
        """Whether a rejected answer was logged since the last valid one."""
        self.peer_keys: PeerKeys | None = None
        """Authenticates messages to the agent; None until its certificate is fetched, and after a rejected answer."""
        self.rtt_s: float | None = None
        """Smoothed round-trip time (s); None before the first valid answer of the agent."""
        self.held_credits = HeldCredits()
        """The spill credits that the agent has granted for requests with a priority."""
        self.batch_sent: dict[str, int] = {}
        """Batch requests by model that were sent to the region on credits of the agent since its newest response."""
        self.held_batch_credits = HeldCredits()
        """The batch credits that the agent has granted."""
        self.burst_sent: dict[str, int] = {}
        """Requests by model that were sent to burst endpoints of the region since the newest response of the agent."""
        self.sketch: Sketch = EMPTY
        """The prompt beginnings that the agent's region holds, as the agent last published them."""
        self.prefix_digest = 0
        """Digest of `sketch`."""

    def take_sketch(self, answer: PeerProbeResponse) -> None:
        """Replace the sketch by that of a response, or drop it if the response has the digest of another one."""
        if answer.prefix_digest != self.prefix_digest:
            self.sketch = decode_sketch(answer.prefixes) or EMPTY
            self.prefix_digest = answer.prefix_digest if self.sketch else 0


class PeerRegion:
    """The state of one region. Views are cached until an input changes."""

    def __init__(self, name: str, on_failed: Callable[[], None] = lambda: None) -> None:
        """Create a region without known agents; `on_failed` is called when it enters or leaves the state FAILED."""
        self.name = name
        self._on_failed = on_failed
        self.health = RegionHealth()
        self.agents: dict[Address, PeerAgent] = {}
        self.reachable: tuple[Address, ...] = ()
        """The agents that answered their last probe."""
        self.is_probed = False
        """Whether a round of probes to known agents has ended."""
        self._probed_since = inf
        """Time (s) of the first round of probes to known agents."""
        self._succeeded_at = -inf
        """Start time (s) of the newest successful round."""
        self._counted_request_failure = False
        """Whether failed requests have counted as a missed probe since the last round."""
        self._views: dict[str, tuple[RegionView, float]] = {}
        """Cached views by model, with their expiry times (s)."""
        self._last_ready: frozenset[str] = frozenset()
        """The models that were ready by the newest answer of any agent."""
        self._last_asleep: frozenset[str] = frozenset()
        """The models that were not, at agents that accept clients."""
        self._last_models: frozenset[str] | None = None
        """The models of which an agent reported an endpoint by its newest answer; None before the first answer."""
        self._contexts: dict[str, int] = {}
        """Largest context length (tokens) by model, as last reported; 0 if unknown. Kept while the region is away."""

    @property
    def rtt_s(self) -> float | None:
        """Smoothed round-trip time (s) to the nearest agent of the region; None before the first valid answer."""
        return min((agent.rtt_s for agent in self.agents.values() if agent.rtt_s is not None), default=None)

    @property
    def is_lost(self) -> bool:
        """Whether the region counts as failed and no agent of it answers. A region whose endpoints alone have failed is
        not lost: its agents still relay what runs there, and state what they cannot serve."""
        return not self.reachable and self.health.state is RegionState.FAILED

    def is_awaited(self, now: float, failover: Failover) -> bool:
        """Whether no agent of the region has answered, and the first probe is not older than `hold_down_s` or
        MAX_AWAITED_S: the region is unknown and not failed, since the delay may be that of this process, which has just
        started."""
        awaited_s = min(failover.hold_down_s, MAX_AWAITED_S)
        return self._last_models is None and now - self._probed_since < awaited_s

    def set_addresses(self, addresses: Iterable[Address]) -> None:
        """Set the agents' addresses. A removed agent is kept while it answers, since the store may have lost it."""
        registered = set(addresses)
        for address in registered - self.agents.keys():
            self.agents[address] = PeerAgent()
        for address in self.agents.keys() - registered:
            if self.agents[address].answer is None:
                del self.agents[address]

    def answered(self, address: Address, answer: PeerProbeResponse, rtt_s: float, now: float) -> None:
        """Apply an agent's probe response."""
        agent = self.agents.get(address)
        if agent is None:
            return
        if agent.answer is None:
            self.reachable = (*self.reachable, address)
        agent.answer = answer
        agent.batch_sent.clear()
        agent.burst_sent.clear()
        agent.take_sketch(answer)
        self._last_ready, self._last_asleep = self._ready_models(), self._asleep_models()
        answers = [each.answer.models for each in self.agents.values() if each.answer is not None]
        self._last_models = frozenset().union(*answers)
        agent.rejection_logged = False
        agent.rtt_s = rtt_s if agent.rtt_s is None else agent.rtt_s + RTT_GAIN * (rtt_s - agent.rtt_s)
        granted = {model: readiness.credits for model, readiness in answer.models.items()}
        agent.held_credits = agent.held_credits.received(self.name, granted, now, answer.credit_ttl_s)
        for_batch = {model: readiness.batch_credits for model, readiness in answer.models.items()}
        agent.held_batch_credits = agent.held_batch_credits.received(self.name, for_batch, now, answer.credit_ttl_s)
        self._views.clear()

    def peer_keys(self, address: Address) -> PeerKeys | None:
        """The keys shared with the agent at an address; None if its certificate is unknown."""
        agent = self.agents.get(address)
        return agent.peer_keys if agent is not None else None

    def unreachable(self, address: Address) -> None:
        """Record that an agent did not answer or was unreachable."""
        agent = self.agents.get(address)
        if agent is not None and agent.answer is not None:
            agent.answer = None
            self.reachable = tuple(other for other in self.reachable if other != address)
            self._views.clear()

    def answer_rejected(self, address: Address, reason: str) -> None:
        """Record an invalid response: the sender is not an agent of the fleet, or rejects this agent.

        The next probe fetches the certificate of the agent again, since it may have changed.
        """
        agent = self.agents.get(address)
        if agent is None:
            return
        agent.peer_keys = None
        if not agent.rejection_logged:
            agent.rejection_logged = True
            log.warning("probe answer rejected", region=self.name, agent=str(address), reason=reason)
        self.unreachable(address)

    def round_began(self, started_at: float) -> None:
        """Record the start of a round of probes to known agents, or to none while the agents are not known yet."""
        self._probed_since = min(self._probed_since, started_at)

    def round_succeeded(self, started_at: float, now: float, failover: Failover) -> None:
        """Record a successful round. Called once per round, even if several agents can serve."""
        self._succeeded_at = max(self._succeeded_at, started_at)
        self._counted_request_failure = False
        self._observe(True, now, failover)

    def round_failed(self, started_at: float, now: float, failover: Failover) -> None:
        """Record a failed round; ignored if a later round succeeded."""
        if started_at > self._succeeded_at:
            self._counted_request_failure = False
            self._observe(False, now, failover)

    def request_failed(self, address: Address, now: float, failover: Failover) -> None:
        """Record a failed request to an agent.

        Counts as a missed probe if no other agent is reachable, at most once per round, since many requests may fail
        at the same time.
        """
        self.unreachable(address)
        if not self.reachable and not self._counted_request_failure:
            self._counted_request_failure = True
            self._observe(False, now, failover)

    def view(self, model: str, now: float, failover: Failover) -> RegionView:
        """The view of the region for a model."""
        cached = self._views.get(model)
        if cached is None or now >= cached[1]:
            cached = self._views[model] = self._view(model, now, failover)
        return cached[0]

    def has_endpoint(self, model: str) -> bool | None:
        """Whether the region has an endpoint of a model, ready or not, by the last answers of its agents; None before
        the first. When it counts as failed, it has none."""
        if self.is_lost:
            return False
        return None if self._last_models is None else model in self._last_models

    def entry_state(self, now: float, failover: Failover) -> EntryState:
        """The state of the region as an entry of clients. A region that misses a probe keeps what its last answer
        stated until it counts as failed, so that one lost message does not move clients."""
        state = self.health.state
        if not self.reachable:
            ready, asleep = self._last_ready, self._last_asleep
            if state is not RegionState.SUSPECT:
                ready = asleep = frozenset()
            return EntryState(state, ready, weight=self.health.weight(now, failover), asleep=asleep)
        answers = [agent.answer for agent in self.agents.values() if agent.answer is not None]
        forwards = any(answer.accepts_clients and not answer.models for answer in answers)
        if forwards and state is RegionState.UNKNOWN:
            # Probes count as successful only if a model is ready, so that a region without endpoints has no health.
            state = RegionState.HEALTHY
        weight = 1.0 if forwards else self.health.weight(now, failover)
        burst = frozenset(model for answer in answers for model in answer.burst_only)
        return EntryState(state, self._ready_models(), forwards, weight, self._asleep_models(), burst)

    def _ready_models(self) -> frozenset[str]:
        answers = [agent.answer for agent in self.agents.values() if agent.answer is not None]
        return frozenset(model for answer in answers for model, state in answer.models.items() if state.ready)

    def _asleep_models(self) -> frozenset[str]:
        answers = [agent.answer for agent in self.agents.values() if agent.answer is not None]
        known = frozenset(model for answer in answers if answer.accepts_clients for model in answer.models)
        return known - self._ready_models()

    def held(self, prefix: Sequence[int]) -> Held:
        """What the region's caches hold of a prompt, by the sketches of its reachable agents.

        Args:
            prefix: keys of the leading blocks of the prompt.
        """
        found = [held_in(agent.sketch, prefix) for agent in self.agents.values() if agent.answer is not None]
        return max(found, key=lambda held: (held.blocks, -held.wait_s), default=NOTHING_HELD)

    def held_credits(self, model: str, now: float) -> int:
        """Unexpired credits for a model that the region's agents have granted."""
        return sum(agent.held_credits.available(self.name, model, now) for agent in self.agents.values())

    def spend(self, model: str, now: float) -> None:
        """Use one unexpired spill credit of any agent of the region."""
        for agent in self.agents.values():
            if agent.held_credits.available(self.name, model, now) > 0:
                agent.held_credits = agent.held_credits.spent(self.name, model)
                self._views.pop(model, None)
                return

    def spend_batch(self, model: str, now: float) -> None:
        """Use one unexpired batch credit of any agent of the region."""
        for agent in self.agents.values():
            if agent.held_batch_credits.available(self.name, model, now) > 0:
                agent.held_batch_credits = agent.held_batch_credits.spent(self.name, model)
                agent.batch_sent[model] = agent.batch_sent.get(model, 0) + 1
                self._views.pop(model, None)
                return

    def spend_burst(self, model: str) -> None:
        """Count a request that is sent to a burst endpoint of the region."""
        for agent in self.agents.values():
            agent.burst_sent[model] = agent.burst_sent.get(model, 0) + 1
        self._views.pop(model, None)

    def _view(self, model: str, now: float, failover: Failover) -> tuple[RegionView, float]:
        waits, credits, batch_room, until = [], 0, 0, inf
        slots = in_use = sent = 0
        extends_text = False
        contexts: list[int] = []
        burst_room, burst_start_s = 0, 0.0
        for agent in self.agents.values():
            if agent.answer is None:
                continue
            room, start_s = agent.answer.burst_of(model)
            room -= agent.burst_sent.get(model, 0)
            # Each agent of a region knows all requests at its burst endpoints.
            if room > burst_room:
                burst_room, burst_start_s = room, start_s
            readiness = agent.answer.models.get(model)
            if readiness is None:
                continue
            if readiness.ready:
                waits.append(readiness.expected_wait_s)
                contexts.append(readiness.context_tokens)
                extends_text |= readiness.extends_text
                # Agents of earlier releases state no slots.
                if readiness.slots and readiness.in_use >= in_use:
                    slots, in_use = readiness.slots, readiness.in_use
                sent += agent.batch_sent.get(model, 0)
            available = agent.held_credits.available(self.name, model, now)
            if available > 0:
                credits += available
                until = min(until, agent.held_credits.credits[self.name, model].expires_at)
            available = agent.held_batch_credits.available(self.name, model, now)
            if available > 0:
                batch_room += available
                until = min(until, agent.held_batch_credits.credits[self.name, model].expires_at)
        if contexts:
            self._contexts[model] = 0 if 0 in contexts else max(contexts)
        if self.health.state is RegionState.RECOVERING:
            until = min(until, now + RAMP_STEP_S)
        state = self.health.state
        if burst_room and state is RegionState.UNKNOWN:
            # Probes count as successful only if a model is ready, so that a region without endpoints has no health.
            state = RegionState.HEALTHY
        view = RegionView(
            state,
            ready=bool(waits),
            weight=self.health.weight(now, failover),
            expected_wait_s=min(waits, default=0.0),
            credits=credits,
            context_tokens=self._contexts.get(model, 0),
            batch_room=batch_room,
            slots=slots,
            in_use=in_use + sent,
            extends_text=extends_text,
            burst_room=burst_room,
            burst_start_s=burst_start_s,
        )
        return view, until

    def _observe(self, is_success: bool, now: float, failover: Failover) -> None:
        before = self.health.state
        self.health = observe(self.health, is_success, now, failover)
        if self.health.state is not before:
            log.info("region state changed", region=self.name, was=before.value, now=self.health.state.value)
            self._views.clear()
            if RegionState.FAILED in (before, self.health.state):
                self._on_failed()
