"""Answers the probes of other regions with the ready models, the expected waits, and the granted spill credits."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from penstock.admission.region_queues import RegionQueues
from penstock.policy.policy import Policy
from penstock.routing.affinity import AffinityIndex
from penstock.routing.prefixes.hot_prefixes import HotPrefixes
from penstock.routing.prefixes.prefix_sketch import digest_of
from penstock.wire import peer_probe
from penstock.wire.identity import BadIdentity, decode_certificate, encode_certificate
from penstock.wire.peer_keys import BadSignature, Keyring
from penstock.wire.peer_probe import (
    MAX_EXPECTED_WAIT_S,
    MAX_SLOTS,
    NO_BURST,
    ModelReadiness,
    PeerProbeRequest,
    PeerProbeResponse,
)
from regional_agent.config.active_config import ActiveConfig
from regional_agent.config.start_epoch import AgentInstance
from regional_agent.endpoints.endpoint_set import EndpointSet
from regional_agent.peers.credit_balances import CreditBalances
from regional_agent.peers.prefix_publisher import PrefixPublisher


class ProbeResponder:
    """Answers probes of other regions' agents."""

    def __init__(
        self,
        agent: AgentInstance,
        keyring: Keyring,
        config: ActiveConfig,
        endpoints: EndpointSet,
        queues: RegionQueues[Any],
        credits: CreditBalances,
    ) -> None:
        """Create a responder for one agent.

        Args:
            agent: this start of the agent.
            keyring: verifies probes and signs answers.
            config: policy and plan in force.
            endpoints: the endpoints of this region.
            queues: the admission queues of this agent.
            credits: grants spill credits.
        """
        self.shutting_down = False
        """While set, answers report that no model is ready, so that other regions use other agents."""
        self.accepts_clients: Callable[[], bool] = lambda: False
        """Returns whether clients may enter at this agent."""
        self.on_wanted: Callable[[str, str], None] = lambda origin, model: None
        """Called with the origin and the model if another region asks for a model of which no endpoint is ready."""
        self.has_room: Callable[[str], bool] = lambda model: True
        """Returns whether an endpoint of a model serves or may wake; other regions count one without as none."""
        self.burst_offer: Callable[[str, Policy], tuple[int, float]] = lambda model, policy: (0, 0.0)
        """Returns how many requests for a model burst endpoints can serve, and when (s) a server of them runs."""
        self._region = agent.region
        self._agent = agent.name
        self._keyring = keyring
        self._config = config
        self._endpoints = endpoints
        self._queues = queues
        self._credits = credits
        self._sketch_for: Callable[[str], bytes] = lambda region: b""

    def publish_prefixes(self, hot: HotPrefixes, affinity: AffinityIndex, clock: Callable[[], float]) -> None:
        """Answer with sketches of `hot`; the other arguments are those of `PrefixPublisher`."""
        self._sketch_for = PrefixPublisher(hot, affinity, self._endpoints, clock).sketch_for

    @property
    def certificate(self) -> str:
        """The certificate of this agent, which a prober needs before its first probe (DER in base64)."""
        return encode_certificate(self._keyring.identity.peer.certificate)

    def answer(self, token: bytes | None, certificate: bytes | None) -> tuple[int, bytes]:
        """HTTP status and body of the answer to a probe.

        Args:
            token: value of the probe header; None if the request has none.
            certificate: certificate of the sender, in base64; None if the request has none.
        """
        policy = self._config.policy
        if policy is None:
            return 503, b"no policy yet\n"
        now = time.time()
        try:
            self._keyring.keys_with(decode_certificate(certificate or b""), now)
            opened = peer_probe.open_request((token or b"").decode("latin-1"), self._keyring, self._region, now)
        except (BadIdentity, BadSignature) as error:
            return 401, f"{error}\n".encode()
        if isinstance(opened, str):
            return 403, f"{opened}\n".encode()
        request, peer_keys = opened
        if request.origin not in policy.regions or request.origin == self._region:
            return 403, b"not another region of the policy\n"
        known = [model for model in self._endpoints.pools if model in policy.models]
        # A region that states no model counts as one without endpoints.
        stated = [model for model in known if self.has_room(model)] or known
        models = {model: self._model_answer(model, request, policy) for model in stated}
        accepts = not self.shutting_down and self.accepts_clients()
        sketch = self._sketch_for(request.origin) if policy.spillover.shares_prefixes is True else b""
        digest = digest_of(sketch)
        news = sketch if digest != request.prefix_digest else b""
        ttl_s, burst_only = policy.spillover.credit_ttl_s, self._burst_only(policy)
        answer = PeerProbeResponse(self._region, self._agent, models, ttl_s, accepts, digest, news, burst_only)
        return 200, peer_probe.seal_response(answer, request, peer_keys)

    def _model_answer(self, model: str, request: PeerProbeRequest, policy: Policy) -> ModelReadiness:
        if self.shutting_down:
            return ModelReadiness(ready=False, expected_wait_s=0.0)
        wait_s = min(MAX_EXPECTED_WAIT_S, self._queues.wait_s(model, self._endpoints.pools[model]))
        credits = self._credits.grant(model, request, policy, self._config.plan)
        batch_credits = self._credits.grant_batch(model, request, policy, self._config.plan)
        pool = self._endpoints.pools[model]
        if not pool.ready and request.wanted.get(model, 0) > 0:
            self.on_wanted(request.origin, model)
        in_use = min(MAX_SLOTS, pool.in_flight + self._queues.waiting(model) + self._credits.granted(model))
        return ModelReadiness(
            pool.ready > 0,
            wait_s,
            credits,
            pool.largest_context,
            batch_credits,
            min(MAX_SLOTS, pool.slots),
            in_use,
            pool.extends_text,
            *self._burst(model, policy),
        )

    def _burst_only(self, policy: Policy) -> dict[str, tuple[int, float]]:
        """Return what burst endpoints offer for the models that no other endpoint of the region is configured for."""
        if self.shutting_down:
            return {}
        models = (self._endpoints.burst_pools.keys() - self._endpoints.pools.keys()) & policy.models.keys()
        offers = {model: self._burst(model, policy) for model in models}
        return {model: offer for model, offer in offers.items() if offer != NO_BURST}

    def _burst(self, model: str, policy: Policy) -> tuple[int, float]:
        plan = self._config.plan
        if plan is not None and self._region in plan.closed_for(model):
            return NO_BURST
        room, start_s = self.burst_offer(model, policy)
        return (min(MAX_SLOTS, room), min(MAX_EXPECTED_WAIT_S, start_s)) if room else NO_BURST
