"""The map of objects is bounded, evicts the largest tenant's oldest objects, and shows no tenant another's objects."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.routes.object_locations import MAX_OBJECT_ID_CHARS, ObjectLocation, ObjectLocations

OBJECT_LIFETIME_S = 24 * 3600.0
"""As documented, and not imported: a test fails if a tuned constant changes."""

CAPACITY = 6
TENANTS, IDS = st.sampled_from("abc"), st.sampled_from([f"id-{number}" for number in range(5)])
STEPS = st.lists(st.tuples(st.sampled_from(["learn", "find"]), TENANTS, IDS, st.floats(0, 40_000)), max_size=80)


@given(STEPS)
def test_bounded_and_never_another_object(steps: list[tuple[str, str, str, float]]) -> None:
    locations, now = ObjectLocations(CAPACITY), 0.0
    model: dict[tuple[str, str], tuple[ObjectLocation, float]] = {}
    for number, (action, tenant, object_id, passed_s) in enumerate(steps):
        now += passed_s
        if action == "learn":
            location = ObjectLocation("m", "here", f"gpu-{number}")
            locations.learn(tenant, object_id, location, now)
            model[tenant, object_id] = location, now
            assert locations.find(tenant, object_id, now) == location, "the newest object is never evicted"
        else:
            found = locations.find(tenant, object_id, now)
            known = model.get((tenant, object_id))
            if found is None:
                model.pop((tenant, object_id), None)
            else:
                assert known is not None
                assert found == known[0]
                assert now - known[1] <= OBJECT_LIFETIME_S
                model[tenant, object_id] = found, now
        assert len(locations) <= CAPACITY


@given(st.integers(1, CAPACITY - 1), st.integers(1, 50))
def test_a_tenant_with_many_objects_evicts_its_own(few: int, many: int) -> None:
    locations, here = ObjectLocations(2 * CAPACITY), ObjectLocation("m", "here", "gpu-0")
    for number in range(few):
        locations.learn("small", f"s-{number}", here, 0.0)
    for number in range(many):
        locations.learn("large", f"l-{number}", here, 1.0)
    assert all(locations.find("small", f"s-{number}", 2.0) == here for number in range(few))
    assert locations.find("large", f"l-{many - 1}", 2.0) == here
    assert len(locations) == min(few + many, 2 * CAPACITY)


def test_tenants_lifetime_and_length() -> None:
    locations, here = ObjectLocations(), ObjectLocation("m", "here", "gpu-0")
    locations.learn("a", "id", here, 0.0)
    assert locations.find("b", "id", 0.0) is None
    assert locations.find("a", "id", OBJECT_LIFETIME_S) == here
    assert locations.find("a", "id", 2 * OBJECT_LIFETIME_S) == here, "a request for it extends its life"
    assert locations.find("a", "id", 3 * OBJECT_LIFETIME_S + 1) is None
    assert len(locations) == 0
    for object_id in ("", "x" * (MAX_OBJECT_ID_CHARS + 1)):
        locations.learn("a", object_id, here, 0.0)
    assert len(locations) == 0
