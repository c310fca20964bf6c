"""The endpoints that regions need: by demand, by reserve, and within the limits of a model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.planning.share_moves import Key
from penstock.policy.kinds.models import Model, Scaling
from penstock.policy.kinds.operations import Objective
from penstock.policy.kinds.regions import Region
from penstock.policy.kinds.spillover_and_failover import Spillover
from penstock.policy.policy import Policy
from penstock.scaling.replicas import Cause, EndpointCapacity, Expected, _levelled, _Load, needs

ALL = frozenset({"a", "b", "c"})
UNLIMITED = Scaling()
SIZE = EndpointCapacity(slots_per_endpoint=10.0, service_s=1.0)


def policy(*, reserve: bool = True, scaling: Scaling = UNLIMITED) -> Policy:
    """Three regions in a row."""
    return Policy(
        regions={name: Region(name, "DE", 50.0, 10.0 * number) for number, name in enumerate(sorted(ALL))},
        models={"m": Model("m", scaling=scaling)},
        tenants={},
        residency=(),
        spillover=Spillover(target_utilisation=0.8),
        objective=Objective(survive_one_loss=reserve),
    )


def endpoints(by: Policy, demand: dict[tuple[str, frozenset[str]], float]) -> dict[str, tuple[int, Cause]]:
    expected = {Key(origin, "m", "+".join(sorted(to))): Expected(rate, to) for (origin, to), rate in demand.items()}
    needed = needs(by, {(name, "m"): SIZE for name in by.regions}, expected)
    return {region: (need.endpoints, need.cause) for (region, _), need in needed.items()}


def test_demand_is_counted_in_its_nearest_permitted_region() -> None:
    demand = {("a", ALL): 80.0, ("a", frozenset({"c"})): 8.0, ("b", frozenset({"elsewhere"})): 50.0}
    assert endpoints(policy(reserve=False), demand) == {
        "a": (10, Cause.DEMAND),
        "b": (0, Cause.DEMAND),
        "c": (1, Cause.DEMAND),
    }


def test_the_reserve_for_a_loss_is_spread_over_the_regions_that_remain() -> None:
    # 100/s need 125 slots each at 80 %; after a loss 150 slots each in the other two.
    assert endpoints(policy(), {(name, ALL): 100.0 for name in ALL}) == dict.fromkeys("abc", (15, Cause.REGION_LOSS))


def test_confined_demand_has_its_reserve_where_it_may_be() -> None:
    needed = endpoints(policy(), {("a", frozenset({"a", "b"})): 40.0, ("c", ALL): 40.0})
    assert needed == {"a": (5, Cause.DEMAND), "b": (4, Cause.REGION_LOSS), "c": (5, Cause.DEMAND)}


@pytest.mark.parametrize(
    ("scaling", "wanted"),
    [
        (Scaling(min_endpoints=3), (3, Cause.MINIMUM)),
        (Scaling(max_endpoints=1), (1, Cause.MAXIMUM)),
    ],
)
def test_a_model_limits_its_endpoints(scaling: Scaling, wanted: tuple[int, Cause]) -> None:
    assert endpoints(policy(reserve=False, scaling=scaling), {("a", ALL): 16.0})["a"] == wanted


def loaded(slots: float, service_s: float) -> _Load:
    load = _Load(EndpointCapacity(10.0, service_s))
    load.slots = slots
    return load


loads = st.dictionaries(
    st.sampled_from("abcd"),
    st.builds(loaded, st.sampled_from((0.0, 5.0, 20.0, 21.0)), st.sampled_from((0.5, 1.0, 4.0))),
)


@given(loads.filter(len), st.floats(0.0, 200.0))
def test_demand_beyond_the_free_capacity_makes_the_numbers_of_slots_equal(of: dict[str, _Load], per_s: float) -> None:
    added = _levelled(of, frozenset(of), per_s)
    assert sum(added.values()) == pytest.approx(per_s)
    after = {name: load.slots + added.get(name, 0.0) * load.pool.service_s for name, load in of.items()}
    level = max((after[name] for name in added if added[name] > 1e-9), default=0.0)
    for name, load in of.items():
        if added.get(name, 0.0) > 1e-9:
            assert after[name] == pytest.approx(level)
        else:
            assert load.slots >= level - 1e-6


def test_a_reserve_uses_slots_that_demand_leaves_and_no_others() -> None:
    """At 80 % of its slots in use, a region has a fifth of them for another one's loss."""
    small = policy()
    expected = {
        Key("a", "m", "a+b"): Expected(40.0, frozenset({"a", "b"})),
        Key("b", "m", "b"): Expected(2.0, frozenset({"b"})),
    }
    sizes = {("a", "m"): EndpointCapacity(1.0, 1.0), ("b", "m"): EndpointCapacity(1.0, 4.0)}
    needed = needs(small, sizes, expected)
    assert (needed["a", "m"].exact, needed["a", "m"].lost) == (50.0, None)
    # 2/s of 4 s each, and 40/s of 4 s each if `a` is lost.
    assert (needed["b", "m"].exact, needed["b", "m"].lost) == (pytest.approx(8.0 + 160.0), "a")
