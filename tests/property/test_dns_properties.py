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
from penstock.policy.kinds.dns_names import DnsName, DnsStrategy
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
ENTRIES = [
    [RegionEntry(addresses=addresses) for addresses in ((v4,), (v6,), (v4, v6))] + [RegionEntry(cname=f"{n}.example")]
    for n, v4, v6 in ((n, f"192.0.2.{n}", f"2001:db8::{n}") for n in range(len(NAMES)))
]


def policy_of(entries: tuple[RegionEntry, ...], name: DnsName, residency: tuple[ResidencyRule, ...] = ()) -> Policy:
    return Policy(
        regions={region: Region(region, "XX", float(n), float(n), entry=entries[n]) for n, region in enumerate(NAMES)},
        models={"m": Model("m")},
        tenants={"t": Tenant("t", "personal"), "u": Tenant("u", "open")},
        residency=residency,
        dns_names={name.name: name},
    )


policies = st.builds(
    policy_of, st.tuples(*map(st.sampled_from, ENTRIES)), names, st.lists(rules, max_size=4).map(tuple)
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
    for shares in (answer.shares, *answer.shares_of_type.values()):
        assert not shares or abs(sum(shares.values()) - 1.0) < 1e-6
    for resolved in answer.regions:
        assert resolved in name.covers
        state = states[resolved]
        assert state.state not in (RegionState.FAILED, RegionState.DRAINING, RegionState.UNKNOWN)
        assert state.ready or (state.accepts_clients and _some_serves(policy, states, client))
        for tenant in name.tenants or policy.tenants:
            facts = RequestFacts(tenant, policy.tenants[tenant].data_class, client)
            assert resolved in _permitted_everywhere(policy, facts)


@settings(max_examples=examples(2000), deadline=None)
@given(
    st.tuples(*map(st.sampled_from, ENTRIES)), st.sampled_from(list(DnsStrategy)), region_sets, shares, st.integers()
)
def test_every_type_of_addresses_is_answered_if_a_live_region_has_it(
    entries: tuple[RegionEntry, ...], strategy: DnsStrategy, live: frozenset[str], weights: list[float], seed: int
) -> None:
    """Of a live region, by the shares among the regions that have it; in a failover order, of the primary alone."""
    name = a_name("x", covers=frozenset(NAMES), strategy=strategy, failover_order=NAMES)
    policy = policy_of(entries, name)
    fleet = NameServerView({each: EntryState(RegionState.HEALTHY, frozenset({"m"})) for each in live}, plans(weights))
    answer, rng = answer_name(policy, name, Question(), fleet), Random(seed)
    region = answer.draw(rng)
    if region is None:
        assert not live
        return
    found = {record.kind: record.content for record in answer.records(policy, name, region, rng)}
    entry_of = dict(zip(NAMES, entries, strict=True))
    if entry_of[region].cname:
        assert found == {"CNAME": f"{entry_of[region].cname}."}
        return
    assert "CNAME" not in found
    for kind, separator in (("A", "."), ("AAAA", ":")):
        having = {each for each in live for address in entry_of[each].addresses if separator in address}
        owner = next((each for each in NAMES if found.get(kind) in entry_of[each].addresses), None)
        if region in having or strategy is DnsStrategy.FAILOVER:
            assert owner == (region if region in having else None)
        else:
            assert owner in having or (owner is None and not having)


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


def _some_serves(policy: Policy, states: dict[str, EntryState], client: Location) -> bool:
    """Whether a region is ready that some tenant of the name may use, at the place of the query or at some place."""
    (name,) = policy.dns_names.values()
    places = [client] if client != NOWHERE else PLACES
    for tenant in name.tenants or policy.tenants:
        for place in places:
            verdict = mask(policy, RequestFacts(tenant, policy.tenants[tenant].data_class, place))
            # A rule may need the subdivision, which this place does not state.
            regions = verdict.permitted.regions if isinstance(verdict, Mask) else frozenset(NAMES)
            absent = (RegionState.FAILED, RegionState.DRAINING, RegionState.UNKNOWN)
            if any(
                region in states and states[region].ready and states[region].state not in absent for region in regions
            ):
                return True
    return False


def _is_client(policy: Policy, place: Location) -> bool:
    (name,) = policy.dns_names.values()
    if not name.client_countries and not name.client_subdivisions:
        return True
    return place.country in name.client_countries or f"{place.country}-{place.subdivision}" in name.client_subdivisions
