import pytest

from penstock.health.endpoint_health import EndpointHealth, EndpointState, ProbeOutcome, connection_failed, probed

GOOD, UNREADY, UNREACHABLE, SLOW = ProbeOutcome


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
    assert after(GOOD, bad).state is EndpointState.SUSPECT
    assert after(GOOD, bad).ready
    assert after(GOOD, bad, GOOD, bad).ready
    assert after(GOOD, bad, bad).state is EndpointState.DOWN


def test_slow_answers_take_twice_as_many() -> None:
    assert after(GOOD, SLOW, SLOW, SLOW).ready
    assert not after(GOOD, SLOW, SLOW, SLOW, SLOW).ready
    assert not after(GOOD, SLOW, SLOW, UNREACHABLE).ready


def test_rises_at_the_second_good_probe_after_a_fall() -> None:
    down = after(GOOD, UNREADY, UNREADY)
    assert not after(GOOD, start=down).ready
    assert not after(GOOD, UNREADY, GOOD, start=down).ready
    assert after(GOOD, GOOD, start=down).state is EndpointState.READY


def test_a_request_that_cannot_connect_stops_others_until_one_good_probe() -> None:
    health = connection_failed(after(GOOD))
    assert not health.ready
    assert after(GOOD, start=health).ready
    assert connection_failed(after(UNREADY, UNREADY)).state is EndpointState.DOWN


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
