"""The endpoints that each region needs for each model: for expected demand, and in reserve for the loss of a region.

Demand is counted in its nearest permitted region that has the model, regardless of the current plan: a region with too
few endpoints spills demand, but still needs the endpoints. The reserve for each loss uses free capacity first; the
remainder is placed in the regions with the fewest slots.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from math import ceil

import msgspec

from penstock.planning.share_moves import Key
from penstock.policy.kinds.regions import RegionRole
from penstock.policy.policy import Policy

ROUNDING = 1e-6
"""Part of an endpoint up to which a number of endpoints is rounded down."""


class Cause(StrEnum):
    """What determines the number of endpoints."""

    DEMAND = "demand"
    """Expected demand, at the target utilisation of the policy."""
    OBJECTIVE = "objective"
    """Expected demand, at the lower utilisation that the service objective of the model was found to need."""
    PEAK = "peak"
    """The highest demand of the last hours, which fades, at full utilisation."""
    QUEUE = "queue"
    """Requests that wait although all ready endpoints are in use."""
    REGION_LOSS = "region_loss"
    """Demand that would arrive after the loss of one region."""
    MINIMUM = "minimum"
    """`min_endpoints` of the model."""
    MAXIMUM = "maximum"
    """`max_endpoints` of the model; the need is higher."""


class EndpointCapacity(msgspec.Struct, frozen=True):
    """The capacity of one endpoint of a region for a model."""

    slots_per_endpoint: float
    """Concurrent requests of one endpoint."""
    service_s: float
    """Mean time (s) for which a request holds a slot."""
    max_utilisation: float | None = None
    """Share (0-1) of the slots that demand may fill, if it is below the target utilisation of the policy."""


class Expected(msgspec.Struct, frozen=True):
    """Expected demand of one origin in one traffic class."""

    requests_per_s: float
    regions: frozenset[str]
    """The regions that may serve the demand."""
    measured_per_s: float = 0.0
    """Measured demand without what is forecast, smoothed."""


class Need(msgspec.Struct, frozen=True):
    """The endpoints that one region needs for one model."""

    endpoints: int
    requests_per_s: float
    """Expected demand whose nearest permitted region this is."""
    cause: Cause
    lost: str | None = None
    """The region whose loss determines the number, or asks for more than the maximum; None for other causes."""
    exact: float = 0.0
    """The number before it is rounded up and limited."""
    measured_per_s: float = 0.0
    """Measured demand whose nearest permitted region this is, smoothed."""


class _Load:
    """One region's slots for one model while the needs are computed."""

    __slots__ = ("lost", "measured_per_s", "per_s", "pool", "slots")

    def __init__(self, pool: EndpointCapacity) -> None:
        self.pool = pool
        self.per_s = self.measured_per_s = 0.0
        self.slots = 0.0
        """Slots needed for the demand and losses that were placed so far."""
        self.lost: str | None = None
        """The region whose loss last raised `slots`; None if demand determines them."""


def needs(
    policy: Policy,
    pools: Mapping[tuple[str, str], EndpointCapacity],
    expected: Mapping[Key, Expected],
    lost: Collection[tuple[str, str]] = (),
) -> dict[tuple[str, str], Need]:
    """The endpoints that each (region, model) needs.

    Args:
        policy: distances, the target utilisation, whether to survive a loss, and the limits of each model.
        pools: every (region, model) that can have endpoints.
        expected: the demand to serve, by origin and traffic class. Demand that no region of `pools` may serve is
            ignored.
        lost: every (region, model) that is lost; demand that it would serve counts in standby regions first.
    """
    by_model: dict[str, dict[str, _Load]] = {}
    for (region, model), pool in sorted(pools.items()):
        if region in policy.regions and model in policy.models:
            by_model.setdefault(model, {})[region] = _Load(pool)
    demands: dict[str, list[tuple[str, Expected]]] = {}
    for key, demand in sorted(expected.items()):
        if demand.requests_per_s > 0.0 and key.origin in policy.regions:
            demands.setdefault(key.model, []).append((key.origin, demand))
    found = {}
    for model, loads in by_model.items():
        _place(policy, loads, demands.get(model, []), frozenset(at for at, of in lost if of == model))
        for region, load in loads.items():
            found[region, model] = _limited(policy, model, load)
    return found


def _place(
    policy: Policy, loads: Mapping[str, _Load], demands: list[tuple[str, Expected]], away: frozenset[str]
) -> None:
    """Count the slots that one model's demand needs, and the slots for the loss of each region."""
    placed: list[tuple[str, float, frozenset[str]]] = []
    for origin, demand in demands:
        servers = demand.regions & loads.keys()
        if servers:
            home = policy.nearest_first(origin, servers | (demand.regions & away))[0]
            if home in away:
                gone, home = home, _successor(policy, origin, servers, away)
                loads[home].lost = gone
            loads[home].per_s += demand.requests_per_s
            loads[home].measured_per_s += demand.measured_per_s
            placed.append((home, demand.requests_per_s, _reserves(policy, servers - {home})))
    for load in loads.values():
        target = load.pool.max_utilisation or policy.spillover.target_utilisation
        load.slots = load.per_s * load.pool.service_s / target
    if not policy.objective.survive_one_loss:
        return
    # Demand with the fewest alternatives and the largest losses come first, since later losses can reuse their slots.
    placed.sort(key=lambda moved: len(moved[2]))
    for lost in sorted(loads, key=lambda region: (-loads[region].slots, region)):
        _reserve(loads, lost, [(per_s, others) for home, per_s, others in placed if home == lost and others])


def _successor(policy: Policy, origin: str, servers: frozenset[str], away: frozenset[str]) -> str:
    """The region whose endpoints take over the demand of a lost region: a standby region if one is permitted."""
    others = policy.nearest_first(origin, servers - away or servers)
    return next((name for name in others if policy.regions[name].is_standby), others[0])


def _reserves(policy: Policy, others: frozenset[str]) -> frozenset[str]:
    """The regions that hold the reserve for a loss: passive regions if there are any, and never a pilot light."""
    passive = frozenset(name for name in others if policy.regions[name].role is RegionRole.PASSIVE)
    return passive or frozenset(name for name in others if not policy.regions[name].is_standby)


def _reserve(loads: Mapping[str, _Load], lost: str, moved: list[tuple[float, frozenset[str]]]) -> None:
    """Count the slots for the demand that moves when a region is lost."""
    used = {region: load.per_s * load.pool.service_s for region, load in loads.items()}
    for per_s, others in moved:
        for region in sorted(others):
            load = loads[region]
            fits = min(per_s, max(0.0, load.slots - used[region]) / load.pool.service_s)
            used[region] += fits * load.pool.service_s
            per_s -= fits
        for region, added in _levelled(loads, others, per_s).items():
            load = loads[region]
            used[region] += added * load.pool.service_s
            if used[region] > load.slots:
                load.slots, load.lost = used[region], lost


def _levelled(loads: Mapping[str, _Load], regions: frozenset[str], per_s: float) -> dict[str, float]:
    """Divide demand beyond the free capacity: regions with the fewest slots receive more, up to equal numbers."""
    ordered = sorted(regions, key=lambda region: (loads[region].slots, region))
    steps: list[float] = []
    """Slots by which each level is higher than the one before; the first regions, up to the step's, receive them."""
    per_slot = 0.0
    for count, region in enumerate(ordered, 1):
        per_slot += 1.0 / loads[region].pool.service_s
        slots = per_s / per_slot
        if count < len(ordered):
            slots = min(slots, loads[ordered[count]].slots - loads[region].slots)
        steps.append(slots)
        per_s -= slots * per_slot
        if per_s <= 0.0:
            break
    added, received = {}, 0.0
    for region, slots in zip(reversed(ordered[: len(steps)]), reversed(steps), strict=True):
        received += slots
        added[region] = received / loads[region].pool.service_s
    return added


def _limited(policy: Policy, model: str, load: _Load) -> Need:
    """The endpoints for a load, within the limits of the model."""
    scaling = policy.models[model].scaling
    exact = load.slots / load.pool.slots_per_endpoint
    wanted = ceil(exact - ROUNDING)
    cause, lost = Cause.DEMAND if load.pool.max_utilisation is None else Cause.OBJECTIVE, load.lost
    if wanted > scaling.max_endpoints:
        wanted, cause = scaling.max_endpoints, Cause.MAXIMUM
    elif wanted < scaling.min_endpoints:
        wanted, cause, lost = scaling.min_endpoints, Cause.MINIMUM, None
    elif lost is not None:
        cause = Cause.REGION_LOSS
    return Need(wanted, load.per_s, cause, lost, exact, load.measured_per_s)
