"""An explanation is the decision: same choice for the same draw, and a word on every region."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.decision import admit_at_origin, decide
from penstock.explain import Asked, Standing, explain
from penstock.geography import Location
from penstock.plan import ClassPlan, RegionPlan
from penstock.reasons import Reason, Refusal
from penstock.residency import RequestFacts, residency_class
from tests.property.test_decision_properties import COUNTRIES, NAMES, arcs, policies, tried, views

plans = st.none() | st.builds(
    lambda plan_arcs, regions, ramp: RegionPlan(
        "a", 7, 1, "d", 0.0, (ClassPlan("m", residency_class(regions).name, plan_arcs, ("d", "e")),), ramp
    ),
    arcs,
    st.frozensets(st.sampled_from(NAMES), min_size=1) | st.just(frozenset(NAMES)),
    st.floats(0, 1),
)
locations = st.builds(Location, country=st.none() | st.sampled_from(COUNTRIES))


@settings(max_examples=1000, deadline=None)
@given(policies, plans, locations, views, tried, st.sampled_from(NAMES), st.booleans(), st.integers(0, 2**16))
def test_what_is_told_is_what_is_decided(policy, plan, location, live, refused, origin, overflow, seed) -> None:
    asked = Asked(origin, "m", "t", location, refused, overflow)
    told = explain(policy, plan, asked, live, Random(seed))
    assert sorted(one.region for one in told.regions) == sorted(policy.regions)

    admitted = admit_at_origin(policy, origin, "m", RequestFacts("t", "personal", location))
    if isinstance(admitted, Refusal):
        assert told.refusal == admitted
        assert told.chosen is None
        assert {one.standing for one in told.regions} <= {Standing.FORBIDDEN, Standing.UNCONSIDERED}
        return
    decision = decide(policy, plan, origin, "m", admitted, live, Random(seed), tried=refused, overflow=overflow)
    by_name = {one.region: one for one in told.regions}
    forbidden = {name for name, one in by_name.items() if one.standing is Standing.FORBIDDEN}
    assert forbidden == policy.regions.keys() - admitted.permitted.regions
    for name in forbidden:
        reasons = {one.reason for one in by_name[name].reasons}
        assert reasons & {Reason.RESIDENCY_DENIED, Reason.RESIDENCY_NOT_ALLOWED}
    if isinstance(decision, Refusal):
        assert told.refusal == decision
        assert not any(one.chance for one in told.regions)
        return
    assert told.chosen == decision.where
    assert by_name[decision.where.region].chance > 0.0
    assert abs(sum(one.chance for one in told.regions) - 1.0) < 1e-9
    for one in told.regions:
        assert (one.standing is Standing.SERVES) == (one.chance > 0.0)
        if one.standing is Standing.REJECTED:
            assert one.reasons


@settings(max_examples=100, deadline=None)
@given(policies, plans, locations, views, st.sampled_from(NAMES), st.integers(0, 2**16))
def test_chances_are_those_of_the_draw(policy, plan, location, live, origin, seed) -> None:
    told = explain(policy, plan, Asked(origin, "m", "t", location), live, Random(seed))
    admitted = admit_at_origin(policy, origin, "m", RequestFacts("t", "personal", location))
    if told.chosen is None or isinstance(admitted, Refusal):
        return
    rng, seen = Random(seed), dict.fromkeys(policy.regions, 0)
    for _ in range(300):
        decision = decide(policy, plan, origin, "m", admitted, live, rng)
        assert not isinstance(decision, Refusal)
        seen[decision.where.region] += 1
    for one in told.regions:
        # Six standard deviations and a little: about once in 10^9 runs by chance.
        slack = 6 * (one.chance * (1 - one.chance) / 300) ** 0.5 + 0.01
        assert abs(seen[one.region] / 300 - one.chance) <= slack, one
