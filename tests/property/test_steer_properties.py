"""For any rules and fleet state, advice never names a region that residency forbids the client."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.health.region_health import RegionState
from penstock.policy.kinds.tenants import Tenant
from penstock.policy.policy import Policy
from penstock.policy.residency import RequestFacts, mask
from penstock.routing.reasons import Refusal
from penstock.routing.steering import Client, SteeringAdvisor
from tests.property.test_decision_properties import NAMES, facts, policies
from tests.support.examples import examples

states = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(list(RegionState)))
ready = st.sets(st.sampled_from([(name, "m") for name in NAMES]))
TENANTS = (Tenant("t", "personal"), Tenant("u", "open"), Tenant("v", "personal"))


def with_tenants(policy: Policy) -> Policy:
    return msgspec.structs.replace(policy, tenants={tenant.name: tenant for tenant in TENANTS})


@settings(max_examples=examples(300), deadline=None)
@given(policies, facts, states, ready, st.none() | st.just("m"))
def test_entries_are_what_the_mask_permits(policy, about, live, has, model) -> None:
    policy = with_tenants(policy)
    permitted = mask(policy, RequestFacts("t", "personal", about.location))
    advice = SteeringAdvisor(policy).advise(Client(about.location, "t", model), live, has)
    if isinstance(permitted, Refusal):
        assert advice.entries == ()
        assert advice.refusal == permitted
    else:
        named = {entry.region for entry in advice.entries}
        assert named
        assert named <= permitted.permitted.regions


@settings(max_examples=examples(300), deadline=None)
@given(policies, facts, states, ready)
def test_advice_without_a_tenant_is_permitted_for_every_tenant(policy, about, live, has) -> None:
    policy = with_tenants(policy)
    advice = SteeringAdvisor(policy).advise(Client(about.location), live, has)
    for tenant in policy.tenants.values():
        permitted = mask(policy, RequestFacts(tenant.name, tenant.data_class, about.location))
        if isinstance(permitted, Refusal):
            assert advice.entries == ()
        else:
            assert {entry.region for entry in advice.entries} <= permitted.permitted.regions
