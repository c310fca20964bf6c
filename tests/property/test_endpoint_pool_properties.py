"""For any history of a pool's endpoints, its counts equal the sums over its members, and ejection is bounded."""

from collections.abc import Sequence
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from penstock.health.endpoint_health import ProbeOutcome
from penstock.health.outlier_ejection import AttemptOutcome, EjectionRules
from penstock.pools.pool_accounting import Load
from regional_agent.endpoints.endpoint import Endpoint, OutlierDetection
from regional_agent.endpoints.endpoint_failures import apply_outcome
from regional_agent.endpoints.endpoint_fields import EndpointSpec
from regional_agent.endpoints.endpoint_pool import EndpointPool
from regional_agent.upstream.address import Address

MEMBERS = 5

events = st.one_of(
    st.sampled_from(ProbeOutcome),
    st.sampled_from(AttemptOutcome),
    st.just("broke"),
    st.floats(0.1, 30.0),
    st.integers(0, 9),
)


Event = ProbeOutcome | AttemptOutcome | str | float | int


def happen(
    members: Sequence[Endpoint], which: int, event: Event, pools: Sequence[EndpointPool], now: list[float]
) -> None:
    """Apply an event to the endpoint `which`, or pass time for all (a float, s); a string is a failed connection."""
    endpoint = members[which]
    if isinstance(event, ProbeOutcome):
        endpoint.probed(event)
    elif isinstance(event, AttemptOutcome):
        apply_outcome(endpoint, event, now[0])
    elif isinstance(event, int):
        endpoint.set_remote_load(Load(event, 1000 * event, 2000 * event))
    elif isinstance(event, float):
        now[0] += event
        for endpoint in members:
            endpoint.tick()
        for pool in pools:
            pool.update_readiness()
    else:
        endpoint.connection_failed()


@given(st.lists(st.tuples(st.integers(0, MEMBERS - 1), events), max_size=120), st.sampled_from([0.0, 0.2, 0.5, 1.0]))
def test_a_pool_agrees_with_its_members_and_keeps_its_cap(
    history: list[tuple[int, Event]], max_ejected_share: float
) -> None:
    now = [0.0]
    rules = EjectionRules(consecutive_failures=1, max_ejected_share=max_ejected_share)
    judge = OutlierDetection(rules, 30.0, lambda: now[0], Random(1))
    pool = EndpointPool(rules=rules)
    members = [Endpoint(EndpointSpec(f"gpu-{n}", Address("h", n), ("m",), 4), judge) for n in range(MEMBERS)]
    for endpoint in members:
        endpoint.pools = (pool,)
    pool.fill(members)
    for which, event in history:
        happen(members, which, event, [pool], now)
        ready = [endpoint for endpoint in members if endpoint.view.ready]
        alive = [endpoint for endpoint in members if endpoint.health.ready]
        assert (pool.ready, pool.slots) == (len(ready), 4 * len(ready))
        assert pool.in_flight == sum(endpoint.view.in_flight for endpoint in ready)
        assert pool.ejected == sum(endpoint.ejection.is_ejected for endpoint in members) <= MEMBERS * max_ejected_share
        assert all(endpoint.health.ready for endpoint in ready)
        assert len(ready) >= len(alive) - pool.ejected
        assert ready or not alive or max_ejected_share == 1.0
        assert all(0.0 < endpoint.view.weight <= 1.0 for endpoint in members)


@given(st.lists(st.tuples(st.integers(0, MEMBERS - 1), events), max_size=120))
def test_pools_that_share_members_agree_with_them(
    history: list[tuple[int, Event]],
) -> None:
    now = [0.0]
    rules = EjectionRules(consecutive_failures=1, max_ejected_share=1.0)
    judge = OutlierDetection(rules, 30.0, lambda: now[0], Random(1))
    pools = EndpointPool(rules=rules), EndpointPool(rules=rules)
    members = [Endpoint(EndpointSpec(f"gpu-{n}", Address("h", n), ("m", "n"), 4), judge) for n in range(MEMBERS)]
    for endpoint, in_pools in zip(members, (pools[:1], pools[:1], pools, pools, pools[1:]), strict=True):
        endpoint.pools = in_pools
    for pool in pools:
        pool.fill([endpoint for endpoint in members if pool in endpoint.pools])
    for endpoint in members:
        endpoint.probed(ProbeOutcome.GOOD)
    for which, event in history:
        happen(members, which, event, pools, now)
        for pool in pools:
            ready = [endpoint for endpoint in pool.endpoints if endpoint.view.ready]
            assert (pool.ready, pool.in_flight) == (len(ready), sum(endpoint.view.in_flight for endpoint in ready))
