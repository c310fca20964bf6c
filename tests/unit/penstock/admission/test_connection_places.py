"""Strangers, callers and processes have places of their own, and the connection whose request began first leaves."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.admission.connection_places import ConnectionPlaces, Place, PlaceLimits, Standing

MIN_RECEIVE_RATE = 16 * 1024
"""As documented, and not imported: a test fails if a tuned constant changes."""

LIMITS = {
    Standing.STRANGER: PlaceLimits(4, 2),
    Standing.CALLER: PlaceLimits(4, 2),
    Standing.PROCESS: PlaceLimits(4, 2),
}


@pytest.fixture
def places() -> ConnectionPlaces:
    return ConnectionPlaces(LIMITS)


def opened(places: ConnectionPlaces, holder: str | None, now: float) -> Place:
    place, evicted = places.open(holder, now)
    assert evicted is None
    return place


def served(places: ConnectionPlaces, standing: Standing, holder: str, now: float) -> Place:
    place = opened(places, None, now)
    assert places.authenticate(place, standing, holder) is None
    place.is_waiting = False
    return place


def test_the_first_connection_of_a_network_over_its_limit_leaves(places: ConnectionPlaces) -> None:
    opened(places, "b", 0.0)
    first, _ = opened(places, "a", 1.0), opened(places, "a", 2.0)
    assert places.open("a", 3.0)[1] is first


def test_the_first_connection_of_all_leaves_when_all_places_are_taken(places: ConnectionPlaces) -> None:
    first = opened(places, "a", 0.0)
    for number in range(1, 4):
        opened(places, str(number), number)
    assert places.open("b", 5.0)[1] is first
    assert places.count(Standing.STRANGER) == 4


def test_a_stranger_that_waits_for_its_response_leaves_before_one_that_has_just_connected(
    places: ConnectionPlaces,
) -> None:
    first = opened(places, "a", 0.0)
    first.is_waiting = False
    new = [opened(places, str(number), number) for number in range(1, 4)]
    assert places.open("b", 5.0)[1] is first
    assert places.open("c", 5.0)[1] is new[0]


def test_a_trusted_proxy_has_no_limit_of_its_own(places: ConnectionPlaces) -> None:
    for now in range(4):
        opened(places, None, now)


@pytest.mark.parametrize(("standing", "holder"), [(Standing.CALLER, "olga"), (Standing.PROCESS, "agent")])
def test_strangers_take_no_place_of_an_authenticated_client(
    places: ConnectionPlaces, standing: Standing, holder: str
) -> None:
    place = opened(places, "a", 0.0)
    assert places.authenticate(place, standing, holder) is None
    for number in range(20):
        assert places.open(str(number), number)[1] is not place
    assert places.count(standing) == 1


def test_callers_take_no_place_of_a_process(places: ConnectionPlaces) -> None:
    process = opened(places, "a", 0.0)
    assert places.authenticate(process, Standing.PROCESS, "agent") is None
    for number in range(20):
        assert places.authenticate(opened(places, None, number), Standing.CALLER, str(number)) is not process
    assert (places.count(Standing.PROCESS), places.count(Standing.CALLER)) == (1, 4)


def test_a_caller_over_its_limit_loses_a_connection_that_waits_for_it(places: ConnectionPlaces) -> None:
    busy = served(places, Standing.CALLER, "olga", 0.0)
    slow = opened(places, "a", 1.0)
    assert places.authenticate(slow, Standing.CALLER, "olga") is None
    assert places.authenticate(opened(places, "a", 2.0), Standing.CALLER, "olga") is slow
    assert places.count(Standing.CALLER) == 2
    assert busy in (places.open("b", 3.0)[0], busy)


def test_a_caller_whose_connections_are_all_served_is_refused_another(places: ConnectionPlaces) -> None:
    for now in (0.0, 1.0):
        served(places, Standing.CALLER, "olga", now)
    third = opened(places, "a", 2.0)
    assert places.authenticate(third, Standing.CALLER, "olga") is third
    assert third.standing is Standing.STRANGER
    assert places.authenticate(third, Standing.CALLER, "otto") is None


def test_a_process_over_its_limit_loses_a_connection_that_waits_for_it_first(places: ConnectionPlaces) -> None:
    busy = served(places, Standing.PROCESS, "agent", 0.0)
    idle = served(places, Standing.PROCESS, "agent", 1.0)
    places.begin(idle, 2.0)
    assert places.authenticate(opened(places, "a", 3.0), Standing.PROCESS, "agent") is idle
    assert places.authenticate(opened(places, "a", 4.0), Standing.PROCESS, "agent") is not busy


def test_a_body_that_arrives_fast_enough_counts_as_new(places: ConnectionPlaces) -> None:
    fast, slow = opened(places, "a", 0.0), opened(places, "b", 0.5)
    places.receive(fast, MIN_RECEIVE_RATE, 1.0)
    places.receive(slow, 1, 1.0)
    for number in range(2):
        opened(places, str(number), 1.0)
    assert places.open("c", 1.0)[1] is slow
    places.receive(fast, 1_000 * MIN_RECEIVE_RATE, 2.0)
    assert fast.since == 2.0
    places.receive(fast, 8 * 1024, 9.0)
    assert fast.since == 2.5


def test_a_connection_that_was_closed_for_another_is_closed_once(places: ConnectionPlaces) -> None:
    first = opened(places, "a", 0.0)
    opened(places, "a", 1.0)
    assert places.open("a", 2.0)[1] is first
    places.close(first)
    assert places.authenticate(first, Standing.PROCESS, "agent") is None
    assert (places.count(Standing.STRANGER), places.count(Standing.PROCESS)) == (2, 0)


@given(st.integers(0, 2**32))
def test_limits_hold_in_any_order_of_events(seed: int) -> None:
    rng = Random(seed)
    places = ConnectionPlaces(LIMITS)
    alive: set[Place] = set()
    for now in range(60):
        if not alive or rng.random() < 0.5:
            place, evicted = places.open(rng.choice(["a", "b", "c", None]), now)
            alive.add(place)
            assert evicted is not place
        else:
            place = rng.choice(sorted(alive, key=id))
            place.is_waiting = rng.random() < 0.5
            evicted = places.authenticate(place, rng.choice([*Standing][1:]), rng.choice("xyz"))
            if evicted is place or rng.random() < 0.2:
                places.close(place)
                alive.discard(place)
        alive.discard(evicted)  # type: ignore[arg-type]
        for standing, limits in LIMITS.items():
            of_standing = [place for place in alive if place.standing is standing]
            assert places.count(standing) == len(of_standing) <= limits.total
            for holder in {place.holder for place in of_standing} - {None}:
                assert sum(place.holder == holder for place in of_standing) <= limits.per_holder
