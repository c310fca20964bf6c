"""Strangers, callers and processes have limits of their own, and the connection whose request began first leaves."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.admission.connection_limits import CountedConnection, LimitedConnections, Standing, StandingLimits

MIN_RECEIVE_RATE = 16 * 1024
"""As documented, and not imported: a test fails if a tuned constant changes."""

LIMITS = {
    Standing.STRANGER: StandingLimits(4, 2),
    Standing.CALLER: StandingLimits(4, 2),
    Standing.PROCESS: StandingLimits(4, 2),
}


@pytest.fixture
def limited() -> LimitedConnections:
    return LimitedConnections(LIMITS)


def opened(limited: LimitedConnections, holder: str | None, now: float) -> CountedConnection:
    counted, evicted = limited.open(holder, now)
    assert evicted is None
    return counted


def served(limited: LimitedConnections, standing: Standing, holder: str, now: float) -> CountedConnection:
    counted = opened(limited, None, now)
    assert limited.authenticate(counted, standing, holder) is None
    counted.is_waiting = False
    return counted


def test_the_first_connection_of_a_network_over_its_limit_leaves(limited: LimitedConnections) -> None:
    opened(limited, "b", 0.0)
    first, _ = opened(limited, "a", 1.0), opened(limited, "a", 2.0)
    assert limited.open("a", 3.0)[1] is first


def test_the_first_connection_of_all_leaves_when_all_places_are_taken(limited: LimitedConnections) -> None:
    first = opened(limited, "a", 0.0)
    for number in range(1, 4):
        opened(limited, str(number), number)
    assert limited.open("b", 5.0)[1] is first
    assert limited.count(Standing.STRANGER) == 4


def test_a_stranger_that_waits_for_its_response_leaves_before_one_that_has_just_connected(
    limited: LimitedConnections,
) -> None:
    first = opened(limited, "a", 0.0)
    first.is_waiting = False
    new = [opened(limited, str(number), number) for number in range(1, 4)]
    assert limited.open("b", 5.0)[1] is first
    assert limited.open("c", 5.0)[1] is new[0]


def test_a_trusted_proxy_has_no_limit_of_its_own(limited: LimitedConnections) -> None:
    for now in range(4):
        opened(limited, None, now)


@pytest.mark.parametrize(("standing", "holder"), [(Standing.CALLER, "olga"), (Standing.PROCESS, "agent")])
def test_strangers_take_no_place_of_an_authenticated_client(
    limited: LimitedConnections, standing: Standing, holder: str
) -> None:
    counted = opened(limited, "a", 0.0)
    assert limited.authenticate(counted, standing, holder) is None
    for number in range(20):
        assert limited.open(str(number), number)[1] is not counted
    assert limited.count(standing) == 1


def test_callers_take_no_place_of_a_process(limited: LimitedConnections) -> None:
    process = opened(limited, "a", 0.0)
    assert limited.authenticate(process, Standing.PROCESS, "agent") is None
    for number in range(20):
        assert limited.authenticate(opened(limited, None, number), Standing.CALLER, str(number)) is not process
    assert (limited.count(Standing.PROCESS), limited.count(Standing.CALLER)) == (1, 4)


def test_a_caller_over_its_limit_loses_a_connection_that_waits_for_it(limited: LimitedConnections) -> None:
    busy = served(limited, Standing.CALLER, "olga", 0.0)
    slow = opened(limited, "a", 1.0)
    assert limited.authenticate(slow, Standing.CALLER, "olga") is None
    assert limited.authenticate(opened(limited, "a", 2.0), Standing.CALLER, "olga") is slow
    assert limited.count(Standing.CALLER) == 2
    assert busy in (limited.open("b", 3.0)[0], busy)


def test_a_caller_whose_connections_are_all_served_is_refused_another(limited: LimitedConnections) -> None:
    for now in (0.0, 1.0):
        served(limited, Standing.CALLER, "olga", now)
    third = opened(limited, "a", 2.0)
    assert limited.authenticate(third, Standing.CALLER, "olga") is third
    assert third.standing is Standing.STRANGER
    assert limited.authenticate(third, Standing.CALLER, "otto") is None


def test_a_process_over_its_limit_loses_a_connection_that_waits_for_it_first(limited: LimitedConnections) -> None:
    busy = served(limited, Standing.PROCESS, "agent", 0.0)
    idle = served(limited, Standing.PROCESS, "agent", 1.0)
    limited.begin(idle, 2.0)
    assert limited.authenticate(opened(limited, "a", 3.0), Standing.PROCESS, "agent") is idle
    assert limited.authenticate(opened(limited, "a", 4.0), Standing.PROCESS, "agent") is not busy


def test_a_body_that_arrives_fast_enough_counts_as_new(limited: LimitedConnections) -> None:
    fast, slow = opened(limited, "a", 0.0), opened(limited, "b", 0.5)
    limited.receive(fast, MIN_RECEIVE_RATE, 1.0)
    limited.receive(slow, 1, 1.0)
    for number in range(2):
        opened(limited, str(number), 1.0)
    assert limited.open("c", 1.0)[1] is slow
    limited.receive(fast, 1_000 * MIN_RECEIVE_RATE, 2.0)
    assert fast.since == 2.0
    limited.receive(fast, 8 * 1024, 9.0)
    assert fast.since == 2.5


def test_a_connection_that_was_closed_for_another_is_closed_once(limited: LimitedConnections) -> None:
    first = opened(limited, "a", 0.0)
    opened(limited, "a", 1.0)
    assert limited.open("a", 2.0)[1] is first
    limited.close(first)
    assert limited.authenticate(first, Standing.PROCESS, "agent") is None
    assert (limited.count(Standing.STRANGER), limited.count(Standing.PROCESS)) == (2, 0)


@given(st.integers(0, 2**32))
def test_limits_hold_in_any_order_of_events(seed: int) -> None:
    rng = Random(seed)
    limited = LimitedConnections(LIMITS)
    alive: set[CountedConnection] = set()
    for now in range(60):
        if not alive or rng.random() < 0.5:
            counted, evicted = limited.open(rng.choice(["a", "b", "c", None]), now)
            alive.add(counted)
            assert evicted is not counted
        else:
            counted = rng.choice(sorted(alive, key=id))
            counted.is_waiting = rng.random() < 0.5
            evicted = limited.authenticate(counted, rng.choice([*Standing][1:]), rng.choice("xyz"))
            if evicted is counted or rng.random() < 0.2:
                limited.close(counted)
                alive.discard(counted)
        alive.discard(evicted)  # type: ignore[arg-type]
        for standing, limits in LIMITS.items():
            of_standing = [counted for counted in alive if counted.standing is standing]
            assert limited.count(standing) == len(of_standing) <= limits.total
            for holder in {counted.holder for counted in of_standing} - {None}:
                assert sum(counted.holder == holder for counted in of_standing) <= limits.per_holder
