"""For any rules, plan, fleet state and earlier attempts, a forbidden region never serves."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.health.region_health import RegionState
from penstock.planning.plan import Arc, ArcReason, ClassPlan, RegionPlan
from penstock.policy.geography import Location
from penstock.policy.kinds.models import Model
from penstock.policy.kinds.regions import Region
from penstock.policy.kinds.residency_rules import ResidencyRule
from penstock.policy.kinds.tenants import Tenant
from penstock.policy.policy import Policy
from penstock.policy.residency import RequestFacts, residency_class
from penstock.routing.decision import authorize_at_origin, decide
from penstock.routing.reasons import Reason, Refusal
from penstock.routing.region_selection import RegionChoice, RegionRequest, RegionView
from penstock.routing.weighted_sampler import accepts_full_share, sampler_of, samplers_of
from tests.support.examples import examples
from tests.support.planet import choose_region

NAMES = ("a", "b", "c", "d", "e")
COUNTRIES = ("DE", "US", "JP")

region_sets = st.frozensets(st.sampled_from(NAMES))
rules = st.builds(
    ResidencyRule,
    name=st.just("rule"),
    tenants=st.frozensets(st.sampled_from(["t", "other"])),
    data_classes=st.frozensets(st.sampled_from(["personal", "open"])),
    client_countries=st.frozensets(st.sampled_from(COUNTRIES)),
    allow=st.none() | region_sets,
    deny=region_sets,
)
policies = st.builds(
    Policy,
    regions=st.just({name: Region(name, "XX", float(n), float(n)) for n, name in enumerate(NAMES)}),
    models=st.just({"m": Model("m")}),
    tenants=st.just({"t": Tenant("t", "personal")}),
    residency=st.lists(rules, max_size=4).map(tuple),
)
views = st.dictionaries(
    st.sampled_from(NAMES),
    st.builds(
        RegionView,
        state=st.sampled_from(list(RegionState)),
        ready=st.booleans(),
        weight=st.floats(0, 1),
        expected_wait_s=st.floats(0, 100),
        credits=st.integers(0, 3),
    ),
)
facts = st.builds(
    RequestFacts,
    tenant=st.just("t"),
    data_class=st.sampled_from(["personal", "open"]),
    location=st.builds(Location, country=st.none() | st.sampled_from(COUNTRIES)),
)
arcs = st.lists(
    st.builds(Arc, server=st.sampled_from(NAMES), share=st.floats(0, 1), why=st.sampled_from(list(ArcReason))),
    max_size=4,
).map(tuple)
tried = st.dictionaries(st.sampled_from(NAMES), st.sampled_from([Reason.SATURATED, Reason.UNREACHABLE]))


def allowed_by_hand(policy: Policy, about: RequestFacts) -> set[str]:
    """Evaluate the rules region by region, independently of the mask's set arithmetic."""
    permitted = set()
    for region in policy.regions:
        verdicts = []
        for rule in policy.residency:
            matches = (
                about.tenant in (rule.tenants or {about.tenant})
                and about.data_class in (rule.data_classes or {about.data_class})
                and (not rule.client_countries or about.location.country in (*rule.client_countries, None))
            )
            if matches and rule.client_countries and about.location.country is None:
                return set()
            if matches:
                verdicts.append(region not in rule.deny and (rule.allow is None or region in rule.allow))
        if all(verdicts):
            permitted.add(region)
    return permitted


@settings(max_examples=examples(600), deadline=None)
@given(
    policies,
    facts,
    views,
    arcs,
    tried,
    st.sampled_from(NAMES),
    st.booleans(),
    st.integers(0, 2**16),
    st.sampled_from(("", *NAMES)),
    st.floats(0, 100),
)
def test_no_forbidden_region_is_ever_chosen(
    policy, about, live, plan_arcs, refused, origin, overflow, seed, stays_in, cached_s
) -> None:
    permitted = allowed_by_hand(policy, about)
    name = "+".join(sorted(permitted))
    plan = RegionPlan(origin, 1, 1, "digest", 0.0, (ClassPlan("m", name, plan_arcs, ()),))
    residency = authorize_at_origin(policy, origin, "m", about)
    if isinstance(residency, Refusal):
        assert set(residency.try_regions) <= permitted
        return
    assert set(residency.permitted.regions) == permitted
    request = RegionRequest(
        origin, "m", residency.permitted, refused, overflow, seed, cached_s=cached_s, stays_in=stays_in
    )
    decision = decide(policy, plan, residency, request, live, Random(seed))
    if isinstance(decision, Refusal):
        return
    assert origin in permitted, "a forbidden origin handles nothing"
    assert decision.choice.region in permitted
    assert decision.choice.region not in refused
    serving = live[decision.choice.region]
    assert serving.ready
    assert serving.state not in (RegionState.UNKNOWN, RegionState.FAILED, RegionState.DRAINING)
    if decision.choice.spends_credit or overflow:
        assert serving.credits > 0, "nobody is pushed more than they granted"


@settings(max_examples=examples(600), deadline=None)
@given(
    policies,
    views,
    views,
    arcs,
    region_sets,
    st.sampled_from(NAMES),
    st.dictionaries(st.sampled_from(NAMES), st.booleans()),
    st.dictionaries(st.sampled_from(NAMES), st.just("too dear")),
    st.floats(0, 1),
    st.integers(0, 2**16),
    st.none() | st.integers(0, 2**33),
)
def test_drawing_equals_the_full_decision(
    policy, others, servers, plan_arcs, regions, origin, closed, limited, ramp, seed, session
) -> None:
    permitted = residency_class(regions | {origin})
    plan = ClassPlan("m", permitted.name, plan_arcs, ())
    sampler = sampler_of(plan, origin)
    table = samplers_of(RegionPlan(origin, 1, 1, "digest", 0.0, (plan, ClassPlan("m", permitted.name, (), ()))))
    found = table.get(("m", permitted.name))
    if sampler is None and permitted.regions == {origin}:
        assert found is not None
        assert found.shares == {origin: 1.0}
    else:
        assert found == sampler
    if sampler is None:
        assert all(arc.share == 0.0 for arc in plan_arcs)
        return
    assert sampler.includes_home == any(arc.server == origin and arc.share > 0.0 for arc in plan_arcs)
    whole = {
        name: RegionView(RegionState.SUSPECT, True, 1.0, servers[name].expected_wait_s, servers[name].credits)
        if name in servers
        else RegionView(RegionState.HEALTHY, ready=True)
        for name in sampler.remote
    }
    assert all(accepts_full_share(view) for view in whole.values())
    home = {origin: RegionView(RegionState.HEALTHY, ready=True)} if sampler.includes_home else {}
    drawn = sampler.sample(Random(seed), session)
    live, rng = {**others, **whole, **home}, Random(seed)
    facts = {"closed": closed, "limited": limited, "ramp": ramp, "session": session}
    where = choose_region(policy, origin, permitted, plan, live, rng=rng, **facts)
    if not sampler.within(permitted):
        assert isinstance(where, Refusal) or where.region in permitted.regions
        return
    assert isinstance(where, RegionChoice)
    assert (where.region, where.why, where.spends_credit) == (drawn.region, drawn.why, drawn.spends_credit)


@given(views)
def test_a_draw_never_hides_a_region_below_its_share(live) -> None:
    for view in live.values():
        gone = view.state in (RegionState.UNKNOWN, RegionState.FAILED, RegionState.DRAINING)
        assert accepts_full_share(view) == (view.ready and view.weight == 1.0 and not gone)
