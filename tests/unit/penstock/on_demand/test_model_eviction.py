"""Which models leave a memory so that another one fits."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from penstock.on_demand.last_copy import scopes_of
from penstock.on_demand.model_eviction import IN_USE, HeldModel, find_room
from tests.support.planet import policy

GB = 1e9


def held(model: str, size_gb: float, idle_s: float, after_s: float = 60.0, endpoint: str = "gpu") -> HeldModel:
    return HeldModel(endpoint, model, size_gb * GB, idle_s, after_s)


def names(needed_gb: float, *known: HeldModel, spare: dict[str, int] | None = None) -> list[str]:
    everything = dict.fromkeys((each.model for each in known), 1)
    room = find_room(needed_gb * GB, 80 * GB, known, everything if spare is None else spare)
    return [each.model for each in room.leaving] if not room.problem else [f"in {room.in_s:g} s"]


def test_the_least_recently_used_model_leaves_and_no_more_than_needed() -> None:
    old, newer, small = held("old", 30, 900.0), held("newer", 40, 300.0), held("small", 5, 950.0)
    assert names(5, old, newer, small) == []
    assert names(20, old, newer, small) == ["old"], "small alone makes too little room, and is not needed then"
    assert names(40, old, newer, small) == ["small", "old"]
    assert names(45, old, newer, small) == ["newer"], "one is better than three"
    assert names(80, old, newer, small) == ["small", "old", "newer"]


def test_models_in_use_of_a_moment_ago_or_without_another_copy_stay() -> None:
    assert names(50, held("used", 60, IN_USE)) == ["in inf s"]
    assert not find_room(50 * GB, 80 * GB, [held("used", 60, IN_USE)], {"used": 1}).leaving
    assert names(50, held("recent", 60, 20.0)) == ["in 40 s"]
    assert names(50, held("stays", 60, 900.0, inf)) == ["in inf s"]
    assert names(50, held("last", 60, 900.0), spare={}) == ["in inf s"]
    two = held("a", 40, 900.0), held("a", 40, 800.0, endpoint="gpu-2")
    assert names(80, *two, spare={"a": 1}) == ["in inf s"]
    assert names(40, *two, spare={"a": 1}) == ["a"]
    assert names(90) == ["in inf s"], "larger than the memory"


def test_a_model_that_may_leave_now_leaves_before_one_used_longer_ago_that_may_not() -> None:
    assert names(40, held("old", 40, 500.0, 900.0), held("newer", 40, 90.0)) == ["newer"]


@given(
    st.lists(
        st.builds(
            held,
            st.sampled_from("abc"),
            st.sampled_from([0.0, 1.0, 10.0, 33.0]),
            st.sampled_from([IN_USE, 0.0, 10.0, 70.0, 500.0]),
            st.sampled_from([60.0, inf]),
            st.sampled_from("xyz"),
        ),
        max_size=8,
        unique_by=lambda each: (each.endpoint, each.model),
    ),
    st.sampled_from([1.0, 20.0, 79.0, 81.0]),
    st.dictionaries(st.sampled_from("abc"), st.integers(-1, 2)),
)
def test_what_leaves_makes_room_and_none_of_it_is_in_use_needed_or_too_many(
    known: list[HeldModel], needed_gb: float, spare: dict[str, int]
) -> None:
    room = find_room(needed_gb * GB, 80 * GB, known, spare)
    free = 80 * GB - sum(each.size_bytes for each in known)
    for each in room.leaving:
        left = sum(other.size_bytes for other in room.leaving if other is not each)
        assert free + left < needed_gb * GB, "every one is needed"
        assert each.idle_s >= 0.0
        assert each.leaves_after_s < inf
        assert sum(other.model == each.model for other in room.leaving) <= spare.get(each.model, 0)
    assert (room.problem == "") is (room.in_s == 0.0)
    if not room.problem:
        assert free + sum(each.size_bytes for each in room.leaving) >= needed_gb * GB
        assert all(each.idle_s >= each.leaves_after_s for each in room.leaving)


def test_the_permitted_regions_of_governed_requests_are_scopes_of_their_own() -> None:
    every, eu = frozenset({"eu-de", "eu-es", "us-east"}), frozenset({"eu-de", "eu-es"})
    assert scopes_of(policy(), "eu-de") == {every, eu}
    assert scopes_of(policy(), "us-east") == {every}
