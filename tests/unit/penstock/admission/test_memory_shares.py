"""Memory that tenants share: one tenant may use all of it, and each tenant can always reach an equal share."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.admission.memory_shares import MemoryShares

MAX_BYTES = 100


def test_one_tenant_may_use_all_until_another_needs_some() -> None:
    shares: MemoryShares[str] = MemoryShares(MAX_BYTES)
    for holder, size_bytes in (("a1", 30), ("a2", 40), ("a3", 30)):
        assert shares.make_room("a", size_bytes) == []
        shares.hold("a", holder, size_bytes)
    assert shares.make_room("a", 1) is None
    assert shares.make_room("b", 10) == ["a2"], "the largest"
    shares.hold("b", "b1", 10)
    assert shares.held_bytes == 70


def test_a_tenant_displaces_only_tenants_that_hold_more() -> None:
    shares: MemoryShares[str] = MemoryShares(MAX_BYTES)
    shares.hold("a", "a1", 50)
    shares.hold("b", "b1", 50)
    assert shares.make_room("c", 50) is None
    assert shares.make_room("c", 101) is None
    assert shares.held_bytes == MAX_BYTES, "a refusal releases nothing"
    assert shares.make_room("c", 49) == ["b1"]


def test_a_holder_larger_than_all_of_the_memory_is_refused() -> None:
    shares: MemoryShares[str] = MemoryShares(MAX_BYTES)
    assert shares.make_room("a", MAX_BYTES + 1) is None
    assert shares.make_room("a", MAX_BYTES) == []


STEPS = st.lists(
    st.tuples(st.sampled_from("abcd"), st.integers(0, 9), st.integers(1, MAX_BYTES), st.booleans()), max_size=60
)


@given(STEPS)
def test_every_tenant_can_reach_an_equal_share(steps: list[tuple[str, int, int, bool]]) -> None:
    shares: MemoryShares[tuple[str, int]] = MemoryShares(MAX_BYTES)
    held: dict[tuple[str, int], int] = {}

    def used(tenant: str) -> int:
        return sum(size_bytes for (name, _), size_bytes in held.items() if name == tenant)

    for tenant, number, size_bytes, releases in steps:
        holder = (tenant, number)
        if releases:
            shares.release(tenant, holder)
            held.pop(holder, None)
            continue
        wanted, tenants = used(tenant) + size_bytes, {name for name, _ in held} | {tenant}
        before = {name: used(name) for name in tenants}
        released = shares.make_room(tenant, size_bytes)
        if released is None:
            assert wanted > MAX_BYTES / len(tenants), "no tenant is refused its share"
        else:
            for victim in released:
                assert before[victim[0]] > wanted
                del held[victim]
            held[holder] = held.get(holder, 0) + size_bytes
            shares.hold(tenant, holder, size_bytes)
        assert shares.held_bytes == sum(held.values()) <= MAX_BYTES
    for tenant, number in list(held):
        shares.release(tenant, (tenant, number))
    assert shares.held_bytes == 0


def test_a_tenant_that_is_refused_displaces_nothing() -> None:
    shares: MemoryShares[str] = MemoryShares(100)
    for tenant, holder, size_bytes in (("a", "a1", 35), ("a", "a2", 25), ("c", "c1", 40)):
        shares.hold(tenant, holder, size_bytes)
    # After the release of 35 bytes of "a", no tenant holds more than the new one would.
    assert shares.make_room("new", 50) is None
    assert shares.held_bytes == 100
    assert shares.make_room("new", 20) == ["a1"]
