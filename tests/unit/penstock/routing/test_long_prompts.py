"""An endpoint prefills one long prompt at a time, and short prompts pass the long ones that wait."""

from __future__ import annotations

from random import Random

import pytest

from penstock.cost.request_properties import CostInputs
from penstock.cost.work import Work
from penstock.policy.kinds.models import Cost, CostUnit, Model
from penstock.pools.placement import Placement, WorkEstimate
from penstock.pools.pool_accounting import EndpointAccount, PoolAccount
from penstock.routing.affinity import session_key
from penstock.routing.endpoint_chooser import EndpointChooser, is_long
from penstock.routing.endpoint_selection import EndpointView
from penstock.routing.reasons import Reason

HELD_S = 300.0
"""As documented, and not imported: a test fails if a tuned constant changes."""

TOKENS = Cost(CostUnit.TOKEN, 0.001, 0.01)


def estimate(prefill_s: float) -> WorkEstimate:
    return WorkEstimate("t", "m", TOKENS, CostInputs(0), Work(prefill_s, 1.0), streaming=True)


LONG, SHORT = estimate(4.0), estimate(0.01)


class Pool:
    def __init__(self, endpoints: int) -> None:
        self.chooser = EndpointChooser(Random(1))
        self.pool: PoolAccount[EndpointAccount] = PoolAccount()
        views = [EndpointView(f"gpu-{n}", slots=8, limit=8, ready=True, completions=100) for n in range(endpoints)]
        self.pool.set_endpoints([EndpointAccount(view, "h100") for view in views])
        for endpoint in self.pool.endpoints:
            endpoint.pools = (self.pool,)
        self.pool.recount()
        self.pool.update_speeds()

    def start(self, request: WorkEstimate, *, leaves_one: bool = False) -> Placement[EndpointAccount] | Reason:
        chosen = self.chooser.choose(self.pool, request, (), 0.0, 0.0, leaves_one=leaves_one)
        if isinstance(chosen, Reason):
            return chosen
        placement = Placement(chosen[0], request, chosen[1], 0.0)
        placement.take()
        return placement


@pytest.mark.parametrize(("leaves_one", "endpoints", "at_once"), [(False, 3, 3), (True, 3, 2), (True, 1, 1)])
def test_long_prompts_wait_until_the_prefill_before_them_has_ended(
    leaves_one: bool, endpoints: int, at_once: int
) -> None:
    pool = Pool(endpoints)
    running = [pool.start(LONG, leaves_one=leaves_one) for _ in range(at_once)]
    assert len({placement.endpoint.name for placement in running if isinstance(placement, Placement)}) == at_once
    assert pool.start(LONG, leaves_one=leaves_one) is Reason.SATURATED
    short = pool.start(SHORT)
    assert isinstance(short, Placement)
    first = running[0]
    assert isinstance(first, Placement)
    first.end_prefill()
    assert isinstance(pool.start(LONG, leaves_one=leaves_one), Placement)


def test_an_endpoint_that_takes_no_requests_is_not_the_one_that_is_left() -> None:
    for state in ({"ready": False}, {"draining": True}):
        pool = Pool(3)
        for name, value in state.items():
            setattr(pool.pool.views[0], name, value)
        pool.pool.views[0].update_score()
        assert isinstance(pool.start(LONG, leaves_one=True), Placement)
        assert pool.start(LONG, leaves_one=True) is Reason.SATURATED, "of two, one is left"


def test_a_short_prompt_avoids_an_endpoint_with_a_long_one() -> None:
    pool = Pool(2)
    first = pool.start(LONG)
    assert isinstance(first, Placement)
    for _ in range(6):
        short = pool.start(SHORT)
        assert isinstance(short, Placement)
        assert short.endpoint is not first.endpoint


def test_a_prompt_whose_prefix_is_cached_is_not_long() -> None:
    pool = Pool(1)
    request = estimate(4.0)
    request.session = 7
    assert is_long(request)
    assert is_long(estimate(1.0))
    assert not is_long(estimate(0.99))
    pool.chooser.affinity.sent("gpu-0", list(range(64)), 7, "m", 0.0)
    request.prefix = list(range(64))
    request.cost = Cost(CostUnit.TOKEN, 4.0, 0.01)
    assert isinstance(pool.start(LONG), Placement)
    assert isinstance(pool.start(request), Placement)


def test_a_prompt_returns_to_the_endpoint_that_has_its_beginning_and_spares_its_prefill() -> None:
    pool = Pool(3)
    first = estimate(0.5)
    first.prefix = list(range(100, 103))
    placed = pool.start(first)
    assert isinstance(placed, Placement)
    assert pool.chooser.affinity.holders(102, 0.0) == (placed.endpoint.name,)
    assert pool.chooser.affinity.holders(103, 0.0) == ()
    again = estimate(0.5)
    again.prefix = [*range(100, 102), 7]
    for spared in (2, 3, 3):
        found = pool.chooser.choose(pool.pool, again, (), 0.0, 0.0)
        assert not isinstance(found, Reason)
        assert (found[0], found[1]) == (placed.endpoint, pytest.approx(spared * pool.chooser.block_s(again)))
    assert pool.chooser.affinity.holders(7, 0.0) == (placed.endpoint.name,)


def test_the_endpoints_of_a_minimal_prompt_are_shown_with_the_one_that_holds_the_session() -> None:
    pool = Pool(3)
    assert isinstance(pool.start(SHORT), Placement)
    pool.chooser.affinity.sent("gpu-1", [], session_key("t/m", b"s"), "m", 0.0)

    def holders(tenant: str, session: str, now: float = 1.0) -> list[str]:
        found = pool.chooser.consider(pool.pool, Model("m"), tenant, session, now)
        assert sorted(each.name for each in found) == ["gpu-0", "gpu-1", "gpu-2"]
        assert sum(each.in_flight for each in found) == 1
        assert all(each.done_s is not None and 0.0 < each.done_s < 60.0 for each in found)
        return [each.name for each in found if each.holds]

    assert holders("t", "s") == ["gpu-1"]
    assert holders("t", "s", HELD_S + 1.0) == []
    assert holders("t", "other") == holders("u", "s") == holders("t", "") == []
