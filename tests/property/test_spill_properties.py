from hypothesis import given
from hypothesis import strategies as st

from penstock.routing.spill_credits import AgentRank, Grants, agent_part, grant, wanted

asks = st.lists(
    st.tuples(st.sampled_from("abcd"), st.integers(-3, 50), st.floats(0, 2), st.floats(0.1, 3)), max_size=40
)


@given(st.integers(0, 60), asks)
def test_unexpired_grants_never_exceed_a_steady_headroom(
    headroom: int, history: list[tuple[str, int, float, float]]
) -> None:
    grants, now = Grants(), 0.0
    for origin, want, gap_s, ttl_s in history:
        now += gap_s
        grants, given_now = grant(grants, origin, want, headroom, now, ttl_s)
        assert 0 <= given_now <= max(0, want)
        assert grants.outstanding(now) <= headroom
        assert all(credit.requests > 0 for credit in grants.by_origin.values())


@given(st.integers(-5, 1000), st.integers(1, 20))
def test_parts_sum_to_the_headroom(headroom: int, agents: int) -> None:
    parts = [agent_part(headroom, AgentRank(rank, agents)) for rank in range(agents)]
    assert sum(parts) == max(0, headroom)
    assert max(parts) - min(parts) <= 1


@given(
    st.integers(0, 1000),
    st.integers(0, 1000),
    st.floats(0.1, 1),
    st.floats(0, 100),
    st.floats(0, 1e6),
    st.floats(0.1, 3),
)
def test_wanting_is_never_negative_and_at_least_the_excess(
    in_flight: int, slots: int, target: float, service_s: float, rate: float, ttl_s: float
) -> None:
    want = wanted(in_flight, slots, target, service_s, rate, ttl_s)
    assert want >= max(0, in_flight - slots * target)
