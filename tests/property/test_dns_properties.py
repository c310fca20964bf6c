"""For any rules, plan, fleet and query, a name resolves to live regions that every rule permits to its tenants."""

from __future__ import annotations

from random import Random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.dns.name_answer import EntryState, NameServerView, Question, answer_name
from penstock.health.region_health import RegionState
from penstock.planning.plan import Arc, ArcReason, ClassPlan, RegionPlan
from penstock.policy.geography import NOWHERE, Location
from penstock.policy.kinds.dns_names import DnsStrategy
from penstock.policy.kinds.models import Model
from penstock.policy.kinds.region_entry import RegionEntry
from penstock.policy.kinds.regions import Region
from penstock.policy.kinds.residency_rules import ResidencyRule
from penstock.policy.kinds.tenants import Tenant
from penstock.policy.policy import Policy
from penstock.policy.residency import Mask, RequestFacts, mask
from penstock.routing.reasons import Reason
from penstock.verification.dns_checks import at_names
from penstock.verification.situations import situations
from tests.support.dns_names import a_name
from tests.support.examples import examples

NAMES = ("a", "b", "c", "d")
COUNTRIES = ("DE", "US", "JP")
PLACES = (*(Location(country) for country in COUNTRIES), Location("BR"), Location("US", "CA"), Location("US", "NY"))

region_sets = st.frozensets(st.sampled_from(NAMES))
rules = st.builds(
    ResidencyRule,
    name=st.just("rule"),
    tenants=st.frozensets(st.sampled_from(["t", "u"])),
    data_classes=st.frozensets(st.sampled_from(["personal", "open"])),
    client_countries=st.frozensets(st.sampled_from(COUNTRIES)),
    client_subdivisions=st.frozensets(st.sampled_from(["US-CA"])),
    allow=st.none() | region_sets,
    deny=region_sets,
)
names = st.builds(
    lambda **fields: a_name("x", **fields),
    tenants=st.sampled_from([(), ("t",), ("u",), ("t", "u")]),
    covers=region_sets,
    client_countries=st.frozensets(st.sampled_from([*COUNTRIES, "BR"]), max_size=2),
    client_subdivisions=st.frozensets(st.sampled_from(["US-CA", "US-NY"]), max_size=1),
    strategy=st.sampled_from(list(DnsStrategy)),
    failover_order=st.permutations(NAMES).map(tuple),
)
policies = st.builds(
    lambda residency, name: Policy(
        regions={
            region: Region(region, "XX", float(n), float(n), entry=RegionEntry(addresses=(f"192.0.2.{n}",)))
            for n, region in enumerate(NAMES)
        },
        models={"m": Model("m")},
        tenants={"t": Tenant("t", "personal"), "u": Tenant("u", "open")},
        residency=residency,
        dns_names={name.name: name},
    ),
    st.lists(rules, max_size=4).map(tuple),
    names,
)
fleets = st.dictionaries(
    st.sampled_from(NAMES),
    st.builds(
        EntryState,
        state=st.sampled_from(list(RegionState)),
        ready=st.sampled_from([frozenset(), frozenset({"m"})]),
        accepts_clients=st.booleans(),
        weight=st.floats(0, 1),
    ),
)
shares = st.lists(st.floats(0, 1), min_size=4, max_size=4)


def plans(weights: list[float]) -> dict[str, RegionPlan]:
    arcs = tuple(Arc(region, share, ArcReason.HOME) for region, share in zip(NAMES, weights, strict=True))
    return {origin: RegionPlan(origin, 1, 1, "", 0.0, (ClassPlan("m", "x", arcs, NAMES),)) for origin in NAMES}


@settings(max_examples=examples(400), deadline=None)
@given(policies, fleets, shares, st.sampled_from([NOWHERE, *PLACES]), st.sampled_from(PLACES), st.integers())
def test_answers_are_live_and_permitted(
    policy: Policy, states: dict[str, EntryState], weights: list[float], client: Location, near: Location, seed: int
) -> None:
    (name,) = policy.dns_names.values()
    near = near if client == NOWHERE else client
    answer = answer_name(policy, name, Question(client, near), NameServerView(states, plans(weights)))
    region = answer.draw(Random(seed))
    assert (region is None) is (not answer.shares)
    assert not answer.shares or abs(sum(answer.shares.values()) - 1.0) < 1e-6
    for resolved in answer.shares:
        assert resolved in name.covers
        state = states[resolved]
        assert state.state not in (RegionState.FAILED, RegionState.DRAINING, RegionState.UNKNOWN)
        assert state.ready or state.accepts_clients
        for tenant in name.tenants or policy.tenants:
            facts = RequestFacts(tenant, policy.tenants[tenant].data_class, client)
            assert resolved in _permitted_everywhere(policy, facts)


@settings(max_examples=examples(60), deadline=None)
@given(policies)
def test_the_verifier_finds_no_breach_in_any_policy(policy: Policy) -> None:
    assert at_names(policy, situations(policy)).breaches == ()


def _permitted_everywhere(policy: Policy, facts: RequestFacts) -> frozenset[str]:
    """The regions permitted to a tenant at the place of the query; at every place of the name if this is not enough."""
    verdict = mask(policy, facts)
    if isinstance(verdict, Mask):
        return verdict.permitted.regions
    if verdict.reason is Reason.NO_PERMITTED_REGION:
        return frozenset()
    country = facts.location.country
    places = [place for place in PLACES if (_is_client(policy, place) if country is None else place.country == country)]
    verdicts = [mask(policy, msgspec.structs.replace(facts, location=place)) for place in places]
    known = [each for each in verdicts if isinstance(each, Mask) or each.reason is not Reason.LOCATION_UNKNOWN]
    regions = [each.permitted.regions if isinstance(each, Mask) else frozenset[str]() for each in known]
    return frozenset(NAMES).intersection(*regions)


def _is_client(policy: Policy, place: Location) -> bool:
    (name,) = policy.dns_names.values()
    if not name.client_countries and not name.client_subdivisions:
        return True
    return place.country in name.client_countries or f"{place.country}-{place.subdivision}" in name.client_subdivisions
