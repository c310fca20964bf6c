"""Properties of recommended capacity: it serves the demand, also without any one region, and wastes little."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.planning.share_moves import Key
from penstock.policy.kinds.models import Model, Scaling
from penstock.policy.kinds.operations import Objective
from penstock.policy.kinds.regions import Region
from penstock.policy.kinds.spillover_and_failover import Spillover
from penstock.policy.policy import Policy
from penstock.policy.residency import residency_class
from penstock.scaling.replicas import EndpointCapacity, Expected, Need, needs
from tests.support.examples import examples
from tests.support.planner_worlds import NAMES, TARGET, subsets

Demand = dict[tuple[str, frozenset[str]], float]

demands = st.dictionaries(st.tuples(st.sampled_from(NAMES), subsets), st.floats(0.0, 500.0), max_size=8)
slots = st.floats(1.0, 64.0)


def needed(demand: Demand, servers: frozenset[str], per_endpoint: float, *, reserve: bool) -> dict[str, Need]:
    policy = Policy(
        regions={name: Region(name, "DE", 50.0, 10.0 * number) for number, name in enumerate(NAMES)},
        models={"m": Model("m", scaling=Scaling(max_endpoints=100_000))},
        tenants={},
        residency=(),
        spillover=Spillover(target_utilisation=TARGET),
        objective=Objective(survive_one_loss=reserve),
    )
    expected = {Key(origin, "m", residency_class(to).name): Expected(rate, to) for (origin, to), rate in demand.items()}
    pools = {(name, "m"): EndpointCapacity(per_endpoint, 1.0) for name in servers}
    return {region: need for (region, _), need in needs(policy, pools, expected).items()}


def subsets_of(regions: frozenset[str]) -> Iterator[frozenset[str]]:
    ordered = sorted(regions)
    return map(frozenset, chain.from_iterable(combinations(ordered, n) for n in range(len(ordered) + 1)))


def serves(capacity: dict[str, float], demand: Demand, up: frozenset[str]) -> bool:
    """Whether some assignment serves all demand that `up` may serve: no set of regions has more demand confined to it
    than it can serve (the max-flow min-cut theorem)."""
    return all(
        sum(rate for (_, to), rate in demand.items() if to & up and to & up <= some)
        <= sum(capacity[name] for name in some) + 1e-3
        for some in subsets_of(up)
    )


@settings(max_examples=examples(200), deadline=None)
@given(demands, subsets, slots)
def test_demand_is_served_also_without_any_one_region(
    demand: Demand, servers: frozenset[str], per_endpoint: float
) -> None:
    need = needed(demand, servers, per_endpoint, reserve=True)
    assert need.keys() == servers
    whole = {name: replicas.endpoints * per_endpoint for name, replicas in need.items()}
    target = {name: capacity * TARGET for name, capacity in whole.items()}
    assert serves(target, demand, servers)
    for lost in servers:
        assert serves(whole, demand, servers - {lost}), lost


@settings(max_examples=examples(200), deadline=None)
@given(demands, subsets, slots)
def test_no_more_than_one_endpoint_a_region_beyond_demand_without_reserve(
    demand: Demand, servers: frozenset[str], per_endpoint: float
) -> None:
    need = needed(demand, servers, per_endpoint, reserve=False)
    served = sum(rate for (_, to), rate in demand.items() if to & servers)
    used = sum(replicas.endpoints for replicas in need.values()) * per_endpoint
    assert served / TARGET - 1e-3 <= used <= served / TARGET + len(servers) * per_endpoint + 1e-3


@settings(max_examples=examples(200), deadline=None)
@given(demands, subsets, slots)
def test_the_reserve_never_exceeds_the_demand_of_the_largest_loss_in_a_region(
    demand: Demand, servers: frozenset[str], per_endpoint: float
) -> None:
    need = needed(demand, servers, per_endpoint, reserve=True)
    largest = max(replicas.requests_per_s for replicas in need.values())
    for replicas in need.values():
        assert (
            replicas.endpoints * per_endpoint
            <= max(replicas.requests_per_s / TARGET, replicas.requests_per_s + largest) + per_endpoint + 1e-3
        )
