"""The entry region of each request of a demand, and the residency class that the entry region assigns to it."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.health.region_health import RegionState
from penstock.policy.geography import Location
from penstock.policy.policy import Policy
from penstock.policy.residency import Mask, RequestFacts, ResidencyClass
from penstock.routing.decision import authorize_at_origin
from penstock.routing.reasons import Reason, Refusal
from penstock.routing.steering import Client, SteeringAdvisor
from penstock.what_if.demand_outcomes import Capacity, DemandGroup

Entered = tuple[str, ResidencyClass]
"""The entry region of a request, and its residency class."""


class EntryResolver:
    """Determines the entry region of requests under one policy and fleet, with its lost and drained regions."""

    def __init__(
        self, policy: Policy, fleet: Sequence[Capacity], lost: frozenset[str], drained: frozenset[str] = frozenset()
    ) -> None:
        self._policy = policy
        self._lost = lost
        self._steer = SteeringAdvisor(policy)
        self._ready = {(pool.region, pool.model) for pool in fleet if pool.region not in lost}
        self._states = dict.fromkeys(policy.regions, RegionState.HEALTHY)
        self._states |= dict.fromkeys(drained & policy.regions.keys(), RegionState.DRAINING)
        self._states |= dict.fromkeys(lost & policy.regions.keys(), RegionState.FAILED)

    def has(self, permitted: ResidencyClass, model: str) -> bool:
        """Whether any permitted region that is not lost runs the model."""
        return any((region, model) in self._ready for region in permitted.regions)

    def enter(self, group: DemandGroup) -> Entered | Refusal:
        """The entry region: the origin, or the nearest permitted region if the origin is lost or not permitted; without
        an origin, the best entry that steering recommends."""
        policy = self._policy
        tenant = policy.senders.get(group.tenant)
        if tenant is None:
            return Refusal(Reason.INVALID_API_KEY, f"no tenant is named {group.tenant!r}")
        place = Location(group.country, group.subdivision)
        if group.origin not in policy.regions:
            client = Client(place, tenant.name, group.model)
            advice = self._steer.advise(client, self._states, self._ready)
            if advice.refusal is not None:
                return advice.refusal
            candidates: tuple[str, ...] = tuple(entry.region for entry in advice.entries)
        else:
            candidates = (group.origin, *policy.nearest_first(group.origin, frozenset(policy.regions) - {group.origin}))
        facts = RequestFacts(tenant.name, tenant.data_class, place)
        refused = Refusal(Reason.NONE_READY, "every region that may process the request is lost")
        for region in candidates:
            answer = authorize_at_origin(policy, region, group.model, facts)
            if isinstance(answer, Mask):
                if region not in self._lost:
                    return region, answer.permitted
            elif answer.reason is not Reason.MISDIRECTED:
                return answer
        return refused
