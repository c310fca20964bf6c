"""The spill credits that this agent requests from other regions, and the credits that it grants to other regions."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

from penstock.admission.region_queues import RegionQueues
from penstock.fleet.expected_wait import headroom_slots
from penstock.meters.demand_meter import DemandMeter
from penstock.planning.plan import RegionPlan
from penstock.policy.kinds.spillover_and_failover import Spillover
from penstock.policy.policy import Policy
from penstock.pools.context_lengths import NO_ENDPOINTS
from penstock.routing.spill_credits import (
    BATCH_RESERVE,
    MAX_WANTED,
    AgentRank,
    Grants,
    agent_part,
    batch_headroom,
    grant,
    shared_headroom,
    wanted,
)
from penstock.wire.peer_probe import PeerProbeRequest
from regional_agent.endpoints.endpoint_set import EndpointSet


class CreditBalances:
    """Spill credits by model, computed from the load and the demand of this region."""

    def __init__(
        self,
        agent: str,
        endpoints: EndpointSet,
        queues: RegionQueues[Any],
        demand: DemandMeter,
        *,
        agents_here: Callable[[], tuple[str, ...]],
        clock: Callable[[], float],
    ) -> None:
        """Create the balances of an agent that has granted no credits.

        Args:
            agent: name of this agent.
            endpoints: the endpoints of this region.
            queues: the admission queue of this agent.
            demand: the rate at which clients send requests to this agent.
            agents_here: names of this region's agents, in an order that all of them agree on.
            clock: monotonic, in seconds.
        """
        self._agent = agent
        self._endpoints = endpoints
        self._queues = queues
        self._demand = demand
        self._agents_here = agents_here
        self._clock = clock
        self._grants: dict[str, Grants] = {}
        self._batch_grants: dict[str, Grants] = {}

    def wanted(self, model: str, spillover: Spillover) -> int:
        """The number of credits that this agent requests from each other region for a model.

        The credits that models with shared slots need together are divided among these models by their demand.
        """
        pool, coupled = self._endpoints.pools[model], self._endpoints.groups.coupled(model)
        now = self._clock()
        in_flight, slots, per_s = pool.in_flight, pool.slots, self._demand.per_s(model, now)
        waiting, part = self._queues.waiting(model), 1.0
        if coupled:
            loads = self._endpoints.groups.loads(coupled, self._endpoints.pools)
            in_flight, slots = sum(load.in_flight for load in loads), sum(load.slots for load in loads)
            waiting = sum(self._queues.waiting(name) for name in coupled)
            total_per_s = sum(self._demand.per_s(name, now) for name in coupled)
            part, per_s = per_s / total_per_s if total_per_s > 0.0 else 0.0, total_per_s
        lacking = wanted(
            max(0, in_flight + waiting - self._queues.preemptible(model, NO_ENDPOINTS)),
            slots,
            spillover.target_utilisation,
            pool.service_s,
            per_s,
            spillover.credit_ttl_s,
        )
        return ceil(part * lacking)

    def batch_wanted(self, model: str, spillover: Spillover) -> int:
        """The number of batch credits that this agent requests from each other region for a model.

        They are for the batch requests that wait here, and for those that will arrive while the credits are valid: a
        batch request that could start here starts in a cheaper region, if that region has granted a credit before.
        """
        arriving = ceil(self._demand.batch_per_s(model, self._clock()) * spillover.credit_ttl_s)
        return min(MAX_WANTED, self._queues.batch_waiting_here(model) + arriving)

    def grant(self, model: str, request: PeerProbeRequest, policy: Policy, plan: RegionPlan | None) -> int:
        """Grant credits to the agent that sent a probe, out of this agent's part of the region's headroom.

        Args:
            model: the model that the credits are for.
            request: the probe, which contains the origin and the requested credits.
            policy: the policy in force.
            plan: the plan in force; a region that the plan closes grants no credits.
        """
        headroom = self.headroom(model, request.server, policy, plan)
        grants, granted = grant(
            self._grants.get(model, Grants()),
            f"{request.origin}/{request.agent}",
            request.wanted.get(model, 0),
            headroom,
            self._clock(),
            policy.spillover.credit_ttl_s,
        )
        self._grants[model] = grants
        return granted

    def grant_batch(self, model: str, request: PeerProbeRequest, policy: Policy, plan: RegionPlan | None) -> int:
        """Grant batch credits to the agent that sent a probe; as `grant`, which is called before.

        Batch credits are granted out of what the credits for requests with a priority leave, less one slot of the
        region unless requests with a priority wait before they end batch requests. Credits for requests with a
        priority are granted as if there were no batch credits.
        """
        wanted = request.batch_wanted.get(model, 0)
        if not wanted and model not in self._batch_grants:
            return 0
        headroom = batch_headroom(
            self._headroom(model, request.server, policy, plan, for_batch=True),
            0 if policy.preempts_batch(model) else self.granted(model),
            self._queues.batch_waiting_here(model),
        )
        grants, granted = grant(
            self._batch_grants.get(model, Grants()),
            f"{request.origin}/{request.agent}",
            wanted,
            headroom,
            self._clock(),
            policy.spillover.credit_ttl_s,
        )
        self._batch_grants[model] = grants
        return granted

    def granted(self, model: str) -> int:
        """Unexpired credits for requests with a priority that this agent has granted for a model."""
        return self._grants.get(model, Grants()).outstanding(self._clock())

    def headroom(self, model: str, region: str, policy: Policy, plan: RegionPlan | None) -> int:
        """This agent's part of the free slots of a model's pool, less the credits of models that share the slots.

        Args:
            region: this agent's region; a region that `plan` closes has no headroom.
        """
        return self._headroom(model, region, policy, plan, for_batch=False)

    def _headroom(self, model: str, region: str, policy: Policy, plan: RegionPlan | None, *, for_batch: bool) -> int:
        """As `headroom`. For batch credits, BATCH_RESERVE slots may not be free, and those of other models count.

        Batch requests that wait count for neither.
        """
        if plan is not None and region in plan.closed_for(model):
            return 0
        agents, target = self._agents_here(), policy.spillover.target_utilisation
        agent = AgentRank(agents.index(self._agent) if self._agent in agents else 0, len(agents))
        # Requests with a priority that wait for a slot need no reserve.
        is_full = policy.preempts_batch(model) and policy.preemption_patience_s(model, 1.0) > 0.0
        reserve = BATCH_RESERVE if for_batch and not is_full else 0
        coupled = self._endpoints.groups.coupled(model)
        if coupled:
            waiting = {name: self._queues.waiting(name) for name in coupled}
            waiting[model] += reserve
            now, granted = self._clock(), {}
            for name in sorted(set(coupled) - {model}):
                granted[name] = self.granted(name)
                if for_batch and name in self._batch_grants:
                    granted[name] += self._batch_grants[name].outstanding(now)
            return shared_headroom(
                model,
                self._endpoints.groups.loads(coupled, self._endpoints.pools),
                waiting,
                granted,
                target,
                agent,
            )
        pool = self._endpoints.pools[model]
        in_flight = pool.in_flight + self._queues.waiting(model) + reserve
        if not for_batch:
            # Requests with a priority end these on arrival.
            in_flight = max(0, in_flight - self._queues.preemptible(model, NO_ENDPOINTS))
        return agent_part(headroom_slots(in_flight, pool.slots, target), agent)
