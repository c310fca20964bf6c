"""Chooses the region that a DNS name resolves to: residency, then health, then the strategy of the name.

An answer for a type of addresses is chosen among the regions that have such addresses: where some regions have IPv4 and
others IPv6 addresses alone, either client reaches a region. The primary of a failover order is answered alone, whatever
addresses it has.

Every server with the same plan and the same view of health gives answers of the same distribution, without any state of
its own. The weights are those by which agents draw regions (`plan_shares`), and the order of entries is that of
steering (`ranked`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

import msgspec
from msgspec import UNSET

from penstock.dns.permitted_regions import permitted_regions, serving_regions
from penstock.dns.zone_records import ADDRESS_TYPES, Record, has_cname, has_type, region_records
from penstock.health.region_health import RegionState
from penstock.planning.plan import RegionPlan
from penstock.policy.geography import NOWHERE, Location
from penstock.policy.kinds.dns_names import DnsName, DnsStrategy
from penstock.policy.kinds.region_entry import RegionEntry
from penstock.policy.policy import Policy
from penstock.policy.residency import residency_class
from penstock.routing.reasons import Reason, Rejection
from penstock.routing.region_selection import NOTHING_TRIED, RegionView, plan_shares
from penstock.routing.steering import ranked

_ABSENT = {
    RegionState.UNKNOWN: Reason.REGION_UNKNOWN,
    RegionState.FAILED: Reason.REGION_FAILED,
    RegionState.DRAINING: Reason.REGION_DRAINING,
}

_GOLDEN_RATIO = (5**0.5 - 1) / 2

JITTER = 0.01
"""Width of the random part of each draw."""


class EntryState(msgspec.Struct, frozen=True):
    """The state of one region as an entry."""

    state: RegionState
    ready: frozenset[str] = frozenset()
    """Models with a ready endpoint in the region."""
    accepts_clients: bool = False
    """Whether a region without endpoints accepts clients, whose requests it forwards or burst endpoints serve."""
    weight: float = 1.0
    """Part (0-1) of its share that the region may receive; below 1 during its failback ramp."""
    asleep: frozenset[str] = frozenset()
    """Models of which no endpoint is ready while the region accepts clients. Those that are loaded on demand wake."""
    burst: frozenset[str] = frozenset()
    """Models that burst endpoints alone can serve in the region."""


_NOT_KNOWN = EntryState(RegionState.UNKNOWN)


class NameServerView(msgspec.Struct, frozen=True):
    """What a name server sees of the fleet."""

    states: Mapping[str, EntryState]
    """State by region; a region without one is unknown."""
    plans: Mapping[str, RegionPlan]
    """The newest plan of each origin; empty before the first plan."""


class Question(msgspec.Struct, frozen=True):
    """What a query states about the client."""

    client: Location = NOWHERE
    """Location of the client subnet; NOWHERE without a client subnet. Residency depends on it."""
    near: Location = NOWHERE
    """Location of the client subnet, else of the resolver; only distances depend on it."""


class EvenDraws:
    """Numbers that are spread evenly over 0 to 1, also a few of them in a row.

    A server in front that caches answers for a second asks for few: shares hold within seconds, and not minutes.

    Each number is the one before plus the golden ratio (the additive recurrence of least discrepancy). A small random
    part keeps one that asks at a fixed interval from receiving nearly the same number each time.
    """

    def __init__(self, rng: Random) -> None:
        """Start anywhere, as other servers do."""
        self._rng = rng
        self._at = rng.random()

    def random(self) -> float:
        """Return the next number (0-1)."""
        self._at = (self._at + _GOLDEN_RATIO + JITTER * (self._rng.random() - 0.5)) % 1.0
        return self._at


class NameAnswer(msgspec.Struct, frozen=True):
    """The answer for one name, before it is written as records."""

    shares: dict[str, float]
    """Probability (0-1) of each region; empty if no permitted region is live."""
    permitted: frozenset[str]
    rejected: tuple[Rejection, ...] = ()
    live: int = 0
    """Number of permitted regions that may be answered now."""
    shares_of_type: Mapping[str, dict[str, float]] = {}
    """By type of addresses (`A`, `AAAA`) that a region of `shares` lacks: the probability (0-1) of each region that has
    them. A type that no live region has is absent."""

    @property
    def regions(self) -> frozenset[str]:
        """The regions that the name may resolve to."""
        return frozenset(self.shares).union(*self.shares_of_type.values())

    def draw(self, rng: Random | EvenDraws) -> str | None:
        """Return one region by its probability; None without a live region."""
        return _drawn(self.shares, rng)

    def records(self, policy: Policy, name: DnsName, region: str, rng: Random) -> list[Record]:
        """Return the records of an answer for which `region` was drawn.

        Addresses of a type that the region lacks are those of another region, drawn for this type.
        """
        found = region_records(policy, name, region)
        for kind, shares in self.shares_of_type.items():
            if all(record.kind not in (kind, "CNAME") for record in found):
                other = _drawn(shares, rng)
                found += [each for each in region_records(policy, name, other) if each.kind == kind] if other else []
        return found


def answer_name(policy: Policy, name: DnsName, question: Question, fleet: NameServerView) -> NameAnswer:
    """Return the regions that a name resolves to for one client, with their probabilities."""
    permitted = permitted_regions(policy, name, question.client)
    models = name.models or tuple(policy.models)
    live, rejected = _live(policy, name, question.client, permitted, fleet)
    if not live:
        return NameAnswer({}, permitted, rejected)

    def chosen(among: Mapping[str, EntryState]) -> dict[str, float]:
        match name.strategy:
            case DnsStrategy.FAILOVER:
                shares = {next(region for region in name.failover_order if region in among): 1.0}
            case DnsStrategy.NEAREST:
                if question.near.country is None:
                    shares = _mean([_of_origin(policy, origin, among) for origin in sorted(permitted)])
                else:
                    shares = {_nearest(policy, question.near, among): 1.0}
            case DnsStrategy.SHARES:
                shares = _planned(policy, question.near, permitted, models, among, fleet.plans)
        return _checked(shares, permitted)

    shares = chosen(live)
    of_type: dict[str, dict[str, float]] = {}
    for kind in ADDRESS_TYPES if name.strategy is not DnsStrategy.FAILOVER else ():
        if not all(has_type(policy, region, kind) or has_cname(policy, region) for region in shares):
            having = {region: state for region, state in live.items() if has_type(policy, region, kind)}
            if having:
                of_type[kind] = chosen(having)
    return NameAnswer(shares, permitted, rejected, len(live), of_type)


def is_absent(state: RegionState) -> bool:
    """Whether a region in this state is in no answer."""
    return state in _ABSENT


def _live(
    policy: Policy, name: DnsName, client: Location, permitted: frozenset[str], fleet: NameServerView
) -> tuple[dict[str, EntryState], tuple[Rejection, ...]]:
    """The permitted regions that may be answered now, and the reason against each other one.

    If no model is ready in any of them, those in which a model sleeps until requests need it. Regions without endpoints
    are live while a region serves that may process requests of the name's clients.
    """
    models = name.models or tuple(policy.models)
    forwards = any(region in permitted and state.accepts_clients for region, state in fleet.states.items()) and any(
        (each.ready | each.asleep | each.burst).intersection(models)
        for region in serving_regions(policy, name, client)
        if not is_absent((each := fleet.states.get(region, _NOT_KNOWN)).state)
    )
    live: dict[str, EntryState] = {}
    asleep: dict[str, EntryState] = {}
    rejected: list[Rejection] = []
    closed = closed_entries(fleet.plans)
    for region in sorted(permitted):
        entry, state = policy.regions[region].entry, fleet.states.get(region, _NOT_KNOWN)
        offered = [model for model in models if (region, model) not in closed]
        if not isinstance(entry, RegionEntry) or not (entry.addresses or entry.cname):
            rejected.append(Rejection(region, Reason.NOT_OFFERED, "the region has no entry addresses"))
        elif state.state in _ABSENT:
            rejected.append(Rejection(region, _ABSENT[state.state]))
        elif offered and ((state.accepts_clients and forwards) or state.ready.intersection(offered)):
            live[region] = state
        else:
            if any(policy.models[model].on_demand is not UNSET for model in state.asleep.intersection(offered)):
                asleep[region] = state
            is_closed = not offered or state.ready.intersection(models)
            rejected.append(Rejection(region, Reason.REGION_DRAINING if is_closed else Reason.MODEL_NOT_READY))
    if not live:
        return asleep, tuple(rejection for rejection in rejected if rejection.what not in asleep)
    return live, tuple(rejected)


def closed_entries(plans: Mapping[str, RegionPlan]) -> frozenset[tuple[str, str]]:
    """Return the regions that overrides close to the clients who enter there, as a drain does, each with a model.

    The plan of a region decides this. An override for the requests of one origin is in the plan of this origin alone:
    clients who enter at another region may be served by the closed one.
    """
    return frozenset(
        (region, closed.model) for region, plan in plans.items() for closed in plan.closed if closed.region == region
    )


def _nearest(policy: Policy, near: Location, live: Mapping[str, EntryState]) -> str:
    return ranked(policy, near, {region: view.state for region, view in live.items()})[0]


def _planned(
    policy: Policy,
    near: Location,
    permitted: frozenset[str],
    models: tuple[str, ...],
    live: Mapping[str, EntryState],
    plans: Mapping[str, RegionPlan],
) -> dict[str, float]:
    """The mean of the plan's shares over the traffic classes of the name, at the origin of the client.

    The origin is the permitted region nearest to the client, whatever its state: the plan states where the demand of a
    failed region goes. Where the client's place is unknown, all permitted regions are its origin equally: an origin
    without demand, whose shares no plan states, is one too, and would never have any demand otherwise.
    """
    order = ranked(policy, near, dict.fromkeys(permitted, RegionState.HEALTHY))
    views = {region: RegionView(view.state, True, view.weight) for region, view in live.items()}
    # Steering puts a suspect or recovering region last; the shares of the plan include it.
    by_distance = tuple(region for region in order if region in live)
    residency = residency_class(permitted).name
    found: list[dict[str, float]] = []
    for origin in order if near.country is None else order[:1]:
        plan = plans.get(origin)
        classes = [entry for entry in plan.classes if entry.model in models] if plan is not None else []
        exact = [entry for entry in classes if entry.residency == residency]
        of_classes = _mean(
            [
                plan_shares(entry, views, NOTHING_TRIED, by_distance, origin, 1.0)[0]
                for entry in exact or classes
                if entry.arcs
            ]
        )
        if not of_classes:
            of_classes = (
                _of_origin(policy, origin, live) if near.country is None else {_nearest(policy, near, live): 1.0}
            )
        found.append(of_classes)
    return _mean(found)


def _of_origin(policy: Policy, origin: str, live: Mapping[str, EntryState]) -> dict[str, float]:
    """The region of clients near an origin without shares: the origin or, if it is not healthy, the nearest to it."""
    healthy = {region for region, view in live.items() if view.state in (RegionState.HEALTHY, RegionState.DEGRADED)}
    candidates = frozenset(healthy or live)
    return {origin if origin in candidates else policy.nearest_first(origin, candidates)[0]: 1.0}


def _mean(shares: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of shares, without regions that have none; empty without any."""
    found: dict[str, float] = {}
    for each in shares:
        for region, share in each.items():
            found[region] = found.get(region, 0.0) + share
    total = sum(found.values())
    return {region: share / total for region, share in sorted(found.items()) if share > 0.0}


def _drawn(shares: Mapping[str, float], rng: Random | EvenDraws) -> str | None:
    if len(shares) < 2:
        return next(iter(shares), None)
    drawn, at = None, rng.random() * sum(shares.values())
    for region, share in shares.items():
        drawn = region
        at -= share
        if at < 0.0:
            break
    return drawn


def _checked(shares: dict[str, float], permitted: frozenset[str]) -> dict[str, float]:
    """The last check of every answer: no region outside the permitted ones, however it was chosen."""
    return {region: share for region, share in shares.items() if region in permitted}
