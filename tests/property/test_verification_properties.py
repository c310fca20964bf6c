"""For any rules, verification finds every residency class that a request can have, and no violation where none is."""

from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.policy.geography import Location
from penstock.policy.residency import Mask, RequestFacts, mask
from penstock.verification.verify import verify
from tests.support.examples import examples
from tests.support.residency_worlds import World, allowed

PLACES = [
    Location(country, subdivision)
    for country in (None, "DE", "US", "JP", "BR", "FR", "XX")
    for subdivision in (None, "CA", "NY", "BE", "TX")
    if country is not None or subdivision is None
]


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(0, 2**32))
def test_exactly_the_existing_classes_are_found(seed: int) -> None:
    policy = World(seed, max_regions=5).policy
    report = verify(policy)
    assert report.breaches == ()
    classes = {frozenset(survival.regions) for survival in report.classes}
    reached = set()
    refused = False
    for tenant, place in product(policy.tenants.values(), PLACES):
        facts = RequestFacts(tenant.name, tenant.data_class, place)
        verdict = mask(policy, facts)
        permitted = verdict.permitted.regions if isinstance(verdict, Mask) else frozenset()
        assert permitted == allowed(policy, facts)
        if permitted:
            reached.add(permitted)
        else:
            refused = True
    assert classes == reached
    assert bool(report.refused) == refused


@settings(max_examples=examples(8), deadline=None)
@given(st.integers(0, 2**32))
def test_a_class_survives_as_many_losses_as_leave_it_a_region(seed: int) -> None:
    for survival in verify(World(seed, max_regions=5).policy).classes:
        if len(survival.regions) > 2:
            assert survival.ends == ()
        else:
            assert [end.lost for end in survival.ends] == [survival.regions]
