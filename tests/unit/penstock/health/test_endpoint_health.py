import pytest

from penstock.health.endpoint_health import (
    EndpointHealth,
    EndpointState,
    HealthThresholds,
    ProbeOutcome,
    connection_failed,
    probed,
)

GOOD, UNREADY, UNREACHABLE, SLOW, BUSY = ProbeOutcome


def after(*outcomes: ProbeOutcome, start: EndpointHealth | None = None) -> EndpointHealth:
    health = start or EndpointHealth()
    for outcome in outcomes:
        health = probed(health, outcome)
    return health


def test_nothing_is_ready_before_a_good_probe() -> None:
    assert not EndpointHealth().ready
    assert after(GOOD).ready


@pytest.mark.parametrize("bad", [UNREADY, UNREACHABLE])
def test_falls_at_the_second_refusal_in_a_row(bad: ProbeOutcome) -> None:
    assert after(GOOD, bad).state is EndpointState.FAILING
    assert after(GOOD, bad).ready
    assert after(GOOD, bad, GOOD, bad).ready
    assert after(GOOD, bad, bad).state is EndpointState.DOWN


def test_slow_answers_take_twice_as_many() -> None:
    assert after(GOOD, SLOW, SLOW, SLOW).ready
    assert not after(GOOD, SLOW, SLOW, SLOW, SLOW).ready
    assert not after(GOOD, SLOW, SLOW, UNREACHABLE).ready


@pytest.mark.parametrize("outcome", [SLOW, UNREACHABLE])
def test_a_probe_that_a_running_request_explains_changes_nothing(outcome: ProbeOutcome) -> None:
    for health in (EndpointHealth(), after(GOOD), after(GOOD, UNREADY), after(UNREADY, UNREADY)):
        explained = health
        for _ in range(100):
            explained = probed(explained, outcome, explained=True)
        assert explained == health


def test_an_answer_that_it_is_busy_is_no_failure() -> None:
    assert after(GOOD, *[BUSY] * 100).state is EndpointState.READY
    assert not after(BUSY).ready, "its state before the other request is unknown"


@pytest.mark.parametrize("outcome", [UNREADY])
def test_running_requests_do_not_explain_an_answer(outcome: ProbeOutcome) -> None:
    health = probed(probed(after(GOOD), outcome, explained=True), outcome, explained=True)
    assert health.state is EndpointState.DOWN


@pytest.mark.parametrize(("unhealthy", "healthy"), [(1, 1), (3, 5)])
def test_thresholds_are_those_of_the_endpoint(unhealthy: int, healthy: int) -> None:
    thresholds, health = HealthThresholds(unhealthy, healthy), after(GOOD)
    for _ in range(unhealthy - 1):
        health = probed(health, UNREADY, thresholds)
    assert health.ready
    health = probed(health, UNREADY, thresholds)
    assert health.state is EndpointState.DOWN
    for _ in range(healthy - 1):
        health = probed(health, GOOD, thresholds)
    assert not health.ready
    assert probed(health, GOOD, thresholds).ready


def test_rises_at_the_second_good_probe_after_a_fall() -> None:
    down = after(GOOD, UNREADY, UNREADY)
    assert not after(GOOD, start=down).ready
    assert not after(GOOD, UNREADY, GOOD, start=down).ready
    assert after(GOOD, GOOD, start=down).state is EndpointState.READY


def test_a_request_that_cannot_connect_stops_others_until_one_good_probe() -> None:
    health = connection_failed(after(GOOD))
    assert not health.ready
    assert after(GOOD, start=health).ready
    down = connection_failed(after(UNREADY, UNREADY, GOOD))
    assert down.state is EndpointState.DOWN
    assert not after(GOOD, start=down).ready, "good probes before it count no more"
    assert after(GOOD, GOOD, start=down).ready


def test_every_history_has_a_place_in_the_table() -> None:
    reached, frontier = {EndpointHealth()}, [EndpointHealth()]
    while frontier:
        health = frontier.pop()
        for following in [*(probed(health, outcome) for outcome in ProbeOutcome), connection_failed(health)]:
            known = EndpointHealth(following.state, following.failure_points, min(following.hits, 3))
            if known not in reached:
                reached.add(known)
                frontier.append(known)
    assert {health.state for health in reached} == set(EndpointState)
