from random import Random

import msgspec
import pytest

from penstock.health.endpoint_health import ProbeOutcome
from penstock.health.outlier_ejection import AttemptOutcome, EjectionRules, EjectionState
from penstock.pools.pool_accounting import GroupAccount, Load
from penstock.pools.speed_learning import prior
from penstock.routing.endpoint_selection import choose_endpoint
from regional_agent.endpoints.endpoint import Endpoint, OutlierDetection
from regional_agent.endpoints.endpoint_failures import apply_outcome
from regional_agent.endpoints.endpoint_fields import EndpointSpec
from regional_agent.endpoints.endpoint_pool import EndpointPool
from regional_agent.endpoints.endpoint_status import endpoint_status
from regional_agent.upstream.address import Address
from tests.support.clocks import SetClock

RULES = EjectionRules(consecutive_failures=2, base_s=10.0)


@pytest.fixture
def clock() -> SetClock:
    return SetClock(1000.0)


def pool_of(count: int, clock: SetClock, warm_up_s: float = 0.0) -> EndpointPool:
    pool = EndpointPool(rules=RULES)
    judge = OutlierDetection(RULES, warm_up_s, clock, Random(1))
    members = [Endpoint(EndpointSpec(f"gpu-{n}", Address("127.0.0.1", 1 + n), ("m",), 4), judge) for n in range(count)]
    for endpoint in members:
        endpoint.pools = (pool,)
    pool.fill(members)
    for endpoint in members:
        endpoint.probed(ProbeOutcome.GOOD)
    return pool


def fail(endpoint: Endpoint, clock: SetClock, times: int = 2) -> bool:
    return any(apply_outcome(endpoint, AttemptOutcome.GATEWAY_ERROR, clock.now) for _ in range(times))


def later(pool: EndpointPool, clock: SetClock, seconds: float) -> None:
    clock.now += seconds
    for endpoint in pool.endpoints:
        endpoint.tick()
    pool.update_readiness()


def readiness(pool: EndpointPool) -> list[bool]:
    return [view.ready for view in pool.views]


def test_ejected_endpoint_returns_after_one_successful_trial(clock: SetClock) -> None:
    pool = pool_of(3, clock)
    first = pool.endpoints[0]
    assert fail(first, clock)
    assert (readiness(pool), pool.ready, pool.slots, pool.ejected) == ([False, True, True], 2, 8, 1)
    assert first.ejected_by == AttemptOutcome.GATEWAY_ERROR
    later(pool, clock, 10.0)
    assert (readiness(pool)[0], pool.ready) == (True, 3)
    first.take()
    first.sent_while_ejected()
    assert (readiness(pool)[0], first.ejection.state) == (False, EjectionState.TRIAL_RUNNING)
    first.give_back()
    assert not apply_outcome(first, AttemptOutcome.SERVED, clock.now)
    assert (readiness(pool), pool.ejected, pool.in_flight) == ([True, True, True], 0, 0)


def test_successful_probe_does_not_end_an_ejection(clock: SetClock) -> None:
    pool = pool_of(2, clock)
    fail(pool.endpoints[0], clock)
    for _ in range(10):
        pool.endpoints[0].probed(ProbeOutcome.GOOD)
    assert readiness(pool) == [False, True]


def test_repeats_an_inconclusive_trial(clock: SetClock) -> None:
    pool = pool_of(2, clock)
    first = pool.endpoints[0]
    fail(first, clock)
    later(pool, clock, 10.0)
    first.take()
    first.sent_while_ejected()
    apply_outcome(first, AttemptOutcome.INCONCLUSIVE, clock.now)
    assert readiness(pool)[0]


def test_next_request_is_the_trial_even_if_the_endpoint_looks_slow(clock: SetClock) -> None:
    """While the endpoint has no trial, the other endpoint of a pool of two cannot be ejected."""
    pool = pool_of(2, clock)
    first, second = pool.endpoints
    fail(first, clock)
    first.set_remote_load(Load(3, 0, 60_000_000))
    later(pool, clock, 10.0)
    assert not fail(second, clock), "the cap"
    assert choose_endpoint(pool.candidates, Random(1)).index == 0
    first.take()
    first.sent_while_ejected()
    assert choose_endpoint(pool.candidates, Random(1)).index == 1
    first.give_back()
    apply_outcome(first, AttemptOutcome.SERVED, clock.now)
    assert choose_endpoint(pool.candidates, Random(1)).index == 1, "three are on it"
    assert fail(second, clock)


def test_ejections_respect_the_maximum_share(clock: SetClock) -> None:
    pool = pool_of(3, clock)
    assert [fail(endpoint, clock, times=10) for endpoint in pool.endpoints] == [True, False, False]
    assert pool.ready == 2
    alone = pool_of(1, clock)
    assert not fail(alone.endpoints[0], clock, times=10)
    assert alone.ready == 1


def test_panicking_pool_ignores_ejections(clock: SetClock) -> None:
    pool = pool_of(4, clock)
    for endpoint in pool.endpoints[:2]:
        fail(endpoint, clock)
    assert (pool.ready, pool.panics) == (2, False)
    for _ in range(2):
        pool.endpoints[2].probed(ProbeOutcome.UNREADY)
    assert (readiness(pool), pool.panics) == ([True, True, False, True], True)
    for _ in range(2):
        pool.endpoints[2].probed(ProbeOutcome.GOOD)
    assert (readiness(pool), pool.panics) == ([False, False, True, True], False)


def test_panicking_pool_excludes_endpoints_that_are_down(clock: SetClock) -> None:
    pool = pool_of(2, clock)
    fail(pool.endpoints[0], clock)
    for endpoint in pool.endpoints:
        for _ in range(2):
            endpoint.probed(ProbeOutcome.UNREACHABLE)
    assert readiness(pool) == [False, False]


@pytest.fixture
def warming(clock: SetClock) -> EndpointPool:
    return pool_of(2, clock, warm_up_s=30.0)


def test_new_and_formerly_ejected_endpoints_warm_up(warming: EndpointPool, clock: SetClock) -> None:
    assert [view.weight for view in warming.views] == [0.1, 0.1]
    later(warming, clock, 15.0)
    assert [view.weight for view in warming.views] == [0.5, 0.5]
    later(warming, clock, 15.0)
    assert [view.weight for view in warming.views] == [1.0, 1.0]
    first = warming.endpoints[0]
    fail(first, clock)
    later(warming, clock, 10.0)
    assert first.view.weight == 1.0
    first.take()
    first.sent_while_ejected()
    apply_outcome(first, AttemptOutcome.SERVED, clock.now)
    assert [view.weight for view in warming.views] == [0.1, 1.0]


def test_short_outage_keeps_the_weight_and_a_long_one_resets_it(warming: EndpointPool, clock: SetClock) -> None:
    later(warming, clock, 60.0)
    first = warming.endpoints[0]
    first.connection_failed()
    clock.now += 0.1
    first.probed(ProbeOutcome.GOOD)
    assert first.view.weight == 1.0
    for _ in range(2):
        first.probed(ProbeOutcome.UNREADY)
    clock.now += 10.0
    for _ in range(2):
        first.probed(ProbeOutcome.GOOD)
    assert first.view.weight == 0.1


def test_shared_endpoint_is_ejected_only_if_both_pools_permit(clock: SetClock) -> None:
    pool, alone = pool_of(3, clock), EndpointPool(rules=RULES)
    shared = pool.endpoints[0]
    shared.pools = (pool, alone)
    alone.fill([shared])
    assert not fail(shared, clock, times=10)
    assert (pool.ready, alone.ready) == (3, 1)


def test_reports_only_changes_of_its_configured_models(clock: SetClock) -> None:
    reported: list[bool] = []
    endpoint = Endpoint(
        EndpointSpec("gpu-0", Address("127.0.0.1", 1), ("m", "n"), 4), OutlierDetection(), lambda: reported.append(True)
    )
    endpoint.set_loaded_models(frozenset({"m", "n"}))
    assert reported == []
    endpoint.set_loaded_models(frozenset({"m"}))
    assert (endpoint.models, reported) == (("m",), [True])
    endpoint.set_loaded_models(None)
    assert (endpoint.models, reported) == (("m", "n"), [True, True])


def test_new_accelerator_resets_the_learned_speed() -> None:
    spec = EndpointSpec("gpu-0", Address("127.0.0.1", 1), ("m",), 4, accelerator="l4")
    endpoint = Endpoint(spec, OutlierDetection())
    learner = endpoint.learner
    endpoint.resize(msgspec.structs.replace(spec, slots=8))
    assert endpoint.learner is learner
    endpoint.resize(msgspec.structs.replace(spec, accelerator="h100"))
    learned, expected = endpoint.learner.prior, prior("h100")
    assert learned is not None
    assert expected is not None
    assert (learned.prefill, learned.decode) == (expected.prefill, expected.decode)


@pytest.mark.parametrize(("accelerator", "is_unknown"), [("", False), ("NVIDIA-L4", False), ("rtx-6000", True)])
def test_an_accelerator_of_unknown_speed_is_a_problem(accelerator: str, is_unknown: bool) -> None:
    spec = EndpointSpec("gpu-0", Address("127.0.0.1", 1), ("m",), 4, accelerator=accelerator)
    endpoint = Endpoint(spec, OutlierDetection())
    problem = f"accelerator '{accelerator}' is unknown" if is_unknown else ""
    assert endpoint.accelerator_problem.partition(",")[0] == problem
    assert endpoint_status(endpoint, None)["accelerator_problem"] == (endpoint.accelerator_problem or None)


def test_a_change_of_slots_changes_all_totals_at_once(clock: SetClock) -> None:
    pool = pool_of(1, clock)
    (gpu,) = pool.endpoints
    group = GroupAccount(("m", "n"))
    group.endpoints.append(gpu)
    gpu.pools = (pool, group)
    gpu.resize(EndpointSpec("gpu-0", Address("127.0.0.1", 1), ("m", "n"), 8))
    assert (gpu.view.slots, pool.slots, group.slots) == (8, 8, 8)
    gpu.resize(EndpointSpec("gpu-0", Address("127.0.0.1", 1), ("m", "n"), 50))
    assert (gpu.view.slots, pool.slots, group.slots) == (50, 50, 50)
