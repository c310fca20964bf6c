"""Recommends the entry regions of a client: the permitted ones, the best first, for DNS, SDKs and edge workers.

An entry region reads the request, so advice contains only regions that the residency mask permits; the same function
computes the mask in every other step. Advice for an unknown tenant contains only the regions that are permitted for
every tenant, and may be empty.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import reduce

import msgspec

from penstock.health.region_health import RegionState
from penstock.policy.entry_map import mapped
from penstock.policy.geography import NOWHERE, Location, estimated_rtt_ms, great_circle_km
from penstock.policy.kinds.regions import Region
from penstock.policy.model_versions import models_for
from penstock.policy.policy import Policy
from penstock.policy.residency import Mask, RequestFacts, mask, residency_class
from penstock.routing.reasons import Reason, Refusal, Rejection

STEADY_TTL_S = 60.0
"""Maximum cache time (s) of advice while every permitted region is healthy."""

CHANGING_TTL_S = 5.0
"""Maximum cache time (s) of advice while a permitted region is not healthy: clients then soon follow changes."""

MAX_MASKS = 16_384
"""Maximum number of cached residency masks; a full cache is cleared."""

_RANK = {
    RegionState.HEALTHY: 0,
    RegionState.DEGRADED: 0,
    RegionState.SUSPECT: 1,
    RegionState.RECOVERING: 1,
    RegionState.UNKNOWN: 2,
    RegionState.DRAINING: 3,
    RegionState.FAILED: 4,
}
"""Order of the states. A failed or draining region is recommended only if all permitted regions are failed or draining.
A degraded region keeps its clients, since the plan forwards the demand beyond its capacity."""

_ABSENT = {RegionState.DRAINING: Reason.REGION_DRAINING, RegionState.FAILED: Reason.REGION_FAILED}


class Client(msgspec.Struct, frozen=True):
    """The known properties of a client."""

    location: Location = NOWHERE
    tenant: str | None = None
    """Name of the tenant; None if unknown, as in DNS: only regions permitted for every tenant are then recommended."""
    model: str | None = None
    """Name of the requested model; None for any model."""


class Entry(msgspec.Struct, frozen=True):
    """One entry region."""

    region: str
    state: RegionState
    round_trip_ms: float | None
    """Expected round trip from the client, in milliseconds; None if the client's location is unknown."""
    serves_model: bool | None
    """Whether the requested model is ready in the region, so that requests need no forwarding; None without a model."""


class SteeringAdvice(msgspec.Struct, frozen=True):
    """Entry regions, the best first; empty if none is permitted, with the refusal."""

    entries: tuple[Entry, ...]
    ttl_s: float
    """Maximum time for which the advice may be cached, in seconds."""
    residency: str | None = None
    """Name of the residency class."""
    rejected: tuple[Rejection, ...] = ()
    refusal: Refusal | None = None


class SteeringAdvisor:
    """Recommends entry regions under one policy; residency masks are cached by tenant and location."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._masks: dict[tuple[str | None, str | None, str | None], Mask | Refusal] = {}

    def advise(
        self, client: Client, states: Mapping[str, RegionState], ready: Collection[tuple[str, str]]
    ) -> SteeringAdvice:
        """The entry regions for a client.

        Args:
            states: state by region; a region without a state counts as unknown.
            ready: pairs of region and model for which an endpoint is ready.
        """
        models = models_for(self._policy, client.model) if client.model is not None else ()
        if client.model is not None and not models:
            refusal = Refusal(Reason.MODEL_NOT_FOUND, f"no model named {client.model!r} is served here")
            return SteeringAdvice((), STEADY_TTL_S, refusal=refusal)
        residency = self._mask(client)
        if isinstance(residency, Refusal):
            return SteeringAdvice((), STEADY_TTL_S, rejected=residency.rejected, refusal=residency)
        permitted = residency.permitted
        here = {name: states.get(name, RegionState.UNKNOWN) for name in permitted.regions}
        fit = {name for name, state in here.items() if state not in _ABSENT} or set(here)
        rejected = [Rejection(name, _ABSENT[here[name]]) for name in sorted(here.keys() - fit)]
        trips_ms = round_trips_ms(self._policy, client.location)
        servers = {name for name in fit if any((name, model) in ready for model in models)}
        entries = [
            Entry(name, here[name], trips_ms.get(name), name in servers if client.model is not None else None)
            for name in ranked(self._policy, client.location, {name: here[name] for name in fit}, servers, trips_ms)
        ]
        steady = all(state is RegionState.HEALTHY for state in here.values())
        ttl_s = STEADY_TTL_S if steady else CHANGING_TTL_S
        return SteeringAdvice(tuple(entries), ttl_s, permitted.name, (*residency.rejected, *rejected))

    def _mask(self, client: Client) -> Mask | Refusal:
        about = (client.tenant, client.location.country, client.location.subdivision)
        known = self._masks.get(about)
        if known is None:
            if len(self._masks) >= MAX_MASKS:
                self._masks.clear()
            known = self._masks[about] = entry_mask(self._policy, client)
        return known


def ranked(
    policy: Policy,
    location: Location,
    states: Mapping[str, RegionState],
    servers: Collection[str] = (),
    trips_ms: Mapping[str, float] | None = None,
) -> list[str]:
    """The entry regions for a client, the best first: by state, entry maps, and distance.

    Args:
        states: state of each entry region; no other region is returned.
        servers: regions that have the requested model; empty for any model.
        trips_ms: the result of `round_trips_ms`, if it is known.
    """
    trips_ms = round_trips_ms(policy, location) if trips_ms is None else trips_ms
    places = {name: at for at, name in enumerate(mapped(policy, location))}
    unmapped = len(places)

    def reach_ms(name: str) -> float:
        """Distance (ms) through an entry region to the nearest region that has the model."""
        to_entry_ms = trips_ms.get(name, 0.0) + policy.bias_ms.get(name, 0.0)
        if not servers or name in servers:
            return to_entry_ms
        return to_entry_ms + min(policy.distance_ms(name, server) for server in servers)

    return sorted(states, key=lambda name: (_RANK[states[name]], places.get(name, unmapped), reach_ms(name), name))


def entry_mask(policy: Policy, client: Client) -> Mask | Refusal:
    """The regions that may read a client's requests; without a tenant, the regions that may read every tenant's."""
    if client.tenant is not None:
        tenant = policy.senders.get(client.tenant)
        if tenant is None:
            return Refusal(Reason.INVALID_API_KEY, f"no tenant is named {client.tenant!r}")
        return mask(policy, RequestFacts(tenant.name, tenant.data_class, client.location))
    masks = [mask(policy, facts) for facts in _senders(policy, client.location)]
    refused = next((result for result in masks if isinstance(result, Refusal)), None)
    if refused is not None:
        return Refusal(refused.reason, f"for some tenants {refused.detail}; name the tenant", refused.rejected)
    every = [mask for mask in masks if isinstance(mask, Mask)]
    permitted = reduce(frozenset.__and__, (mask.permitted.regions for mask in every), frozenset(policy.regions))
    rejected = tuple(dict.fromkeys(rejection for mask in every for rejection in mask.rejected))
    if not permitted:
        detail = "no region may read the requests of every tenant; name the tenant"
        return Refusal(Reason.NO_PERMITTED_REGION, detail, rejected)
    return Mask(residency_class(permitted), rejected)


def _senders(policy: Policy, location: Location) -> list[RequestFacts]:
    """Facts that represent every tenant: one per tenant that a rule names, and one per data class of other tenants."""
    named = {name for rule in policy.residency for name in rule.tenants}
    kinds = {(tenant.name if tenant.name in named else "", tenant.data_class) for tenant in policy.senders.values()}
    return [RequestFacts(name, data_class, location) for name, data_class in sorted(kinds)]


def round_trips_ms(policy: Policy, location: Location) -> dict[str, float]:
    """The expected round trip (ms) between a client and each region; empty if the client's location is unknown, or is a
    country without a region and coordinates.

    The estimate from geography is multiplied by the ratio of the measured to the estimated round trip between the
    region nearest to the client and the other region. A client with a country but without coordinates is placed at that
    country's first region.
    """
    regions = sorted(policy.regions.values(), key=lambda region: region.name)
    latitude_deg, longitude_deg = location.latitude_deg, location.longitude_deg
    if latitude_deg is None or longitude_deg is None:
        compatriot = next((region for region in regions if region.country == location.country), None)
        if compatriot is None:
            return {}
        latitude_deg, longitude_deg = compatriot.latitude_deg, compatriot.longitude_deg
    guesses_ms = {region.name: _guess_ms(latitude_deg, longitude_deg, region) for region in regions}
    nearest = policy.regions[min(guesses_ms, key=guesses_ms.__getitem__)]
    for name, measured_ms in policy.rtt_ms.get(nearest.name, {}).items():
        if name != nearest.name and name in guesses_ms:
            guesses_ms[name] *= measured_ms / _guess_ms(
                nearest.latitude_deg, nearest.longitude_deg, policy.regions[name]
            )
    return guesses_ms


def _guess_ms(latitude_deg: float, longitude_deg: float, region: Region) -> float:
    return estimated_rtt_ms(great_circle_km(latitude_deg, longitude_deg, region.latitude_deg, region.longitude_deg))
