import pytest

from penstock.routing.spill_credits import (
    AgentRank,
    Credit,
    Grants,
    GroupLoad,
    HeldCredits,
    agent_part,
    grant,
    shared_headroom,
    wanted,
)

MAX_WANTED = 10_000
"""As documented, and not imported: a test fails if a tuned constant changes."""


def test_grants_what_is_wanted_up_to_the_headroom() -> None:
    assert grant(Grants(), "a", 3, 10, 0.0, 1.0) == (Grants({"a": Credit(3, 1.0)}), 3)
    assert grant(Grants(), "a", 30, 10, 0.0, 1.0)[1] == 10


def test_what_one_origin_holds_is_not_granted_to_another() -> None:
    grants, _ = grant(Grants(), "a", 6, 10, 0.0, 1.0)
    grants, given = grant(grants, "b", 10, 10, 0.5, 1.0)
    assert given == 4
    assert grants.outstanding(0.5) == 10


def test_a_new_grant_replaces_the_one_before() -> None:
    grants, _ = grant(Grants(), "a", 6, 10, 0.0, 1.0)
    grants, given = grant(grants, "a", 8, 10, 0.1, 1.0)
    assert given == 8
    assert grants.outstanding(0.2) == 8


def test_credits_expire_by_themselves() -> None:
    grants, _ = grant(Grants(), "a", 10, 10, 0.0, 1.0)
    assert grants.outstanding(1.0) == 0
    after, given = grant(grants, "b", 10, 10, 1.0, 1.0)
    assert given == 10
    assert after.by_origin.keys() == {"b"}


def test_asking_for_nothing_gives_back() -> None:
    grants, _ = grant(Grants(), "a", 10, 10, 0.0, 1.0)
    grants, given = grant(grants, "a", 0, 10, 0.1, 1.0)
    assert (given, grants) == (0, Grants())


def test_no_headroom_grants_nothing_rather_than_less() -> None:
    assert grant(Grants(), "a", 5, 0, 0.0, 1.0) == (Grants(), 0)
    assert grant(Grants(), "a", -5, 10, 0.0, 1.0) == (Grants(), 0)


def test_wallet_spends_until_empty_or_expired() -> None:
    held_credits = HeldCredits().received("r", {"m": 2}, 0.0, 1.0)
    assert held_credits.available("r", "m", 0.9) == 2
    assert held_credits.available("r", "other", 0.9) == 0
    assert held_credits.spent("r", "m").spent("r", "m").available("r", "m", 0.9) == 0
    assert held_credits.available("r", "m", 1.0) == 0
    with pytest.raises(KeyError):
        held_credits.spent("other", "m")


def test_a_newer_word_of_the_receiver_replaces_the_older() -> None:
    held_credits = HeldCredits().received("r", {"m": 5, "gone": 5}, 0.0, 1.0).received("other", {"m": 7}, 0.0, 1.0)
    held_credits = held_credits.received("r", {"m": 1}, 0.1, 1.0)
    assert [held_credits.available(*key, 0.2) for key in (("r", "m"), ("r", "gone"), ("other", "m"))] == [1, 0, 7]


@pytest.mark.parametrize(("headroom", "agents", "parts"), [(10, 3, [4, 3, 3]), (2, 3, [1, 1, 0]), (-4, 2, [0, 0])])
def test_agents_of_a_region_share_its_headroom(headroom: int, agents: int, parts: list[int]) -> None:
    assert [agent_part(headroom, AgentRank(rank, agents)) for rank in range(agents)] == parts


@pytest.mark.parametrize(
    ("in_flight", "slots", "requests_per_s", "ttl_s", "requested"),
    [
        pytest.param(5, 10, 2.5, 0.75, 0, id="below its target"),
        pytest.param(12, 10, 5.0, 0.75, 4, id="full: its excess"),
        pytest.param(12, 10, 13.0, 0.75, 10, id="full: its excess and what it cannot serve"),
        pytest.param(6, 10, 23.0, 0.5, 8, id="a surge, before the pool is full"),
        pytest.param(0, 0, 10.0, 0.75, 8, id="without endpoints: all of its demand"),
        pytest.param(0, 0, 1e9, 0.75, MAX_WANTED, id="without endpoints: at most the bound"),
    ],
)
def test_an_origin_requests_credits_for_what_it_cannot_serve(
    in_flight: int, slots: int, requests_per_s: float, ttl_s: float, requested: int
) -> None:
    assert wanted(in_flight, slots, 0.8, service_s=2.0, requests_per_s=requests_per_s, ttl_s=ttl_s) == requested


def test_an_agent_of_a_region_without_a_count_of_agents_grants_everything() -> None:
    assert agent_part(7, AgentRank(0, 0)) == 7


ALONE = AgentRank(0, 1)
OWN_A, OWN_B, BOTH = ("a",), ("b",), ("a", "b")


def headroom_of_a(
    *groups: GroupLoad,
    waiting: dict[str, int] | None = None,
    granted: dict[str, int] | None = None,
    agent: AgentRank = ALONE,
    target: float = 1.0,
) -> int:
    return shared_headroom("a", groups, waiting or {}, granted or {}, target, agent)


def test_the_headroom_of_a_model_is_that_of_its_groups_up_to_the_target() -> None:
    groups = GroupLoad(OWN_A, 2, 10), GroupLoad(BOTH, 5, 20), GroupLoad(OWN_B, 0, 40)
    assert headroom_of_a(*groups) == 8 + 15
    assert headroom_of_a(*groups, target=0.5) == 3 + 5


def test_waiting_requests_take_slots_of_the_smallest_group_first() -> None:
    groups = GroupLoad(BOTH, 0, 10), GroupLoad(OWN_B, 0, 4), GroupLoad(OWN_A, 0, 3)
    assert headroom_of_a(*groups, waiting={"a": 5}) == 13 - 5
    assert headroom_of_a(*groups, waiting={"b": 4}) == 13, "the group of b alone has room for them"
    assert headroom_of_a(*groups, waiting={"b": 9}) == 13 - 5
    assert headroom_of_a(*groups, waiting={"b": 99}) == 3


def test_credits_for_another_model_take_slots_that_both_share() -> None:
    groups = GroupLoad(BOTH, 0, 10), GroupLoad(OWN_B, 0, 4), GroupLoad(OWN_A, 0, 3)
    assert headroom_of_a(*groups, granted={"b": 4}) == 13
    assert headroom_of_a(*groups, granted={"b": 9}) == 13 - 5
    assert headroom_of_a(*groups, granted={"b": 6}, waiting={"b": 6}) == 13 - 8


def test_each_group_is_divided_among_the_agents() -> None:
    groups = GroupLoad(BOTH, 0, 5), GroupLoad(OWN_A, 0, 3)
    assert [headroom_of_a(*groups, agent=AgentRank(rank, 2)) for rank in range(2)] == [3 + 2, 2 + 1]
    # Of the 5 slots, 4 are left after the waiting request: 2 for each agent.
    shared = GroupLoad(BOTH, 0, 5)
    assert [headroom_of_a(shared, waiting={"b": 1}, agent=AgentRank(rank, 2)) for rank in range(2)] == [2, 2]
    assert headroom_of_a(shared, granted={"b": 1}, agent=AgentRank(0, 2)) == 2
