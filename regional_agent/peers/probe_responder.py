"""This region's answer to another that probes it: what is ready, how long one would wait, and what it may send."""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock.fleet.expected_wait import headroom_slots
from penstock.planning.plan import RegionPlan
from penstock.policy.policy import Policy
from penstock.routing.spill_credits import Grants, fair_part, grant
from penstock.wire import probe
from penstock.wire.probe import ModelReadiness, ProbeRequest, ProbeResponse
from penstock.wire.signing import FleetKey
from regional_agent.endpoints.endpoint_set import EndpointSet
from regional_agent.routing.admission_queue import AdmissionQueue

MAX_WAIT_S = 3600.0
"""What an infinite wait looks like on the wire: JSON has no infinity."""


class ProbeResponder:
    """Answers probes, and remembers which credits are out."""

    def __init__(
        self,
        region: str,
        agent: str,
        key: FleetKey,
        endpoints: EndpointSet,
        waiting: AdmissionQueue,
        *,
        policy: Callable[[], Policy | None],
        plan: Callable[[], RegionPlan | None],
        agents_here: Callable[[], tuple[str, ...]],
        clock: Callable[[], float],
    ) -> None:
        """Nothing is granted yet.

        Args:
            agents_here: names of this region's agents, in an order that all of them agree on.
            clock: monotonic, in seconds.
        """
        self.leaving = False
        """This agent is going away: it answers that nothing is ready, so that peers turn elsewhere."""
        self._region = region
        self._agent = agent
        self._key = key
        self._endpoints = endpoints
        self._waiting = waiting
        self._policy = policy
        self._plan = plan
        self._agents_here = agents_here
        self._clock = clock
        self._grants: dict[str, Grants] = {}

    def answer(self, token: bytes | None) -> tuple[int, bytes]:
        """HTTP status and body for a probe header."""
        policy = self._policy()
        if policy is None:
            return 503, b"no policy yet\n"
        question = probe.open_request((token or b"").decode("latin-1"), self._key, self._region, time.time())
        if isinstance(question, str):
            return 403, f"{question}\n".encode()
        if question.origin not in policy.regions or question.origin == self._region:
            return 403, b"not a region that may ask\n"
        models = {model: self._of(model, question, policy) for model in self._endpoints.pools if model in policy.models}
        answer = ProbeResponse(self._region, self._agent, models, policy.spillover.credit_ttl_s)
        return 200, probe.seal_response(answer, question, self._key)

    def _of(self, model: str, question: ProbeRequest, policy: Policy) -> ModelReadiness:
        if self.leaving:
            return ModelReadiness(ready=False, expected_wait_s=0.0)
        wait_s = min(MAX_WAIT_S, self._waiting.wait_s(model))
        return ModelReadiness(self._endpoints.pool(model).ready > 0, wait_s, self._grant(model, question, policy))

    def _grant(self, model: str, question: ProbeRequest, policy: Policy) -> int:
        pool = self._endpoints.pool(model)
        in_flight = pool.in_flight + self._waiting.waiting(model)
        agents = self._agents_here()
        rank = agents.index(self._agent) if self._agent in agents else 0
        headroom = fair_part(
            headroom_slots(in_flight, pool.slots, policy.spillover.target_utilisation), rank, len(agents)
        )
        plan = self._plan()
        if plan is not None and self._region in plan.closed_for(model):
            headroom = 0  # whoever closed this region wants it empty, not filled up on credit
        grants, given = grant(
            self._grants.get(model, Grants()),
            f"{question.origin}/{question.agent}",
            question.wanted.get(model, 0),
            headroom,
            self._clock(),
            policy.spillover.credit_ttl_s,
        )
        self._grants[model] = grants
        return given
