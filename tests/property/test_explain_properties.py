"""An explanation equals the decision: the same choice for the same draw, with a reason for every region."""

from __future__ import annotations

from collections import Counter, defaultdict
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.health.region_health import RegionState
from penstock.planning.plan import Arc, ArcReason, ClassPlan, RegionPlan
from penstock.policy.geography import Location
from penstock.policy.residency import RequestFacts, residency_class
from penstock.routing.decision import authorize_at_origin, decide
from penstock.routing.explain import ExplainQuery, RegionVerdict, explain
from penstock.routing.reasons import Reason, Refusal
from penstock.routing.region_selection import RegionRequest, RegionView
from tests.property.test_decision_properties import COUNTRIES, NAMES, arcs, policies, tried, views
from tests.support.examples import examples

plans = st.none() | st.builds(
    lambda plan_arcs, regions, ramp: RegionPlan(
        "a", 7, 1, "d", 0.0, (ClassPlan("m", residency_class(regions).name, plan_arcs, ("d", "e")),), ramp
    ),
    arcs,
    st.frozensets(st.sampled_from(NAMES), min_size=1) | st.just(frozenset(NAMES)),
    st.floats(0, 1),
)
STATES = (RegionState.HEALTHY, RegionState.HEALTHY, RegionState.RECOVERING, RegionState.FAILED)
lively = st.fixed_dictionaries(
    {
        name: st.builds(
            RegionView,
            state=st.sampled_from(STATES),
            ready=st.just(True),
            weight=st.sampled_from([1.0, 1.0, 0.3]),
            expected_wait_s=st.sampled_from([0.0, 2.0, 9.0]),
            credits=st.integers(0, 1),
        )
        for name in NAMES
    }
)
several_arcs = st.lists(
    st.builds(Arc, server=st.sampled_from(NAMES), share=st.floats(0.01, 1), why=st.sampled_from(list(ArcReason))),
    min_size=2,
    max_size=4,
    unique_by=lambda arc: arc.server,
).map(tuple)
seeds = st.integers(0, 2**16)
locations = st.builds(Location, country=st.none() | st.sampled_from(COUNTRIES))


@settings(max_examples=examples(600), deadline=None)
@given(policies, plans, locations, views, tried, st.sampled_from(NAMES), st.booleans(), st.integers(0, 2**16))
def test_an_explanation_equals_the_decision(policy, plan, location, live, refused, origin, overflow, seed) -> None:
    asked = ExplainQuery(origin, "m", "t", location, refused, overflow)
    reported = explain(policy, plan, asked, live, Random(seed))
    assert sorted(explained.region for explained in reported.regions) == sorted(policy.regions)

    residency = authorize_at_origin(policy, origin, "m", RequestFacts("t", "personal", location))
    if isinstance(residency, Refusal):
        assert reported.refusal == residency
        assert reported.chosen is None
        assert {explained.verdict for explained in reported.regions} <= {
            RegionVerdict.FORBIDDEN,
            RegionVerdict.UNCONSIDERED,
        }
        return
    request = RegionRequest(origin, "m", residency.permitted, refused, overflow)
    decision = decide(policy, plan, residency, request, live, Random(seed))
    by_name = {explained.region: explained for explained in reported.regions}
    forbidden = {name for name, explained in by_name.items() if explained.verdict is RegionVerdict.FORBIDDEN}
    assert forbidden == policy.regions.keys() - residency.permitted.regions
    for name in forbidden:
        reasons = {why.reason for why in by_name[name].reasons}
        assert reasons & {Reason.RESIDENCY_DENIED, Reason.RESIDENCY_NOT_ALLOWED}
    if isinstance(decision, Refusal):
        assert reported.refusal == decision
        assert not any(explained.chance for explained in reported.regions)
        return
    assert reported.chosen == decision.choice
    assert by_name[decision.choice.region].chance > 0.0
    assert abs(sum(explained.chance for explained in reported.regions) - 1.0) < 1e-9
    for explained in reported.regions:
        assert (explained.verdict is RegionVerdict.SERVES) == (explained.chance > 0.0)
        if explained.verdict is RegionVerdict.REJECTED:
            assert explained.reasons


@settings(max_examples=examples(200), deadline=None)
@given(policies, several_arcs, st.floats(0, 1), locations, lively, tried, st.sampled_from(NAMES), st.booleans(), seeds)
def test_chances_are_those_of_the_draw(policy, shares, ramp, location, live, refused, origin, overflow, seed) -> None:
    residency = authorize_at_origin(policy, origin, "m", RequestFacts("t", "personal", location))
    if isinstance(residency, Refusal):
        return
    plan = RegionPlan("a", 7, 1, "d", 0.0, (ClassPlan("m", residency.permitted.name, shares, ()),), ramp)
    rng, draws, seen = Random(seed), 200, Counter()
    for _ in range(draws):
        request = RegionRequest(origin, "m", residency.permitted, refused, overflow)
        decision = decide(policy, plan, residency, request, live, rng)
        if isinstance(decision, Refusal):
            return
        assert decision.choice in [option.choice for option in decision.options]
        seen[decision.choice.region] += 1
    chances: dict[str, float] = defaultdict(float)
    for option in decision.options:
        chances[option.choice.region] += option.probability
    for region, chance in chances.items():
        # Six standard deviations and a margin: exceeded by chance about once in 10^9 runs.
        slack = 6 * (chance * (1 - chance) / draws) ** 0.5 + 0.01
        assert abs(seen[region] / draws - chance) <= slack, region
